"""Adapters against products of matrices written out; the base stays as it is, and there is one of it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.language.models import bert, decoder
from fedjax_core.nn import build, flax_adapter
from fedjax_core.task import Model
from fedjax_core.training import adapters, local_training
from fedjax_core.training.metrics import nbytes
from methods.fedoa import fedoa
from tests import toy

TINY = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
}
KIND = adapters.lora(rank=2, alpha=6.0, dropout=0.5)
TOKENS = np.arange(10).reshape(2, 5) % 13
MASK = np.array([[True] * 5, [False, True, True, True, True]])


def language_model():
    model = decoder.build(TINY | {"max_position_embeddings": 16})
    return model.init(jax.random.key(0)), lambda params: model.hidden(params, TOKENS, MASK)


def encoder():
    model = bert.build(TINY | {"max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu"})
    return model.init(jax.random.key(0)), lambda params: model.hidden(params, TOKENS, MASK)


def images():
    model = build("vit", 3, (8, 8, 1), patch=4, width=8, depth=2, heads=2)
    x = jax.random.normal(jax.random.key(1), (2, 8, 8, 1))
    net = model.init(jax.random.key(0))
    return net.params, lambda params: model.features(Net(params, net.stats), x)[0]


NETWORKS = {"llama": language_model, "bert": encoder, "vit": images}


def random_like(tree, key=7):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    return structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


@pytest.mark.parametrize("name", NETWORKS)
def test_zero_is_the_base_bit_for_bit_and_merged_is_unmerged(name):
    params, run = NETWORKS[name]()
    run = jax.jit(run)
    own = adapters.make_adapter(KIND, params)
    trained = own.init(jax.random.key(2))
    plain = run(params)
    np.testing.assert_array_equal(run(own.wrap(params, trained)), plain)
    other = random_like(trained)
    moved = run(own.wrap(params, other))
    assert np.abs(moved - plain).max() > 1e-2
    merged = own.merge(params, other)
    chex.assert_trees_all_equal_shapes_and_dtypes(merged, params)
    np.testing.assert_allclose(run(merged), moved, atol=2e-5, rtol=1e-4)
    dropped = [run(own.wrap(params, other, jax.random.key(k))) for k in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert np.abs(dropped[0] - dropped[2]).max() > 1e-3


def test_every_part_of_the_update_counts():
    """x W + alpha / r x A B for the query and the value, of a kernel that is three side by side."""
    params, _ = images()
    own = adapters.make_adapter(adapters.lora(rank=2, alpha=6.0, dropout=0.0, targets=("query", "value", "out")), params)
    trained = random_like(own.init(jax.random.key(2)))
    kernel = own.wrap(params, trained)["blocks"]["qkv"]["kernel"]
    one = jax.tree.map(lambda leaf: leaf[1], kernel)  # as the scan over blocks gives it
    x = jax.random.normal(jax.random.key(3), (2, 3, 8))
    base = np.asarray(params["blocks"]["qkv"]["kernel"][1]).reshape(8, 3, 8)
    mine = trained["blocks"]["qkv"]
    assert sorted(mine) == ["query", "value"]
    for i, part in enumerate(("query", "key", "value")):
        want = np.asarray(x) @ base[:, i]
        if part in mine:
            want = want + 3.0 * (np.asarray(x) @ mine[part]["a"][1]) @ mine[part]["b"][1]
        np.testing.assert_allclose((x @ one)[..., 8 * i : 8 * i + 8], want, atol=1e-5)
    assert trained["blocks"]["out"]["a"].shape == (2, 8, 2)


def test_a_sum_of_products_corrects_the_base():
    """Checks sum_i w_i A_i B_i of stacked layers and of parts of a kernel, without clients of weight 0."""
    params, _ = images()
    own = adapters.make_adapter(adapters.lora(rank=2, alpha=6.0, dropout=0.0, targets=("query", "value", "out")), params)
    net = Net({"adapter": own.init(jax.random.key(2))}, {})
    clients = [random_like(net.params["adapter"], seed) for seed in range(2)]
    absent = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), clients[0])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients, absent)
    products = adapters.sum_products(stacked, jnp.array([0.3, 0.7, 0.0]))
    chex.assert_trees_all_equal_shapes(products, adapters.with_zero_correction(net).params["correction"])
    parts = [own.merge(params, client) for client in clients]
    want = jax.tree.map(lambda a, b: 0.3 * a + 0.7 * b, *parts)
    chex.assert_trees_all_close(own.correct(params, products), want, atol=1e-5)


def test_corrections_smaller_than_a_digit_of_the_base_count():
    """Checks a bfloat16 base: outputs and merged kernels keep its type."""
    signs = (-1.0) ** np.arange(256)[:, None] * np.ones((1, 2))
    params = {"body": {"kernel": jnp.asarray(0.5 * signs, jnp.bfloat16)}}
    own = adapters.make_adapter(adapters.lora(rank=1, alpha=1.0, dropout=0.0, targets="body"), params)
    trained, x = own.init(jax.random.key(0)), jnp.ones((1, 256), jnp.bfloat16)
    corrected = own.correct(params, {"body": jnp.full((256, 2), 2**-9)})  # 0.5 + 2^-9 would be 0.5
    outputs = [x @ own.wrap(base, trained)["body"]["kernel"] for base in (params, corrected)]
    assert [y.dtype for y in outputs] == [jnp.bfloat16, jnp.bfloat16]
    assert [float(y[0, 0]) for y in outputs] == [0, 0.5]
    assert own.merge(params, trained)["body"]["kernel"].dtype == jnp.bfloat16


def test_a_bottleneck_bends_and_cannot_be_merged():
    params = {"layers": {"attention": {"query": {"kernel": jax.random.normal(jax.random.key(0), (1, 4, 5))}}}}
    own = adapters.make_adapter(adapters.bottleneck(rank=3, scale=0.5, targets="query"), params)
    trained = random_like(own.init(jax.random.key(1)))
    x = np.asarray(jax.random.normal(jax.random.key(2), (6, 4)))
    kernel = jax.tree.map(lambda leaf: leaf[0], own.wrap(params, trained)["layers"]["attention"]["query"]["kernel"])
    a, b = (np.asarray(trained["layers"]["attention"]["query"][name][0]) for name in "ab")
    want = x @ np.asarray(kernel.base) + 0.5 * np.maximum(x @ a, 0) @ b
    np.testing.assert_allclose(jnp.asarray(x) @ kernel, want, atol=1e-5)
    with pytest.raises(ValueError, match="a bottleneck is not linear"):
        own.merge(params, trained)


def test_it_begins_as_published_and_dropout_keeps_the_mean():
    params = {"layers": {"attention": {"query": {"kernel": jnp.zeros((2, 400, 3))}}}}
    own = adapters.make_adapter(adapters.lora(targets="query", dropout=0.25), params)
    trained = own.init(jax.random.key(0))["layers"]["attention"]["query"]
    assert trained["a"].shape == (2, 400, 8)
    assert not trained["b"].any()
    assert 0.049 < np.abs(trained["a"]).max() <= 0.05  # 1 / sqrt(400): Kaiming with sqrt 5
    np.testing.assert_allclose(np.std(trained["a"]), 0.05 / 3**0.5, rtol=0.05)
    trained = {"layers": {"attention": {"query": {"a": jnp.ones((2, 400, 8)), "b": jnp.ones((2, 8, 3))}}}}
    x = jnp.ones((300, 400))
    y = x @ jax.tree.map(
        lambda leaf: leaf[0], own.wrap(params, trained, jax.random.key(4))["layers"]["attention"]["query"]["kernel"]
    )
    assert np.std(y[:, 0]) > 1
    np.testing.assert_allclose(np.mean(y), 2 * 8 * 400, rtol=0.01)


def test_llama_7b_has_four_million_numbers_to_train_and_takes_no_memory_here():
    shapes = jax.eval_shape(decoder.build(LLAMA_7B, "bfloat16").init, jax.random.key(0))
    own = adapters.make_adapter(adapters.lora(), shapes)
    trained = jax.eval_shape(own.init, jax.random.key(0))
    assert nbytes(trained) == 4 * 4_194_304
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 6_738_415_616


def test_a_round_over_many_clients_makes_no_copy_of_the_base():
    """Gradients of sixteen clients' adapters at once take less memory beside them than one base."""
    params = {"layers": {"attention": {"query": {"kernel": jnp.zeros((2, 512, 512))}}}}
    own = adapters.make_adapter(adapters.lora(rank=1, targets="query", dropout=0.1), params)

    def loss(trained, params, x, key):
        layers = own.wrap(params, trained, key)["layers"]
        step = lambda x, layer: (jnp.tanh(x @ layer["attention"]["query"]["kernel"]), None)
        return jnp.sum(jax.lax.scan(step, x, layers)[0])

    clients = jax.tree.map(lambda leaf: jnp.stack([leaf] * 16), own.init(jax.random.key(0)))
    of_all = jax.jit(jax.vmap(jax.grad(loss), (0, None, 0, 0)))
    compiled = of_all.lower(clients, params, jnp.ones((16, 2, 512)), jax.random.split(jax.random.key(1), 16)).compile()
    taken, base = compiled.memory_analysis(), nbytes(params)
    assert taken.argument_size_in_bytes < 2 * base
    assert taken.temp_size_in_bytes < base


