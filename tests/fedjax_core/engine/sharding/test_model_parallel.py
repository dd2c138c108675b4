"""Networks that several devices hold together: the same numbers, a part of the memory, and weights that are read part by part."""

import contextlib
import functools
import re
from typing import Any
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from fedjax_core import nn
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import simulator
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding import model_parallel
from fedjax_core.language import generation
from fedjax_core.language.models import decoder
from fedjax_core.lazy_array import LazyArray
from fedjax_core.task import find_model_axis, make_task
from fedjax_core.training import adapters, local_training
from methods.fedavg import fedavg
from methods.fedit import fedit
from methods.fedoa import fedoa
from methods.fedpft import fedpft
from tests import toy
from tests.fedjax_core.language.models.test_decoder import PLAIN, tensors

CLIENTS = 4
SETTINGS = {"classes": 4, "population": CLIENTS, "shape": (8, 8, 1)}
VIT = nn.build("vit", 4, (8, 8, 1), patch=4, width=16, depth=2, heads=4)


@functools.cache
def data() -> federated_data.FederatedData:
    """Noise, four rows for each client."""
    rng = np.random.default_rng(0)
    rows = Examples(rng.normal(size=(16, 8, 8, 1)).astype(np.float32), rng.integers(0, 4, 16).astype(np.int32))
    index = [list(range(4 * i, 4 * i + 4)) for i in range(CLIENTS)]
    return federated_data.from_index(sources.Dataset("noise", rows, rows, tuple("abcd")), index, index)


def whole():
    """FedAvg of a transformer."""
    return functools.partial(fedavg, optimizer=local_training.sgd(0.1, momentum=0.9), batch=2), make_task(VIT, **SETTINGS)


@functools.cache
def frozen():
    """The transformer's arrays."""
    return jax.device_get(jax.jit(VIT.init)(jax.random.key(7)))


def adapter(method, dropout: float):
    """A method with LoRA beside a frozen transformer."""
    kind = adapters.lora(rank=2, dropout=dropout, targets=("query", "out", "mlp1"))
    return method, adapters.adapter_task(VIT, frozen(), kind, ("head",), **SETTINGS)


def prompted():
    """FedPFT of a convolutional network."""
    net = nn.build("cnn", 4, (8, 8, 1), widths=(8, 64), dense=16)
    build = functools.partial(fedpft, optimizer=local_training.sgd(0.1), batch=4, prompts=2, transform_epochs=1)
    return build, make_task(net, **SETTINGS)


FACTOR = 10  # by how much more they may be apart than by a unit in the last place at the start
CASES = {
    "fedavg": whole,
    "fedit": lambda: adapter(functools.partial(fedit, optimizer=local_training.adam(0.01), batch=2), 0.1),
    "fedoa": lambda: adapter(functools.partial(fedoa, optimizer=local_training.sgd(0.1), batch=2, lam=0.7), 0.0),
    "fedpft": prompted,
}


def simulate(name: str, model: int, **settings) -> simulator.Simulator:
    """All clients, on four devices or on eight; in the latter two at once if there is room for no more parts of them."""
    build, task = CASES[name]()
    plan = Plan(2, 8, model) if model > 1 else Plan(1, 4)
    return simulator.Simulator(
        simulator.build_spec(simulator.one_group(build, task, CLIENTS), data(), plan=plan, rounds_per_dispatch=1, **settings)
    )


@functools.cache
def begun(name: str):
    """The checkpoint before round 1 of an undivided network."""
    sim = simulate(name, 1)
    return sim.to_host(sim.init(0))


def biggest(tree) -> jax.Array:
    return max(jax.tree.leaves(tree), key=lambda leaf: leaf.size)


def ends(sim: simulator.Simulator, compiled, held, state) -> tuple[list, Any]:
    """(state, metrics) on the host after each of two rounds, and the last state on the devices."""
    found, one = [], sim.compiled.put(np.int32(1))
    for _ in range(2):
        state, record = compiled(held, state, one)
        found.append(jax.tree.map(np.copy, jax.device_get((state, record["train"]))))
    return found, state


