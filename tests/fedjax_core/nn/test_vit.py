"""Vision transformers beside loops in numpy: tokens, blocks, prompts; sizes that are published."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from fedjax_core.nn import from_nnx
from fedjax_core.task import count_parameters

SHAPE, PATCH, WIDTH, DEPTH, HEADS = (8, 12, 3), 4, 8, 3, 2
TINY = {"patch": PATCH, "width": WIDTH, "depth": DEPTH, "heads": HEADS, "mlp": 3}
PROMPTS = {"none": {}, "shallow": {"prompts": 2, "deep": False}, "deep": {"prompts": 2}}


@functools.cache
def build(prompts="none", **options):
    return from_nnx.build("vit", 5, SHAPE, **TINY, **PROMPTS[prompts], **options)


@functools.cache
def compiled(prompts="none"):
    return jax.jit(functools.partial(build(prompts).apply, intermediates=True))


def net(prompts="none"):
    """Any numbers, so that each one counts: no zeros for biases, no ones for scales."""
    like = jax.eval_shape(build(prompts).init, jax.random.key(0))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0.2, 0.5, leaf.shape).astype(np.float32), like)


def images(rows=2):
    return np.random.default_rng(2).normal(size=(rows, *SHAPE)).astype(np.float32)


def naive(params, image, prompts, epsilon=1e-6):
    """The states after embedding and every block, and the features, of one image: loops over patches, blocks, heads, tokens."""

    def norm(token, p):
        return (token - token.mean()) / math.sqrt(token.var() + epsilon) * p["scale"] + p["bias"]

    def gelu(v):
        return v * 0.5 * (1 + erf(v / math.sqrt(2)))

    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    tokens = [p["cls"]]
    for i in range(0, SHAPE[0], PATCH):
        for j in range(0, SHAPE[1], PATCH):
            tile = image[i : i + PATCH, j : j + PATCH].astype(np.float64)
            tokens.append((tile[..., None] * p["patches"]["kernel"]).sum((0, 1, 2)) + p["patches"]["bias"])
    tokens = [token + place for token, place in zip(tokens, p["positions"], strict=True)]
    states = [np.stack(tokens)]
    if prompts == "shallow":
        tokens = [tokens[0], *p["prompts"], *tokens[1:]]
    for layer in range(DEPTH):
        if prompts == "deep":
            tokens = [tokens[0], *p["prompts"][layer], *(tokens[1:] if layer == 0 else tokens[1 + len(p["prompts"][layer]) :])]
        b = jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["blocks"])
        normed, size = [norm(token, b["norm1"]) for token in tokens], WIDTH // HEADS
        attended = [b["out"]["bias"].copy() for _ in tokens]
        for head in range(HEADS):
            q, k, v = (
                [token @ b["qkv"]["kernel"][:, part, head] + b["qkv"]["bias"][part, head] for token in normed] for part in range(3)
            )
            for t in range(len(tokens)):
                score = np.array([q[t] @ other / math.sqrt(size) for other in k])
                share = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
                attended[t] += sum(s * value for s, value in zip(share, v, strict=True)) @ b["out"]["kernel"][head]
        tokens = [token + change for token, change in zip(tokens, attended, strict=True)]
        for t, token in enumerate(tokens):
            hidden = gelu(norm(token, b["norm2"]) @ b["mlp1"]["kernel"] + b["mlp1"]["bias"])
            tokens[t] = token + hidden @ b["mlp2"]["kernel"] + b["mlp2"]["bias"]
        states.append(np.stack(tokens))
    return states, norm(tokens[0], p["norm"])


@pytest.mark.parametrize("prompts", PROMPTS)
def test_equals_loops(prompts):
    params, x = net(prompts), images()
    outputs, stats = compiled(prompts)(params, x)
    assert stats == {}
    seen = outputs["intermediates"]
    names = ("embedding", "block1", "block2", "block3")
    assert set(seen) == {*names, "final"}
    for row in range(len(x)):
        states, features = naive(params.params, x[row], prompts)
        for name, state in zip(names, states, strict=True):
            np.testing.assert_allclose(seen[name][row], state, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(outputs["features"][row], features, rtol=1e-4, atol=1e-4)
        head = params.params["head"]
        np.testing.assert_allclose(outputs["logits"][row], features @ head["kernel"] + head["bias"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(seen["final"][:, 0], outputs["features"])


def test_without_prompts_it_is_the_plain_one():
    """Bit for bit, and drawn alike; prompts are one more entry and nothing else."""
    x, key = images(), jax.random.key(4)
    plain, none = build(), from_nnx.build("vit", 5, SHAPE, **TINY, prompts=0, deep=False)
    found = jax.jit(functools.partial(none.apply, intermediates=True))(net(), x)
    chex.assert_trees_all_equal(found, compiled()(net(), x))
    bound = math.sqrt(6 / (3 * PATCH**2 + WIDTH))
    drawn, params = (jax.jit(m.init)(key).params for m in (plain, build("deep")))
    own = params.pop("prompts")
    assert own.shape == (DEPTH, 2, WIDTH)
    assert 0.5 * bound < float(jnp.max(jnp.abs(own))) <= bound
    chex.assert_trees_all_equal(params, drawn)
    for leaf in (drawn["patches"]["kernel"], drawn["positions"], *(drawn["blocks"][m]["kernel"] for m in ("qkv", "out", "mlp1"))):
        assert 0.015 < float(jnp.std(leaf)) < 0.025
    assert jax.eval_shape(build("shallow").init, key).params["prompts"].shape == (2, WIDTH)


@pytest.mark.parametrize(
    ("name", "numbers", "width", "depth"),
    [("vit_s16", 21_665_664, 384, 12), ("vit_b16", 85_798_656, 768, 12), ("vit_l16", 303_301_632, 1024, 24)],
)
def test_published_parameter_counts(name, numbers, width, depth):
    """FedHPL, Tables 5 and 6; what is trained in units of 1024: ViT-S 3.76 + 4.5 n deep and + 0.375 n shallow, ..."""

    def params(**options):
        return jax.eval_shape(from_nnx.build(name, 10, (224, 224, 3), **options).init, jax.random.key(0)).params

    plain = params()
    head = count_parameters(plain["head"])
    assert count_parameters(plain) - head == numbers
    assert round(head / 1024, 2) == {384: 3.76, 768: 7.51, 1024: 10.01}[width]
    for n in (1, 3):
        deep, shallow = params(prompts=n), params(prompts=n, deep=False)
        assert count_parameters(deep["prompts"]) / 1024 == {384: 4.5, 768: 9, 1024: 24}[width] * n
        assert count_parameters(shallow["prompts"]) / 1024 == {384: 0.375, 768: 0.75, 1024: 1}[width] * n
        assert deep["prompts"].shape == (depth, n, width)
        assert plain == {entry: tree for entry, tree in deep.items() if entry != "prompts"}


def dots(jaxpr):
    """Every matrix product of a program, those inside of loops too: whether it is a batched one."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield bool(equation.params["dimension_numbers"][1][0])
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from dots(inner)


