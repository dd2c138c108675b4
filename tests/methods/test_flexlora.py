"""FlexLoRA against dense products and their singular value decompositions; and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.training import adapters
from methods.fedit import fedit
from methods.flexlora import flexlora
from tests import naive, toy
from tests.fedjax_core.training.test_client_ranks import RANK, RANKS, after_two_rounds, cut, task
from tests.methods.test_fedper import made
from tests.methods.test_hetlora import cohort_of


def product(params, rank=RANK):
    body = params["adapter"]["body"]
    return np.asarray(body["a"], np.float64)[:, :rank] @ np.asarray(body["b"], np.float64)[:rank]


def oracle(rounds=2):
    """Returns the last round's mean of products, and the parameters."""
    model, clients = task().model, naive.rows(toy.data())
    w, m = naive.arrays(model.init(naive.stream(0, naive.INIT)).params), None
    for r in range(rounds):
        products, deltas, sizes = [], [], []
        for i in naive.cohort(0, r, len(clients), 5):
            own, key = cut(w, RANKS[i]), naive.client_key(0, r, i)
            end = naive.train(model, own, {}, *clients[i], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5).params
            products.append(product(end))
            deltas.append(naive.minus(end["head"], own["head"]))
            sizes.append(len(clients[i][1]))
        m = sum(size * each for size, each in zip(sizes, products, strict=True)) / sum(sizes)
        u, s, vt = np.linalg.svd(m, full_matrices=False)
        factors = {"a": u[:, :RANK].astype(np.float32), "b": (s[:, None] * vt)[:RANK].astype(np.float32)}
        w = {"adapter": {"body": factors}, "head": naive.plus(w["head"], naive.mean(deltas, sizes))}
    return m, w


def test_equals_the_dense_loops_at_each_rank():
    sim, state = after_two_rounds(tuple(RANKS), method=flexlora)
    params, (_, w) = state.server.net.params, oracle()
    for rank in range(1, RANK + 1):
        np.testing.assert_allclose(product(params, rank), product(w, rank), atol=1e-5)
    chex.assert_trees_all_close(params["head"], w["head"], atol=5e-6)
    a, b = params["adapter"]["body"]["a"], params["adapter"]["body"]["b"]
    np.testing.assert_allclose(a.T @ a, np.eye(RANK), atol=1e-5)
    assert np.all(np.diff(np.linalg.norm(b, axis=1)) <= 0)
    sizes = 4 * (RANKS * (toy.INPUTS + 6) + 6 * 3 + 3)
    assert (sim.spec.shapes.down, sim.spec.shapes.up) == (sizes.mean(), sizes.mean())


def test_the_nearest_adapter_of_stacked_kernels():
    """Also of a kernel with fewer inputs than the rank; absent clients may have sent anything."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    trees = {"layers": {"a": draw(3, 2, 7, 3), "b": draw(3, 2, 3, 5)}, "body": {"a": draw(3, 2, 3), "b": draw(3, 3, 6)}}
    weights = np.array([0.5, 0, 0.25], np.float32)
    trees = jax.tree.map(lambda x: np.where(np.arange(3).reshape(-1, *(1,) * (x.ndim - 1)) == 1, np.nan, x), trees)
    near = jax.jit(adapters.compress_products)(trees, weights)
    for name, own in trees.items():
        dense = sum(w * own["a"][c] @ own["b"][c] for c, w in enumerate(weights) if w)
        u, s, vt = np.linalg.svd(dense, full_matrices=False)
        np.testing.assert_allclose(near[name]["a"] @ near[name]["b"], (u[..., :3] * s[..., None, :3]) @ vt[..., :3, :], atol=1e-5)
        assert near[name]["a"].shape == own["a"].shape[1:]
    square = sum(np.sum((own["a"][0] @ own["b"][0]) ** 2) for own in trees.values())
    norm = adapters.product_norm(jax.tree.map(lambda x: x[0], trees))
    np.testing.assert_allclose(norm, np.sqrt(square), rtol=1e-5)


def finish(method):
    """Returns the server after one round of client 3 alone."""
    algorithm = made(method, epochs=2)(task())
    server, cohort = algorithm.server_init(jax.random.key(3)), cohort_of((3,))
    out = toy.update_client(algorithm, server.net, (), 3)
    if method is fedit:
        return server._replace(net=jax.tree.map(lambda w, d: w + d, server.net, out.uplink))
    stacked = out.uplink._replace(factors=jax.tree.map(lambda x: x[None], out.uplink.factors))
    return algorithm.server_update(server, stacked, cohort, jax.random.key(0))[0]


def test_one_client_of_the_networks_rank_has_its_own_update():
    after, expected = finish(flexlora).net.params, finish(fedit).net.params
    np.testing.assert_allclose(product(after), product(expected), atol=1e-6)
    chex.assert_trees_all_close(after["head"], expected["head"])


def test_a_server_that_gets_nothing_stays():
    algorithm = made(flexlora)(task())
    server = algorithm.server_init(jax.random.key(3))
    factors = {adapters.ENTRY: jax.tree.map(lambda x: jnp.full((2, *x.shape), jnp.nan), server.net.params[adapters.ENTRY])}
    zeros = jax.tree.map(jnp.zeros_like, server.net._replace(params={"head": server.net.params["head"]}))
    uplinks = algorithm.collect._replace(factors=factors, rest=zeros)
    after, _ = algorithm.server_update(server, uplinks, cohort_of((3, 4))._replace(examples=jnp.zeros(2, jnp.int32)), None)
    chex.assert_trees_all_equal(after, server)


def bottleneck_task():
    model, kind = toy.model(statistics=False), adapters.bottleneck(rank=2, targets=("body",))
    return adapters.adapter_task(model, model.init(jax.random.key(3)), kind, "head", classes=3, population=8)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (toy.task, "flexlora needs a network with an adapter; set config.adapter"),
        (bottleneck_task, "a bottleneck is not linear"),
    ],
)
def test_networks_that_it_refuses(task, message):
    with pytest.raises(ValueError, match=message):
        made(flexlora)(task())
