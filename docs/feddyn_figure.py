"""Draws the figure of docs/pages/feddyn.md: FedDyn on digits, as it is and as other code has it.

python -m docs.feddyn_figure     a quarter of an hour of one CPU; prints the rows of the page's table
"""

import functools
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import optax
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedjax_core import experiment
from fedjax_core.algorithm import Reduce
from fedjax_core.atomic_files import write_csv
from fedjax_core.engine.divergence import Diverged
from fedjax_core.reporting.plots import style
from methods.fedavg import fedavg
from methods.feddyn import Server, feddyn

ROOT = Path(__file__).parents[1]
FIGURE, NUMBERS = ROOT / "docs" / "pages" / "images" / "feddyn.png", ROOT / "configs" / "results" / "records" / "feddyn.csv"
ROUNDS, EVERY, SEEDS = 200, 10, (0, 1, 2)
LIMITS = {"loss": (0.04, 30.0), "norm": (15.0, 300.0)}  # that are drawn
SCORES = ("accuracy", "loss", "norm")  # norm: of the server's model


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
    "FedAvg, uniform weights": (fedavg, {"weights": "uniform"}, {}),
    "alpha 1": (feddyn, {"alpha": 1.0}, {}),
    "alpha 0.01": (feddyn, {"alpha": 0.01}, {}),
    "alpha 0.01, mean of the round's models": (feddyn, {"alpha": 0.01, "score": "active_mean"}, {}),
    "alpha 0.01, all clients in each round": (feddyn, {"alpha": 0.01}, {"cohort.fraction": 1.0}),
    "alpha 1, rate falls by 2 %": (feddyn, {"alpha": 1.0}, {"optimizer.decay": 0.98}),
    "alpha 1, weight decay 0.01": (feddyn, {"alpha": 1.0}, {"optimizer.weight_decay": 0.01}),
    "alpha 30": (feddyn, {"alpha": 30.0}, {}),
    "no quadratic term, alpha 0.1": (without_pull, {"alpha": 0.1}, {}),
    "clients' states reset, alpha 1": (with_forgotten_duals, {"alpha": 1.0}, {}),
    "states by position in the cohort, alpha 1": (with_duals_by_position, {"alpha": 1.0}, {}),
    "sum misread, alpha 1": (with_misread_sum, {"alpha": 1.0}, {}),
}
DRAWN = ("FedAvg, uniform weights", "alpha 1", "alpha 0.01", "alpha 0.01, all clients in each round")
DRAWN += ("clients' states reset, alpha 1", "states by position in the cohort, alpha 1")


def run(label: str, seed: int) -> list[dict[str, Any]]:
    """Returns the scores at each evaluation, until the run diverges; the last row then has the round alone."""
    method, options, changes = VARIANTS[label]
    config = experiment.load_config("feddyn")
    config.data.clients, config.cohort.fraction = 50, 0.1
    config.evaluation.scopes = ("global",)
    config.update_from_flattened_dict(changes)
    simulator = experiment.build(config, method=functools.partial(method, epochs=5, batch=10, **options))
    state, rows = simulator.init(seed=seed), []
    for done in range(EVERY, ROUNDS + 1, EVERY):
        row = {"variant": label, "seed": seed, "round": done}
        try:
            state, _ = simulator.run_rounds(state, EVERY)
        except Diverged:
            return [*rows, row | dict.fromkeys(SCORES, "")]
        scores = simulator.evaluate(state).metrics
        server = state.server.server if isinstance(state.server, ByPosition) else state.server
        norm = float(optax.tree.norm(jax.device_get(server.net.params)))
        rows.append(row | {"accuracy": scores["test/global/accuracy"], "loss": scores["test/global/loss"], "norm": norm})
    return rows


def format_row(label: str, rows: list[dict[str, Any]]) -> str:
    """Returns a row of the page's table: mean and sample standard deviation over seeds of the last scores."""
    last = [row for row in rows if row["round"] == ROUNDS and row["norm"] != ""]
    ends = [row["round"] for row in rows if row["norm"] == ""]
    if not last:
        return f"| {label} | not finite within {max(ends)} rounds | | |"
    digits = {"accuracy": (100, ".1f"), "loss": (1, ".2g"), "norm": (1, ".0f")}

    def cell(name: str) -> str:
        scale, form = digits[name]
        values = [scale * row[name] for row in last]
        return f"{statistics.mean(values):{form}} ± {statistics.stdev(values) if len(values) > 1 else 0:{form}}"

    lost = f" ({len(last)} seeds; else not finite within {max(ends)} rounds)" if ends else ""
    return f"| {label}{lost} | " + " | ".join(map(cell, SCORES)) + " |"


def draw(rows: list[dict[str, Any]]) -> None:
    """Draws loss and norm over rounds, as means over the seeds that are finite."""
    with matplotlib.rc_context(style.STYLE):
        figure = Figure((style.PAGE, 2.6), layout="constrained")
        axes = figure.subplots(1, 2)
        for place, label in enumerate(DRAWN):
            points = [row for row in rows if row["variant"] == label and row["norm"] != ""]
            look = {"color": style.COLOURS[place % len(style.COLOURS)], "linestyle": style.DASHES[place % len(style.DASHES)]}
            rounds = sorted({row["round"] for row in points})
            for axis, name in zip(axes, LIMITS, strict=True):
                means = [statistics.mean(row[name] for row in points if row["round"] == r) for r in rounds]
                axis.plot(rounds, means, label=label, **look)
        for axis, (name, limits) in zip(axes, LIMITS.items(), strict=True):
            what = {"loss": "test loss", "norm": "norm of the server's model"}[name]
            axis.set(xlabel="round", ylabel=what, yscale="log", ylim=limits)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
        style.legend_above(figure, axes[0])
        style.write_figure(figure, FIGURE)


def main() -> None:
    """Runs all variants, prints their last scores, writes all and draws the figure."""
    rows: list[dict[str, Any]] = []
    for label in VARIANTS:
        of = [row for seed in SEEDS for row in run(label, seed)]
        print(format_row(label, of), flush=True)  # noqa: T201
        rows += of
    write_csv(NUMBERS, [{name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows])
    draw(rows)


if __name__ == "__main__":
    main()
