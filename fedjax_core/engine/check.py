"""What can be said of a simulation before it trains: its settings are possible, its method keeps its promises."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import TARGETS, Array, Examples, PyTree, targets_of
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import contracts
from fedjax_core.engine.federation import SCOPES, Evaluation, Federation, Group, Held
from fedjax_core.engine.sharding.data_placement import PLACES
from fedjax_core.task import TO_ADD, check_tokens
from fedjax_core.training import metrics
from fedjax_core.training.few_shot import Episodes


class Shape(NamedTuple):
    """Abstract values of one group."""

    server: PyTree
    sent: PyTree
    client: PyTree
    out: Any

    @property
    def travels(self) -> tuple[PyTree, PyTree]:
        """What one client receives and sends, as it travels."""
        return (self.sent, self.out.uplink) if self.out.wire is None else self.out.wire


class Shapes(NamedTuple):
    """What is known without running. `down`, `up`: bytes that one client receives and sends per round, mean over the population."""

    groups: tuple[Shape, ...]
    down: float
    up: float


def settings(
    groups: Sequence[Group],
    population: int,
    dropout: float,
    hold: str,
    evaluation: Evaluation,
    dispatch: int,
    episodes: Episodes | None,
) -> None:
    """Raises ValueError for a setting that no simulation can have."""
    everyone = np.sort(np.concatenate([np.asarray(g.clients) for g in groups]))
    if not np.array_equal(everyone, np.arange(population)):
        raise ValueError(f"the groups' clients must be each of 0 ... {population - 1} once, found {everyone.tolist()[:20]}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} is not in [0, 1)")
    if hold not in PLACES:
        raise ValueError(f"hold={hold!r} is not one of {', '.join(PLACES)}")
    for scope in evaluation.scopes:
        if scope not in SCOPES:
            raise ValueError(f"evaluation.scopes has {scope!r}, which is not one of {', '.join(SCOPES)}")
    if any(number is not None and number < 1 for number in (evaluation.batch, evaluation.clients, dispatch)):
        raise ValueError("evaluation.batch, evaluation.clients and dispatch must be at least 1")
    if episodes is not None and (without := {"own", "post_local"} & set(evaluation.scopes)):
        raise ValueError(
            f"evaluation.scopes has {', '.join(map(repr, sorted(without)))}, but clients have no test episodes of their own; "
            "with episodes it may have 'global', 'all'"
        )


def targets(groups: Sequence[Group], examples: Examples) -> None:
    """Raises ValueError where a group's method cannot train on such targets, or its network gives something else for them."""
    if (kind := targets_of(examples.y)) == "classes":
        for group in groups:
            _gives_classes(group, examples)
        return
    for group in groups:
        if kind in (may := group.build(group.task).targets):
            _gives(group, kind, examples)
            continue
        needs = f"{contracts.name_of(group.build)} needs {' or '.join(may)}, the data have {kind}: {TARGETS[kind]}"
        raise ValueError(f"{needs}; fedavg, fedprox, scaffold, fedopt, fedper, ditto and others that read no class can")


def tokens(groups: Sequence[Group], data: FederatedData) -> None:
    """Raises ValueError where examples have a token id that a group's network does not embed."""
    first = data.train.x["tokens"] if isinstance(data.train.x, Mapping) and "tokens" in data.train.x else data.train.x
    if not jnp.issubdtype(getattr(first, "dtype", jnp.float32), jnp.signedinteger):
        return
    for group in groups:
        model, public = group.task.model, group.task.public
        if model.vocabulary is None:
            continue
        parts = {"train": data.train, "test": data.test}
        parts |= {"public": public} if isinstance(public, Examples) else {}
        for part, examples in parts.items():
            x = examples.x
            ids, mask = (x["tokens"], x.get("mask")) if isinstance(x, Mapping) else (x, None)
            check_tokens(ids, model.vocabulary, f"network {model.name!r}", mask, f"{part}: ")


def _gives_classes(group: Group, examples: Examples) -> None:
    """Raises ValueError where rows are token ids, targets classes, and a group's network tells the next token of each place."""
    if getattr(examples.x, "ndim", 0) != 2 or not jnp.issubdtype(examples.x.dtype, jnp.signedinteger):
        return
    if len(given := _given(group, examples)) > 1:
        what = f"network {group.task.model.name!r} gives {list(given)} for a row, the next token of each place; classes need "
        raise ValueError(f"{what}{[group.task.classes]}; texts are classified by language tasks with an encoder")