def test_the_base_neither_changes_nor_is_kept_nor_travels():
    sim, _, after = toy.reference("fedoa_lora")
    frozen = toy.task_adapted().frozen
    chex.assert_trees_all_equal(jax.device_get(sim.compiled.device_arrays.tasks[0][0]), jax.device_get(frozen))
    adapter = 4 * (5 * 2 + 2 * 6) + 4 * (6 * 3 + 3)
    assert nbytes(after.server) == adapter
    assert nbytes(after.clients) == toy.CLIENTS * adapter
    assert sim.spec.shapes.up == sim.spec.shapes.down == adapter


def wide(clients: int) -> simulator.Simulator:
    """Of clients with two rows each who adapt a kernel of 8 MiB, all at once."""

    def init(key):
        shapes = {"body": (1024, 2048), "head": (2048, 2)}
        return Net({name: {"kernel": 0.01 * jax.random.normal(key, shape)} for name, shape in shapes.items()}, {})

    def features(net, x, key=None, train=False, mask=None):
        return jnp.tanh(x @ net.params["body"]["kernel"]), net.stats

    def apply(net, x, key=None, train=False, mask=None):
        z, stats = features(net, x)
        return {"logits": head(net, z), "features": z}, stats

    head = lambda net, z: z @ net.params["head"]["kernel"]
    model, n = Model(init, apply, features, head, "wide"), 2 * clients
    arrays = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), jax.eval_shape(init, jax.random.key(0)))
    task = adapters.adapter_task(model, arrays, adapters.lora(rank=1, dropout=0.0, targets="body"), classes=2, population=clients)
    examples = Examples(np.ones((n, 1024), np.float32), np.arange(n, dtype=np.int32) % 2)
    dataset = sources.Dataset("wide", examples, Examples(examples.x[:2], examples.y[:2]), ("a", "b"))
    data = federated_data.from_index(dataset, list(np.arange(n).reshape(clients, 2)), [np.arange(2)] * clients)
    build = functools.partial(fedoa, optimizer=local_training.sgd(0.1, momentum=0.5), batch=2, epochs=1)
    return simulator.Simulator(
        simulator.build_spec(simulator.one_group(build, task, clients), data, plan=client_loop.Plan(clients, 1))
    )


