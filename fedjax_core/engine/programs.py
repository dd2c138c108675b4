"""A simulation's programs, compiled for one plan: what a round, a score and a look at a client are made of, as jitted functions."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fedjax_core.engine import client_loop, client_view, evaluation_step, rounds, unseen_clients
from fedjax_core.engine.federation import Federation
from fedjax_core.engine.sharding.model_parallel import Layout


class Programs(NamedTuple):
    """None is compiled before it is first called. Of a list, each is one group's.

    Attributes:
      init: `rounds.init`.
      prepare: `rounds.prepare`.
      draw: `rounds.draw`.
      many, scored: `rounds.many`, plain and with the scores right after local training. They consume the state.
      on_host: `rounds.on_host`, by whether it scores.
      begin_server, of_server: of `scores`, by the rows: "test", "validation".
      begin_batches, of_batches: of `scores`.
      summed: `client_loop.summed`.
      of_clients: `evaluation_step.of_clients`.
      of_unseen: `unseen_clients.of_unseen`.
      view: `client_view.holdings`.
      predict: `client_view.predict`.
    """

    init: Any
    prepare: Sequence[Any]
    draw: Any
    many: Any
    scored: Any
    on_host: dict[bool, Any]
    begin_server: dict[str, Any]
    of_server: dict[str, Any]
    begin_batches: Any
    of_batches: Any
    summed: Any
    of_clients: Sequence[Any]
    of_unseen: Sequence[Any]
    view: Sequence[Any]
    predict: Sequence[Any]


def compiled(fed: Federation, lies: Layout) -> Programs:
    """The programs of a federation with its plan, whose results lie as `lies` says."""
    everywhere, spread, each = client_loop.replicated(fed.mesh), client_loop.spread(fed.mesh), range(len(fed.groups))
    of_round = everywhere if fed.plan.model == 1 else (lies.state, everywhere)
    off_devices = lies.state, lies.rows, everywhere

    def program(function, *fixed, out: Any = everywhere, scored: bool | None = None, rows: str | None = None, **options):
        given = {name: value for name, value in (("scored", scored), ("rows", rows)) if value is not None}
        return jax.jit(functools.partial(function, fed, *fixed, **given), out_shardings=out, **options)

    many, scored = (program(rounds.many, scored=s, out=of_round, donate_argnums=1) for s in (False, True))
    return Programs(
        init=program(rounds.init, out=lies.state),
        prepare=[program(rounds.prepare, g, out=lies.blocks[g]) for g in each],
        draw=program(rounds.draw),
        many=many,
        scored=scored,
        on_host={s: program(rounds.on_host, scored=s, out=off_devices) for s in (False, True)},
        begin_server={rows: program(evaluation_step.begin_server, rows=rows, out=spread) for rows in evaluation_step.ROWS},
        of_server={rows: program(evaluation_step.of_server, rows=rows, out=spread) for rows in evaluation_step.ROWS},
        begin_batches=program(evaluation_step.begin_batches, out=spread),
        of_batches=program(evaluation_step.of_batches, out=spread),
        summed=jax.jit(functools.partial(client_loop.summed, plan=fed.plan, on=fed.mesh), out_shardings=everywhere),
        of_clients=[program(evaluation_step.of_clients, g) for g in each],
        of_unseen=[program(unseen_clients.of_unseen, g) for g in each],
        view=[program(client_view.holdings, g, out=lies.view, static_argnums=6) for g in each],
        predict=[program(client_view.predict, g, static_argnums=2) for g in each],
    )