def apart(one, other) -> float:
    """The largest difference, absolute or relative, whichever is less."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(a - b) / (1 + np.abs(b)))) for a, b in pairs if a.size and a.dtype.kind == "f")


def mapped(function, tree):
    """The arrays of float32 on the host, by a function; the others as they are."""
    return jax.tree.map(lambda x: function(x) if x.dtype == np.float32 else x, jax.device_get(tree))


@contextlib.contextmanager
def doubled():
    """What is traced here computes in float64, also where it says float32."""
    with mock.patch.object(jnp, "float32", jnp.float64), jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", ["fedavg", "fedpft"])
def test_numbers_do_not_depend_on_it_and_memory_falls(name):
    """Clients x model is 4 x 1 and 4 x 2; both go on from one checkpoint. They agree to 1e-5 after a round, after two
    about as well as an undivided network agrees with itself when it begins one unit in the last place away. XLA's analysis says
    what a device has."""
    found, sizes, moved = [], [], []
    for model in (models := (1, 2)):
        sim = simulate(name, model)
        state = sim.from_host(begun(name))
        compiled = sim.compiled.programs.run_resident_rounds.lower(
            sim.compiled.device_arrays, state, sim.compiled.put(np.int32(1))
        ).compile()
        analysis: Any = compiled.memory_analysis()
        sizes.append(analysis.argument_size_in_bytes)
        big = biggest((sim.compiled.device_arrays.tasks, state.server))
        assert big.addressable_shards[0].data.size == big.size // model
        mine, after = ends(sim, compiled, sim.compiled.device_arrays, state)
        assert biggest(after.server).sharding.is_fully_replicated == (model == 1)
        found.append(mine)
        if model == 1:
            beside = sim.from_host(mapped(lambda x: np.nextafter(x, np.float32(9)), begun(name)))
            moved, _ = ends(sim, compiled, sim.compiled.device_arrays, beside)
    rounding = [max(1e-5, apart(*pair)) for pair in zip(moved, found[0], strict=True)]
    rows = sum(leaf.nbytes for leaf in jax.tree.leaves((data().train, data().test)))
    for mine, model, size in zip(found[1:], models[1:], sizes[1:], strict=True):
        chex.assert_trees_all_close(mine[0], found[0][0], atol=1e-5, rtol=1e-5)
        assert all(apart(*pair) < FACTOR * most for *pair, most in zip(mine, found[0], rounding, strict=True))
        assert size - rows < (sizes[0] - rows) * (1 / model + 0.25)


def test_in_float64_they_agree_over_rounds():
    """So what is apart in float32 is rounding: a distance of features that are nearly equal turns by it, however small it is."""
    name, model = "fedoa", 4
    sims, found = [simulate(name, each) for each in (1, model)], []
    wide = functools.partial(mapped, lambda x: x.astype(np.float64))
    start, held = wide(begun(name)), [wide(sim.compiled.device_arrays) for sim in sims]
    with doubled():
        for sim, mine in zip(sims, held, strict=True):
            mine, state = meshes.put(mine, sim.spec.mesh, sim.compiled.layout.arrays), sim.from_host(start)
            big = biggest((mine.tasks, state.server))
            assert big.addressable_shards[0].data.size == big.size // sim.spec.plan.model
            compiled = sim.compiled.programs.run_resident_rounds.lower(mine, state, sim.compiled.put(np.int32(1))).compile()
            found.append(ends(sim, compiled, mine, state)[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(found[0]) if leaf.dtype.kind == "f"} == {np.dtype("float64")}
    chex.assert_trees_all_close(found[1], found[0], atol=1e-10, rtol=1e-10)


def test_a_divided_network_begins_as_a_whole_one():
    chex.assert_trees_all_close(jax.device_get(simulate("fedavg", 4).init(0)), begun("fedavg")["state"], atol=1e-6)


def test_states_of_clients_and_moments_are_divided_off_the_devices_too():
    kept = simulate("fedoa", 4, hold="host")
    assert kept.compiled.layout.is_model_parallel
    rows = jax.tree.leaves(kept.compiled.layout.client_rows)
    assert {"clients"} == {sharding.spec[0] for sharding in rows}
    assert any("model" in sharding.spec for sharding in rows)


def test_a_network_without_rules_stays_whole_which_is_said_once(caplog):
    model_parallel._warn_once.cache_clear()
    build = functools.partial(fedavg, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
    for _ in range(2):
        sim = simulator.Simulator(simulator.build_spec(toy.groups(build), toy.data(), plan=Plan(1, 8, 2)))
    said = [record.getMessage() for record in caplog.records]
    assert said == ["plan.model=2: the network 'toy6' does not say how it is divided (model_axes), so each device holds all of it"]
    assert not any("model" in sharding.spec for sharding in jax.tree.leaves(sim.compiled.layout.state.server))
    assert not sim.compiled.layout.is_model_parallel


def test_arrays_that_cannot_be_divided_are_named(caplog):
    """Two rules' arrays of three and five columns; and rules that no array's path ends with."""
    model_parallel._warn_once.cache_clear()
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    tree = {"params": {"even": {"kernel": shape(2, 8)}, "odd": {"kernel": shape(2, 3)}, "head": {"kernel": shape(2**18, 5)}}}
    for _ in range(2):
        model_parallel._warn_of_replicated("net", (tree,), (("kernel", -1),), 4)
        model_parallel._warn_of_replicated("net", (tree,), (("weight", -1),), 4)
        model_parallel._warn_of_replicated("net", (tree["params"]["even"],), (("kernel", -1),), 4)
    uneven, none = [record.getMessage() for record in caplog.records]
    assert uneven.startswith("plan.model=4 does not divide evenly params/head/kernel [262144, 5], params/odd/kernel [2, 3]: ")
    assert uneven.endswith("each device holds their 5.0 MiB whole")
    assert none == "plan.model=4: no array's path ends as model_axes of the network 'net' say, so each device holds all of it"


def test_rules_hold_for_whatever_is_nested_like_the_network():
    """The longest end decides; what cannot be divided evenly stays whole; axes in front do not matter."""
    axes = (("kernel", -1), ("out/kernel", -2), ("cube/kernel", -3))
    assert find_model_axis("0/mu/params/out/kernel", axes) == -2
    assert find_model_axis("out_kernel", axes) is None
    on = meshes.make_mesh(Plan(1, 8, 4))
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    tree = {"mu": {"in": {"kernel": shape(3, 8)}, "out": {"kernel": shape(5, 8, 3)}}, "in": {"kernel": shape(8, 6)}}
    tree |= {"cube": {"kernel": shape(8, 8)}, "count": 3, "bias": shape(8)}
    found = jax.tree.map(lambda sharding: sharding.spec, model_parallel.shardings(tree, axes, on, "clients"))
    assert found["mu"] == {
        "in": {"kernel": PartitionSpec("clients", None, "model")},
        "out": {"kernel": PartitionSpec("clients", None, "model", None)},
    }
    whole_ones = [found["in"]["kernel"], found["cube"]["kernel"], found["count"], found["bias"]]
    assert not any("model" in spec for spec in whole_ones)


def test_an_adapter_follows_its_kernels():
    _, task = CASES["fedit"]()
    places = {"blocks/qkv/query": ("a", -2), "blocks/out": ("a", -2), "blocks/mlp1": ("b", -1)}
    own = {end: axis for end, axis in task.model.model_axes if end.startswith("adapter/")}
    assert own == {f"adapter/{place}/{part}": axis for place, (part, axis) in places.items()}


def test_devices_meet_twice_in_each_layer_of_a_transformer():
    """Once behind attention and once behind the MLP; forwards nothing is gathered or laid out anew."""
    model = decoder.build(PLAIN | {"vocab_size": 24, "num_key_value_heads": 4})
    shapes, on = jax.eval_shape(model.init, jax.random.key(0)), meshes.make_mesh(Plan(1, 4, 4))
    lies = model_parallel.shardings(shapes, model.model_axes, on)
    tokens, mask = (jax.ShapeDtypeStruct((3, 7), dtype) for dtype in (jnp.int32, jnp.bool))
    hidden = jax.jit(model.hidden, in_shardings=(lies, *[meshes.replicated(on)] * 2))
    found = re.findall(r" (all-[a-z-]+|collective-[a-z]+|reduce-scatter)\(", hidden.lower(shapes, tokens, mask).compile().as_text())
    assert found == ["all-reduce"] * 3  # of the embedding, and two of the loop's body


class Read:
    """A tensor of a file that counts what is read of it."""

    def __init__(self, array: np.ndarray, counts: list[int]):
        self.shape, self.dtype, self._array, self._counts = array.shape, array.dtype, array, counts

    def __getitem__(self, index):
        part = self._array[index]
        self._counts.append(part.nbytes)
        return part


def test_weights_are_read_into_their_parts():
    """Each byte once, however many devices have it, and no more at a time than one device holds."""
    config = PLAIN | {"vocab_size": 24}
    plain = tensors(config)
    counts: list[int] = []
    read: Any = {name: Read(array, counts) for name, array in plain.items()}
    later = decoder.from_tensors(config, read, later=True)
    assert all(isinstance(leaf, LazyArray) for leaf in jax.tree.leaves(later))
    assert not counts
    on = meshes.make_mesh(Plan(1, 8, 4))
    model = generation.make_writer(decoder.build(config))
    placed = meshes.put(later, on, model_parallel.shardings(later, model.model_axes, on))
    assert sum(counts) == sum(array.nbytes for array in plain.values())
    assert max(counts) == max(array.nbytes for array in plain.values()) // 4
    chex.assert_trees_all_equal(jax.device_get(placed), jax.device_get(decoder.from_tensors(config, plain)))
    query = placed["layers"]["attention"]["query"]["kernel"]
    assert query.addressable_shards[0].data.shape == (2, 16, 4)
    with pytest.raises(TypeError, match="not a valid JAX type"):
        jnp.sum(later["embedding"])
