"""Losses against their sums over rows and classes; what is masked is neither seen nor differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.training import losses

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 3)).astype(np.float32)
TARGETS = RNG.normal(size=(5, 3)).astype(np.float32)
Y = np.array([0, 2, 1, 1, 2])
MASK = np.array([True, False, True, True, False])


def test_cross_entropy():
    rows = [-np.log(np.exp(o[y]) / sum(np.exp(v) for v in o)) for o, y in zip(LOGITS.astype(float), Y, strict=True)]
    np.testing.assert_allclose(losses.cross_entropy_per_example(LOGITS, Y), rows, rtol=1e-5)
    expected = sum(r for r, m in zip(rows, MASK, strict=True) if m) / 3
    np.testing.assert_allclose(losses.cross_entropy(LOGITS, Y, MASK), expected, rtol=1e-5)


def test_other_losses_of_labels():
    """Against their sums over rows and classes; at 0 both are the cross-entropy."""
    rng = np.random.default_rng(0)
    logits, y, mask = rng.normal(size=(5, 4)).astype(np.float32), np.array([0, 3, 1, 2, 2]), np.array([1, 1, 0, 1, 1], bool)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    smooth, focal = [], []
    for i in np.flatnonzero(mask):
        target = np.full(4, 0.2 / 4) + 0.8 * (np.arange(4) == y[i])
        smooth.append(-sum(target[c] * np.log(p[i, c]) for c in range(4)))
        focal.append(-((1 - p[i, y[i]]) ** 3) * np.log(p[i, y[i]]))
    np.testing.assert_allclose(losses.smoothed_cross_entropy(logits, y, mask, 0.2), np.mean(smooth), rtol=1e-5)
    np.testing.assert_allclose(losses.focal_loss(logits, y, mask, 3.0), np.mean(focal), rtol=1e-5)
    plain = losses.cross_entropy(logits, y, mask)
    np.testing.assert_allclose(
        [losses.smoothed_cross_entropy(logits, y, mask, 0.0), losses.focal_loss(logits, y, mask, 0.0)], plain, rtol=1e-6
    )
    gradient = jax.grad(lambda logits: losses.focal_loss(logits, y, mask))(logits * 100)
    assert np.isfinite(gradient).all()


def test_cross_entropy_of_huge_logits():
    logits = np.array([[1e4, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(losses.cross_entropy_per_example(logits, np.array([1])), [1e4])


def test_squared_error_is_a_mean_over_all_entries():
    entries = [(LOGITS[i, d] - TARGETS[i, d]) ** 2 for i in range(5) for d in range(3) if MASK[i]]
    np.testing.assert_allclose(losses.squared_error(LOGITS, TARGETS, MASK), np.mean(entries), rtol=1e-5)


def test_absolute_error_is_a_mean_over_all_entries():
    entries = [abs(LOGITS[i, d] - TARGETS[i, d]) for i in range(5) for d in range(3) if MASK[i]]
    np.testing.assert_allclose(losses.absolute_error(LOGITS, TARGETS, MASK), np.mean(entries), rtol=1e-5)
    gradient = jax.grad(lambda o: losses.absolute_error(o, TARGETS, MASK))(jnp.asarray(TARGETS))
    np.testing.assert_array_equal(gradient, np.zeros((5, 3)))


def test_a_distance_is_the_norm_and_its_gradient_a_unit_vector():
    a, b = jnp.asarray(LOGITS), jnp.asarray(TARGETS)
    np.testing.assert_allclose(losses.euclidean_distances(a, b, 1e-5), np.linalg.norm(LOGITS - TARGETS, axis=1), rtol=1e-6)
    slope = jax.grad(lambda a: jnp.sum(losses.euclidean_distances(a, b, 1e-5)))(a)
    np.testing.assert_allclose(slope, (LOGITS - TARGETS) / np.linalg.norm(LOGITS - TARGETS, axis=1, keepdims=True), rtol=1e-5)
    nothing = jax.value_and_grad(lambda a: losses.euclidean_distances(a, jnp.zeros(3), 1e-5))(jnp.zeros(3))
    np.testing.assert_array_equal(jnp.append(*nothing), np.zeros(4))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_two_programs_make_of_the_same_is_not_apart(dtype):
    """Two layers, rounded after each; and by another program, which sums from the other end and rounds once."""
    kernels = jax.random.normal(jax.random.key(0), (2, 64, 64)).astype(dtype) / 8
    x = jax.random.normal(jax.random.key(1), (5, 64)).astype(dtype)

    def network(x):
        for kernel in kernels:
            x = jnp.tanh(x @ kernel)
        return x

    def other(x):
        x = x.astype("float32")
        for kernel in kernels:
            x = jnp.tanh(x[:, ::-1] @ kernel[::-1].astype("float32"))
        return x.astype(dtype)

    g, e = jax.jit(network)(x).astype("float32"), jax.jit(other)(x).astype("float32")
    assert np.abs(e - g).max() > 0
    tolerance = losses.rounding_tolerance(kernels)
    assert tolerance == pytest.approx({"float32": 1.0e-5, "bfloat16": 0.03126}[dtype], rel=0.01)
    everywhere = jnp.ones(5, bool)
    for loss in (
        lambda e: jnp.sum(losses.euclidean_distances(e, g, tolerance)),
        lambda e: losses.absolute_error(e.astype(dtype), g.astype(dtype), everywhere),
    ):
        value, slope = jax.value_and_grad(loss)(e)
        assert float(value) == 0
        np.testing.assert_array_equal(slope, np.zeros(g.shape))
    assert (losses.euclidean_distances(e + 2 * tolerance * g, g, tolerance) > 0).all()


def test_rounding_is_that_of_the_coarsest():
    whole = {"kernel": jnp.ones(2, "bfloat16"), "tokens": jnp.arange(3)}
    assert (
        losses.rounding_tolerance(jnp.ones(2), whole)
        == losses.rounding_tolerance(whole)
        > 1000 * losses.rounding_tolerance(jnp.ones(2))
    )
    assert losses.rounding_tolerance(()) == losses.rounding_tolerance(jnp.ones(2))


def test_squared_distances_are_of_each_pair_of_rows():
    a, b = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0]]), np.array([[1.0, 1.0], [3.0, 0.0]])
    expected = [[sum((x - y) ** 2 for x, y in zip(p, q, strict=True)) for q in b] for p in a]
    np.testing.assert_allclose(losses.squared_distances(jnp.asarray(a), jnp.asarray(b)), expected)


def test_the_mean_over_nothing_is_zero_with_zero_gradient():
    nobody = np.zeros(5, bool)
    for loss in (lambda o: losses.cross_entropy(o, Y, nobody), lambda o: losses.squared_error(o, TARGETS, nobody)):
        value, gradient = jax.value_and_grad(loss)(jnp.asarray(LOGITS))
        assert float(value) == 0.0
        np.testing.assert_array_equal(gradient, np.zeros((5, 3)))


def test_masked_rows_hold_anything_and_get_no_gradient():
    values = jnp.where(MASK, 1.0, jnp.nan)
    assert float(losses.masked_mean(values, MASK)) == 1.0
    gradient = jax.grad(lambda v: losses.masked_mean(v, MASK))(values)
    np.testing.assert_allclose(gradient, np.where(MASK, 1 / 3, 0), rtol=1e-6)


def test_unit_has_length_one_and_leaves_zeros():
    x = jnp.asarray([[3.0, 4.0], [0.0, 0.0], [-2.0, 0.0]])
    np.testing.assert_allclose(losses.normalize(x), [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)
    gradient = jax.grad(lambda x: losses.normalize(x)[:, 0].sum())(x)
    np.testing.assert_allclose(gradient, [[0.128, -0.096], [0, 0], [0, 0]], atol=1e-6)  # (1 - u u^T) / length


def test_distillation_is_the_divergence_from_the_teacher():
    rng = np.random.default_rng(0)
    logits, teacher = (rng.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
    mask = np.array([True, True, False, True])
    p, q = (np.exp(x / 2) / np.exp(x / 2).sum(1, keepdims=True) for x in (teacher, logits))
    expected = (p * np.log(p / q)).sum(1)[mask].mean()
    np.testing.assert_allclose(losses.distillation(logits, teacher, mask, 2.0), expected, rtol=1e-5)
    assert not np.any(jax.grad(losses.distillation, 1)(logits, teacher, mask, 2.0))
    assert float(losses.distillation(teacher, teacher, mask)) == 0.0


def test_of_sequences_the_tokens_that_are_not_negative_count():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 4, 5)).astype(np.float32)
    y = np.array([[-1, 2, 0, 4], [-1, -1, -1, 3], [1, 1, 1, 1]])
    mask = np.array([True, True, False])
    each = [-np.log(np.exp(logits[b, t, y[b, t]]) / np.exp(logits[b, t]).sum()) for b in range(2) for t in range(4) if y[b, t] >= 0]
    np.testing.assert_allclose(losses.cross_entropy(logits, y, mask), np.mean(each), rtol=1e-5)
    gradient = jax.grad(losses.cross_entropy)(jnp.asarray(logits), y, mask)
    assert (np.abs(np.asarray(gradient)).sum(-1) > 0).tolist() == [
        [False, True, True, True],
        [False, False, False, True],
        [False] * 4,
    ]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_has_a_gradient_where_a_row_is_certain(gamma):
    """Of a row in the mask or out of it; with gamma 0 that of the cross-entropy."""
    logits, y = jnp.asarray([[30.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), jnp.asarray([0, 0])
    gradient = jax.jit(jax.grad(lambda logits, mask: losses.focal_loss(logits, y, mask, gamma)))
    for mask in ([True, True], [False, True], [True, False]):
        slope = gradient(logits, jnp.asarray(mask))
        assert np.isfinite(slope).all()
        if gamma == 0:
            wanted = jax.grad(lambda logits, mask: losses.cross_entropy(logits, y, mask))(logits, jnp.asarray(mask))
            np.testing.assert_allclose(slope, wanted, rtol=1e-6)


@pytest.mark.parametrize("lowest", [-1e9, -1e30])
def test_smoothing_leaves_out_classes_that_are_not_there(lowest):
    there, y, mask = jnp.asarray([[1.0, 2.0], [0.5, -1.0]]), jnp.asarray([0, 1]), jnp.asarray([True, True])
    smoothed = jax.jit(jax.value_and_grad(lambda logits, mask: losses.smoothed_cross_entropy(logits, y, mask, 0.2)))
    loss, slope = smoothed(jnp.pad(there, ((0, 0), (0, 2)), constant_values=lowest), mask)
    wanted, wanted_slope = smoothed(there, mask)
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    np.testing.assert_allclose(slope, np.pad(wanted_slope, ((0, 0), (0, 2))), rtol=1e-5)
    nowhere = smoothed(jnp.full((2, 4), lowest), ~mask)
    jax.tree.map(lambda found: np.testing.assert_array_equal(found, np.zeros(found.shape)), nowhere)