def test_a_round_of_a_method_takes_one_base_however_many_clients():
    """All that the compiled round takes grows by adapters and rows."""
    takes, base = {}, 4 * (1024 * 2048 + 2048 * 2)
    for clients in (6, 30):
        sim = wide(clients)
        held, key = sim.spec.host_arrays, jax.random.key_data(jax.random.key(0))
        state = jax.eval_shape(sim.compiled.programs.init_state, held, key)
        taken = sim.compiled.programs.run_resident_rounds.lower(held, state, np.int32(1)).compile().memory_analysis()
        takes[clients] = taken.argument_size_in_bytes + taken.temp_size_in_bytes + taken.output_size_in_bytes
    adapter, rows = 4 * (1024 + 2048), 2 * 4 * 1024
    assert base < takes[6] < 1.5 * base
    assert takes[30] - takes[6] < 24 * 12 * (adapter + rows) < base


def test_entries_are_trained_beside_it():
    task = toy.task_adapted()
    net = task.model.init(jax.random.key(0))
    assert sorted(net.params) == ["adapter", "head"]
    chex.assert_trees_all_equal(net.params["head"], task.frozen.params["head"])
    chex.assert_trees_all_equal_shapes(task.model.full_net(net), toy.model().init(jax.random.key(0)))
    x = toy.data().test.x
    other = net._replace(params=net.params | {"adapter": random_like(net.params["adapter"])})
    merged = toy.model().apply(task.model.full_net(other), x)[0]["logits"]
    np.testing.assert_allclose(task.model.apply(other, x)[0]["logits"], merged, atol=1e-5)
    np.testing.assert_allclose(task.model.head(other, task.model.features(other, x)[0]), merged, atol=1e-5)