def _given(group: Group, examples: Examples) -> tuple[int, ...]:
    """The shape of a row's logits; () where a network has none."""
    model = group.task.model
    x = jax.ShapeDtypeStruct((1, *examples.x.shape[1:]), examples.x.dtype)
    outputs = jax.eval_shape(lambda key, x: model.apply(model.init(key), x)[0], jax.random.key(0), x)
    return outputs["logits"].shape[1:] if "logits" in outputs else ()


def _gives(group: Group, kind: str, examples: Examples) -> None:
    """Raises ValueError unless a group's network gives a number for each target, of tokens one for each that there may be."""
    given, row = _given(group, examples), examples.y.shape[1:]
    wanted = (*row, group.task.classes) if kind == "tokens" else row
    if given != wanted:
        what = f"network {group.task.model.name!r} gives {list(given)} for a row, {kind} need {list(wanted)}"
        raise ValueError(what + ("; 'lstm' and 'causal' read token ids" if kind == "tokens" else ""))


def shapes(fed: Federation, held: Held) -> Shapes:
    """Traces every group's functions once, abstractly.

    Raises:
      TypeError, ValueError: a function of a method returns something else than it must (`promises`).
      ValueError: the groups disagree about the server's state; a client update does not keep its state's structure, shapes and
        dtypes; a method cannot work with episodes.
    """
    key, zero = jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)
    held = jax.eval_shape(lambda h: h, held)

    def traced(g: int, held: Held, i: Array):
        algorithm = fed.algorithm(g, held, i)
        server = algorithm.server_init(key)
        sent = algorithm.broadcast(server, i)
        client = algorithm.client_init(key, server, i)
        out = algorithm.client_update(sent, client, fed.rows_of(held, 0, held.size[0]), key)
        out = contracts.output(out, algorithm.collect)
        group, few = fed.groups[g], jax.tree.map(lambda rows: rows[:2], held.train)
        local = (sent, out.state) if out.local is None else out.local
        for name, predict in algorithm.predict.items():
            if fed.episodes is not None:
                _of_no_classes(lambda predict=predict: predict(*local, few.x), name, group.name)
            else:
                outputs, more = predict(*local, few.x), group.task.public != ()
                contracts.predicted(outputs, name, group.name, few.y, group.task.classes, more=more)
        return server, sent, client, out

    found = []
    for g, group in enumerate(fed.groups):
        try:
            server, sent, client, out = jax.eval_shape(functools.partial(traced, g), held, zero)
        except KeyError as error:
            if fed.episodes is None or error.args != ("logits",):
                raise
            raise ValueError(
                f"group {group.name!r}: the method reads logits of plain examples, which a prototypical network does not have; "
                "with episodes choose a method, or an option of it, that reads features"
            ) from None
        contracts.same(
            client, out.state, f"group {group.name!r}: client_update must return the client's state as client_init made it"
        )
        if found:
            contracts.same(
                found[0].server,
                server,
                f"groups {fed.groups[0].name!r} and {group.name!r} would give the server different states; a method that "
                "averages parameters needs one architecture for all clients (for mixed ones use fedhe, for example)",
            )
        found.append(Shape(server, sent, client, out))
    sizes = np.array([len(g.clients) for g in fed.groups], float)
    down, up = ([metrics.nbytes(tree) for tree in trees] for trees in zip(*(s.travels for s in found), strict=True))
    return Shapes(tuple(found), float(sizes @ down / sizes.sum()), float(sizes @ up / sizes.sum()))


def _of_no_classes(predicted: Callable[[], Any], name: str, group: str) -> None:
    """Raises ValueError if a method tells plain examples apart, by a classifier of its own: the test's classes are others."""
    try:
        outputs = predicted()
    except (KeyError, ValueError):  # it reads logits, which a prototypical network has of episodes alone
        return
    if "logits" in outputs:
        raise ValueError(
            f"group {group!r}: predictor {name!r} classifies with a head of the method's own, which knows the training set's "
            "classes alone; with episodes choose a method, or an option of it, that leaves the network's head as it is"
        )


@contextlib.contextmanager
def parted(groups: Sequence[Group]) -> Iterator[None]:
    """A ValueError that says what to add, in place of the KeyError of a method that asks for a head or features where a network is
    not parted into a body and a linear head."""
    try:
        yield
    except KeyError as error:
        if error.args[:1] not in (("head",), ("kernel",), ("features",)):
            raise
        nets = {one.task.model.name: jax.eval_shape(one.task.model.init, jax.random.key(0)).params for one in groups}
        heads = {name: net.get("head") if isinstance(net, dict) else None for name, net in nets.items()}
        without = [name for name, head in heads.items() if not (isinstance(head, dict) and "kernel" in head)]
        if not without:
            raise
        raise ValueError(
            f"the method needs features or the head of network {without[0]!r}, which has no such parts: {TO_ADD}"
        ) from None
