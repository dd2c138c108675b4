"""Cost of an evaluation over bare forward passes of the same examples, in one process, in turns.

python -m tests.benchmarks.evaluation
python -m tests.benchmarks.evaluation --networks=cnn --batches=None,256 --repeats=9

Each turn runs the bare forward passes and each evaluation once; the minimum processor time over all
turns counts. Bare passes are those of one network over all examples, in full batches of several
sizes, and, with --exact, those of each client's network over its examples, in batches of limited
size. The ratio of an evaluation is to the cheapest bare passes over the same lists: clients have
very different numbers of examples, half of them fewer than 40, and no program can put examples of
two networks into one batch.
"""

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import nn
from fedjax_core.algorithm import Examples, PyTree
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine import evaluation as evaluating
from fedjax_core.task import Model, make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.local import local

CLIENTS, UNSEEN, CLASSES = 20, 8, 10
SCORED = 3  # clients on the whole test set
BARE = (16, 32, 64, 256)  # batch sizes of the bare passes
EXACT = 64  # maximum batch size of those of each client
TARGET = 1.3
NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], float]] = {  # network, shape, options, examples relative to mlp
    "mlp": ("mlp", (784,), {"widths": (200, 200)}, 1.0),
    "cnn": ("cnn", (28, 28, 1), {"widths": (8, 16), "dense": 64}, 0.5),
    "resnet8": ("resnet8", (32, 32, 3), {"width": 16}, 0.2),
}


class Case(NamedTuple):
    """One evaluation.

    Attributes:
      name: what is evaluated.
      work: runs it.
      rows: number of evaluated examples.
    """

    name: str
    work: Callable[[], Any]
    rows: int