def test_what_cannot_be_adapted_is_refused():
    settings = {"classes": 3, "population": 2}
    model, net = toy.model(), jax.device_get(toy.model().init(jax.random.key(0)))
    for spec, message in (
        ("lora(rank=0)", "rank=0 must be at least 1"),
        ("lora(alpha=0.0)", "alpha=0.0 must be positive"),
        ("bottleneck(dropout=1.0)", r"dropout=1.0 must be in \[0, 1\)"),
        ("lorra", "unknown adapter 'lorra'; allowed: lora, bottleneck. Did you mean 'lora'"),
    ):
        with pytest.raises(ValueError, match=message):
            adapters.parse(spec)
    with pytest.raises(TypeError, match="adapter 'lora' has no option 'scale'"):
        adapters.parse("lora(scale=2.0)")
    with pytest.raises(ValueError, match="unknown adapter target of toy6 'query'; allowed: body"):
        adapters.adapter_task(model, net, adapters.lora(), **settings)
    with pytest.raises(ValueError, match="unknown entry to train of toy6 'prompts'; allowed: body, head"):
        adapters.adapter_task(model, net, adapters.lora(targets="body"), ("prompts",), **settings)
    with pytest.raises(ValueError, match="toy6 needs frozen arrays for body"):
        adapters.adapter_task(
            model, net._replace(params={"head": net.params["head"]}), adapters.lora(targets="body"), "head", **settings
        )
    mlp = build("mlp", 3, (5,))
    with pytest.raises(ValueError, match="mlp does not use its kernels as x @ kernel"):
        adapters.adapter_task(mlp, mlp.init(jax.random.key(0)), adapters.lora(targets="dense1"), shape=(5,), **settings)


class Words(nnx.Module):
    """Reads token ids alone."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(20, 8, rngs=rngs)
        self.query = nnx.Linear(8, 8, rngs=rngs)
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def body(self, x):
        return self.embed(x).mean(1) @ self.query.kernel.get_value()


def test_a_network_of_token_ids_is_adapted():
    model = flax_adapter.build(Words, "words", 3, (7,), {})
    net = model.init(jax.random.key(0))
    task = adapters.adapter_task(model, net, adapters.lora(targets="query"), "head", classes=3, population=2, shape=(7,))
    assert task.model.apply(task.model.init(jax.random.key(1)), jnp.zeros((2, 7), int))[0]["logits"].shape == (2, 3)


def test_a_network_that_multiplies_its_inputs_first_takes_an_adapter():
    assert "adapter" in jax.eval_shape(toy.task_adapted(6, False).model.init, jax.random.key(0)).params
