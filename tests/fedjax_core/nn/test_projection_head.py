"""Projections between a body and a new head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.nn import count_parameters
from fedjax_core.nn.projection_head import apply_linear, init_linear, with_projection
from tests import toy

MODEL = toy.model()


def test_a_layer():
    made = init_linear(jax.random.key(0), 400, 300)
    assert made["bias"].tolist() == [0.0] * 300
    assert abs(float(jnp.std(made["kernel"])) - 0.05) < 0.001
    x = jnp.ones((2, 400))
    np.testing.assert_allclose(
        apply_linear(made | {"bias": jnp.arange(300.0)}, x)[1], made["kernel"].sum(0) + np.arange(300), atol=1e-4
    )
    np.testing.assert_allclose(
        apply_linear(init_linear(jax.random.key(0), 400, 300, bias=False), x)[0], made["kernel"].sum(0), atol=1e-5
    )


@pytest.mark.parametrize("hidden", [True, False])
def test_projected(hidden):
    model = with_projection(MODEL, 4, 2, hidden)
    net, x = model.init(jax.random.key(0)), toy.data().test.x[:5]
    outputs, stats = model.apply(net, x, train=True, mask=jnp.array([True] * 4 + [False]))
    body = net._replace(params={"body": net.params["body"]})
    z, moved = MODEL.features(body, x, train=True, mask=jnp.array([True] * 4 + [False]))
    if hidden:
        first = net.params["projection"]["hidden"]
        z = np.maximum(z @ first["kernel"] + first["bias"][None], 0)
    expected = z @ net.params["projection"]["out"]["kernel"]
    np.testing.assert_allclose(outputs["features"], expected, atol=1e-6)
    np.testing.assert_allclose(outputs["logits"], expected @ net.params["head"]["kernel"], atol=1e-6)
    assert outputs["logits"].shape == (5, 4)
    np.testing.assert_array_equal(stats["mean"], moved["mean"])
    assert count_parameters(net.params) == (5 * 6 + 6) + hidden * (6 * 6 + 6) + (6 * 2 + 2) + (2 * 4 + 4)