def draw_sizes(total: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Returns each client's number of examples, at least 2, about `total` in sum; most have few."""
    share = rng.lognormal(0, 1.2, clients)
    return np.maximum(2, np.round(total * share / share.sum())).astype(int)


def make_data(shape: tuple[int, ...], total: int) -> federated_data.FederatedData:
    """Returns clients with `total` test and validation examples each, and unseen clients."""
    rng = np.random.default_rng(0)
    sizes = draw_sizes(total, CLIENTS, rng)
    new_sizes = draw_sizes(total * UNSEEN // CLIENTS, UNSEEN, rng)
    rows = int(sizes.sum() + new_sizes.sum())
    x, y = rng.standard_normal((rows, *shape), np.float32), rng.integers(0, CLASSES, rows).astype(np.int32)
    examples = Examples(x, y)
    dataset = sources.Dataset("random", examples, examples, tuple("0123456789"))
    own = np.split(np.arange(rows), np.cumsum([*sizes, *new_sizes])[:-1])
    seen, new = own[:CLIENTS], own[CLIENTS:]
    unseen = federated_data.UnseenClients(np.arange(UNSEEN), [one[:2] for one in new], new, *[np.zeros((UNSEEN, CLASSES), int)] * 2)
    data = federated_data.from_index(dataset, [one[:2] for one in seen], seen)
    return dataclasses.replace(data, validation_index=seen, unseen=unseen)


def make_cases(network: str, batch: int | None, scale: float) -> tuple[list[Case], Model, federated_data.FederatedData]:
    """Returns the evaluations of a network, the network, and the data."""
    kind, shape, options, part = NETWORKS[network]
    data = make_data(shape, int(3000 * scale * part))
    model = nn.build(kind, CLASSES, shape, **options)
    task = make_task(model, classes=CLASSES, population=CLIENTS)
    cases = []
    for method, scopes, scored in ((fedavg, ("global", "own", "unseen"), None), (local, ("all",), SCORED)):
        build = functools.partial(method, optimizer=local_training.sgd(0.1))
        evaluation = simulator.Evaluation(scopes, batch, scored)
        sim = simulator.Simulator(
            simulator.build_spec(
                simulator.one_group(build, task, CLIENTS), data, plan=client_loop.choose_plan(CLIENTS), evaluation=evaluation
            )
        )
        state = sim.init(0)
        assert data.unseen is not None
        own = sum(map(len, data.test_index))
        if method is fedavg:
            cases.append(
                Case("whole test set", functools.partial(evaluating.score_server, sim.compiled, state, "test"), len(data.test.y))
            )
            cases.append(Case("own and validation rows", functools.partial(sim.client_scores, state), 2 * own))
            unseen = sum(map(len, data.unseen.test_index))
            cases.append(Case("unseen clients", functools.partial(evaluating.score_unseen, sim.compiled, state), unseen))
        else:  # scope "all" also evaluates validation examples
            rows = SCORED * len(data.test.y) + sum(len(data.validation_index[i]) for i in sim.spec.scored_clients())
            cases.append(Case("all, and validation rows", functools.partial(sim.client_scores, state), rows))
    return cases, model, data


def make_bare(model: Model, x: PyTree, batch: int) -> Case:
    """Returns forward passes of one network in full batches."""
    number = len(x) // batch
    net, rows = model.init(jax.random.key(0)), jnp.asarray(x)

    @jax.jit
    def run(net, rows, number):
        def add(i, total):
            outputs, _ = model.apply(net, jax.lax.dynamic_slice_in_dim(rows, i * batch, batch))
            return total + jnp.sum(outputs["logits"])

        return jax.lax.fori_loop(0, number, add, jnp.zeros(()))

    return Case(f"bare passes, {batch} rows at once", lambda: jax.block_until_ready(run(net, rows, number)), number * batch)


def make_bare_clients(name: str, model: Model, x: PyTree, lists: Sequence[np.ndarray], batch: int) -> Case:
    """Returns forward passes of each client's network over its examples, in one program."""
    lists = [index for index in lists if len(index)]
    nets = jax.vmap(model.init)(jax.random.split(jax.random.key(0), len(lists)))

    @jax.jit
    def run(nets, rows):
        total = jnp.zeros(())
        for client, index in enumerate(lists):
            net = jax.tree.map(lambda leaf: leaf[client], nets)  # noqa: B023
            for begin in range(0, len(index), batch):
                chunk = rows[client][begin : begin + batch]
                total, chunk = jax.lax.optimization_barrier((total, chunk))  # sequential, as in an evaluation
                total += jnp.sum(model.apply(net, chunk)[0]["logits"])
        return total

    rows = [jnp.asarray(x[index]) for index in lists]
    return Case(
        f"bare passes, {name}, exact, {batch} at most", lambda: jax.block_until_ready(run(nets, rows)), sum(map(len, lists))
    )


def measure_least(cases: Sequence[Case], repeats: int) -> list[tuple[float, float]]:
    """Returns minimum (processor, wall) microseconds per example of each case, over turns."""
    for case in cases:
        for _ in range(2):  # an evaluation measures its speed first
            case.work()
    found = np.full((len(cases), 2), np.inf)
    for _ in range(repeats):
        for i, case in enumerate(cases):
            start = np.array([time.process_time(), time.perf_counter()])
            case.work()
            spent = np.array([time.process_time(), time.perf_counter()]) - start
            found[i] = np.minimum(found[i], 1e6 * spent / case.rows)
    return [(float(processor), float(wall)) for processor, wall in found]


def measure_network(
    network: str, batches: Sequence[int | None], repeats: int, scale: float = 1.0, exact: bool = False
) -> dict[str, float]:
    """Prints a network's times; returns ratios of processor time to the cheapest bare passes."""
    cases: list[Case] = []
    for batch in batches:
        mine, model, data = make_cases(network, batch, scale)
        chosen = "chosen" if batch is None else str(batch)
        cases += [case._replace(name=f"{case.name} ({chosen})") for case in mine]
    x, unseen = data.test.x, data.unseen
    assert unseen is not None
    data_lists = {"own and validation rows": [*data.test_index, *data.validation_index], "unseen clients": unseen.test_index}
    bare = [make_bare(model, x, batch) for batch in BARE if batch <= len(x)]
    for name, lists in data_lists.items() if exact else ():
        bare.append(make_bare_clients(name, model, x, lists, EXACT))
    times = measure_least([*bare, *cases], repeats)
    base: dict[str, float] = {}  # the cheapest bare passes over the same lists
    say(f"{network}: microseconds of a processor for a row, of a clock, and the first over the cheapest bare passes'")
    ratios = {}
    for case, (processor, _) in zip(bare, times, strict=False):
        kind = next((name for name in data_lists if exact and name in case.name), "all rows")
        base[kind] = min(base.get(kind, np.inf), processor)
    for case, (processor, wall) in zip([*bare, *cases], times, strict=True):
        kind = next((name for name in data_lists if exact and name in case.name), "all rows")
        say(f"  {case.name:50} {processor:9.2f} {wall:9.2f} {processor / base[kind]:6.2f}")
        if case not in bare:
            ratios[case.name] = processor / base[kind]
    return ratios


def say(text: str) -> None:
    """Prints a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measures as given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batches", default="None", help="of evaluation.batch: None chooses")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times so many rows")
    parser.add_argument("--exact", action="store_true", help="bare passes of each client, too (compiles for minutes)")
    given = parser.parse_args()
    batches = [None if batch == "None" else int(batch) for batch in given.batches.split(",")]
    for network in given.networks.split(","):
        measure_network(network, batches, given.repeats, given.scale, given.exact)
    say(f"The target is {TARGET}.")


if __name__ == "__main__":
    main()