def test_clients_with_one_backbone_share_its_products():
    """Each has prompts of its own: of a block's products only the two of attention are batched, in training too."""
    params, x = net("deep").params, jnp.stack([images(), images()[::-1]])
    prompts = jnp.stack([params["prompts"], 2 * params["prompts"]])

    def loss(prompts, x):
        outputs, _ = build("deep").apply(net("deep")._replace(params=params | {"prompts": prompts}), x)
        return jnp.sum(jnp.sin(outputs["logits"]))

    assert sum(dots(jax.make_jaxpr(jax.vmap(loss))(prompts, x).jaxpr)) == 2
    both = jax.jit(jax.vmap(jax.value_and_grad(loss)))
    assert sum(dots(jax.make_jaxpr(both)(prompts, x).jaxpr)) == 2 + 4
    values, gradients = both(prompts, x)
    single = jax.jit(jax.value_and_grad(loss))
    for client in range(2):
        value, gradient = single(prompts[client], x[client])
        np.testing.assert_allclose(values[client], value, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradients[client], gradient, rtol=1e-3, atol=1e-4)
    assert np.abs(gradients).max(-1).min() > 0  # every prompt of every block counts


def test_epsilon_counts():
    params, x = net(), images(1)
    features = jax.jit(build(epsilon=0.5).features)(params, x)[0]
    np.testing.assert_allclose(features[0], naive(params.params, x[0], "none", 0.5)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch": 3}, "patch=3 of a vit does not divide images of 8 x 12"),
        ({"patch": 0}, "patch=0 of a vit must be at least 1"),
        ({"heads": 3}, "heads=3 of a vit do not divide its width=8"),
        ({"depth": 0}, "depth=0 of a vit must be at least 1"),
        ({"prompts": -1}, r"prompts=-1 of a vit must be 0 \(none\) or more"),
        ({"promts": 1}, "unknown option of vit 'promts'; allowed: .*Did you mean 'prompts'"),
    ],
)
def test_errors(options, words):
    with pytest.raises(ValueError, match=words):
        from_nnx.build("vit", 5, SHAPE, **(TINY | options))


def test_sizes_of_named_networks_are_fixed():
    with pytest.raises(ValueError, match="unknown option of vit_s16 'width'"):
        from_nnx.build("vit_s16", 5, (32, 32, 3), width=8)
