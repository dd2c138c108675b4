"""Draws the figure of docs/pages/feddyn.md: FedDyn on digits, as it is and as other code has it.

python -m docs.feddyn_figure [FIGURE.png]     a few minutes of one CPU; prints the last scores
"""

import functools
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from matplotlib.figure import Figure

from fedjax_core import experiment
from fedjax_core.algorithm import Reduce
from fedjax_core.engine.divergence import Diverged
from fedjax_core.reporting.plots import style
from methods.fedavg import fedavg
from methods.feddyn import Server, feddyn

ROUNDS, EVERY = 200, 10
SHOWN = 30.0  # the largest loss that is drawn


def without_pull(task, *, optimizer, alpha, **options):
    """Builds FedDyn whose local steps lack alpha theta: FL-bench's, without weight decay."""
    grow = lambda round_num: optax.chain(optax.add_decayed_weights(-alpha), optimizer(round_num))
    return feddyn(task, optimizer=grow, alpha=alpha, **options)


def with_forgotten_duals(task, *, optimizer, alpha, **options):
    """Builds FedDyn whose clients begin each round with a state of 0."""
    algorithm = feddyn(task, optimizer=optimizer, alpha=alpha, **options)

    def client_update(sent, g, data, key):
        out = algorithm.client_update(sent, optax.tree.zeros_like(g), data, key)
        return out._replace(state=g, local=(out.local[0], g))

    return algorithm._replace(client_update=client_update)


class ByPosition(NamedTuple):
    """Attributes:
    server: FedDyn's.
    duals: leaves [m, ...], of which client k is sent number k.
    """

    server: Server
    duals: Any


def with_duals_by_position(task, *, optimizer, alpha, **options):
    """Builds FedDyn that stores a client's state by its position in the cohort, not by its id: FL-bench's, at first."""
    algorithm = feddyn(task, optimizer=optimizer, alpha=alpha, **options)

    def server_init(key):
        server = algorithm.server_init(key)
        return ByPosition(server, jax.tree.map(lambda p: jnp.zeros((task.population, *p.shape)), server.net.params))

    def client_update(sent, g, data, key):
        out = algorithm.client_update(sent[0], sent[1], data, key)
        local = (out.local[0], sent[1]), g
        return out._replace(state=g, uplink=(out.uplink, optax.tree.sub(out.state, sent[1])), local=local, wire=None)

    def server_update(server, collected, cohort, key):
        after, metrics = algorithm.server_update(server.server, collected[0], cohort, key)
        returned = cohort.examples > 0
        position = jnp.where(returned, jnp.cumsum(returned) - 1, task.population)
        duals = jax.tree.map(lambda d, new: d.at[position].add(new, mode="drop"), server.duals, collected[1])
        return ByPosition(after, duals), metrics

    return algorithm._replace(
        server_init=server_init,
        client_update=client_update,
        server_update=server_update,
        collect=(algorithm.collect, Reduce()),
        broadcast=lambda server, i: (server.server, jax.tree.map(lambda d: d[i], server.duals)),
        predict={"global": lambda sent, g, x: algorithm.predict["global"](sent[0], g, x)},
        client_init=lambda key, server, client_id: (),
    )


def with_misread_sum(task, *, optimizer, alpha, **options):
    """Builds FedDyn with h - alpha / m (sum theta_k - theta) in place of the sum of the differences."""
    algorithm = feddyn(task, optimizer=optimizer, alpha=alpha, **options)

    def server_update(server, delta, cohort, key):
        after, metrics = algorithm.server_update(server, delta, cohort, key)
        extra = optax.tree.scale((cohort.examples > 0).sum() - 1.0, server.net.params)
        h = optax.tree.add_scale(after.h, -alpha / task.population, extra)
        params = optax.tree.add_scale(after.net.params, 1 / task.population, extra)
        return after._replace(net=after.net._replace(params=params), h=h), metrics

    return algorithm._replace(server_update=server_update)


VARIANTS = {  # label: (method, its options, changes of the config)
    "FedAvg": (fedavg, {"weights": "uniform"}, {}),
    "alpha 1": (feddyn, {"alpha": 1.0}, {}),
    "alpha 0.01": (feddyn, {"alpha": 0.01}, {}),
    "alpha 0.01, mean of the round's models": (feddyn, {"alpha": 0.01, "score": "active_mean"}, {}),
    "alpha 1, rate falls by 2 %": (feddyn, {"alpha": 1.0}, {"optimizer.decay": 0.98}),
    "alpha 30": (feddyn, {"alpha": 30.0}, {}),
    "alpha 1, weight decay 0.01": (feddyn, {"alpha": 1.0}, {"optimizer.weight_decay": 0.01}),
    "no quadratic term, alpha 0.1": (without_pull, {"alpha": 0.1}, {}),
    "clients' states reset, alpha 1": (with_forgotten_duals, {"alpha": 1.0}, {}),
    "states by position in the cohort, alpha 1": (with_duals_by_position, {"alpha": 1.0}, {}),
    "sum misread, alpha 1": (with_misread_sum, {"alpha": 1.0}, {}),
}
DRAWN = [name for name in VARIANTS if name not in ("alpha 1, weight decay 0.01", "alpha 30")]


def run(method, options, changes) -> list[tuple[int, float, float, float]]:
    """Returns (round, accuracy, loss, norm of the server's model) at each evaluation, until it diverges."""
    config = experiment.load_config("feddyn")
    config.data.clients, config.cohort.fraction = 50, 0.1
    config.evaluation.scopes = ("global",)
    config.update_from_flattened_dict(changes)
    simulator = experiment.build(config, method=functools.partial(method, epochs=5, batch=10, **options))
    state, points = simulator.init(seed=0), []
    try:
        while (done := int(state.round)) < ROUNDS:
            state, _ = simulator.run_rounds(state, EVERY)
            scores = simulator.evaluate(state).metrics
            server = state.server.server if isinstance(state.server, ByPosition) else state.server
            norm = float(optax.tree.norm(jax.device_get(server.net.params)))
            points.append((done + EVERY, scores["test/global/accuracy"], scores["test/global/loss"], norm))
    except Diverged as error:
        print(f"  {error}")  # noqa: T201
    return points


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """Draws accuracy and loss over rounds, and writes the numbers beside the figure."""
    figure = Figure((style.PAGE, 2.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for place, label in enumerate(DRAWN):
        points = [row for row in rows if row["variant"] == label]
        look = {"color": style.COLOURS[place % len(style.COLOURS)], "linestyle": style.DASHES[place % len(style.DASHES)]}
        for axis, name in zip(axes, ("accuracy", "loss"), strict=True):
            axis.plot([row["round"] for row in points], [row[name] for row in points], label=label, **look)
    axes[0].set(xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    axes[1].set(xlabel="round", ylabel="test loss", yscale="log", ylim=(None, SHOWN))
    style.legend_above(figure, axes[0])
    style.save_figure(figure, file, rows)


def main(file: str) -> None:
    """Runs all variants, prints their last scores and draws the figure."""
    rows: list[dict[str, Any]] = []
    for label, variant in VARIANTS.items():
        points = run(*variant)
        print(label, points[-1] if points else "diverged at once", flush=True)  # noqa: T201
        rows += [{"variant": label, "round": r, "accuracy": a, "loss": loss, "norm": norm} for r, a, loss, norm in points]
    draw(rows, file)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/pages/images/feddyn.png")
