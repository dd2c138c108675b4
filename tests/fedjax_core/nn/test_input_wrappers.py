"""Images are resized and framed before a network sees them, and normalised after that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import nn

KEY = jax.random.key(0)
X = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 2)).astype(np.uint8)


def first(model, net, x):
    """What the first layer of a flat network without bias makes of its inputs, times the identity: the inputs."""
    size = net.params["dense1"]["kernel"].shape[0]
    net = net._replace(params=net.params | {"dense1": {"kernel": jnp.eye(size), "bias": jnp.zeros(size)}})
    return np.asarray(model.apply(net, x)[0]["features"])


def flat(shape, **options):
    height, width = nn.image_size(shape, **options) or (0, 0)
    model = nn.build("mlp", 3, shape, -9.0, 2.0, widths=(height * width * shape[2],), **options)
    return model, jax.jit(model.init)(KEY)


def test_the_frame_goes_around_the_image_and_is_normalised_with_it():
    model, net = flat(X.shape[1:], frame=2)
    rows, columns = np.asarray(net.params["prompts"]["rows"]), np.asarray(net.params["prompts"]["columns"])
    assert rows.shape == (2, 2, 8, 2)
    assert columns.shape == (2, 3, 2, 2)
    seen = first(model, net, X).reshape(2, 7, 8, 2)
    for b in range(2):
        for i in range(7):
            for j in range(8):
                if i < 2:
                    pixel = rows[0, i, j]
                elif i >= 5:
                    pixel = rows[1, i - 5, j]
                elif j < 2:
                    pixel = columns[0, i - 2, j]
                elif j >= 6:
                    pixel = columns[1, i - 2, j - 6]
                else:
                    pixel = X[b, i - 2, j - 2] / 255
                np.testing.assert_allclose(seen[b, i, j], (pixel + 9) / 2, rtol=1e-6)
    for prompts in (rows, columns):
        assert prompts.min() >= 0
        assert prompts.max() < 1
        assert prompts.std() > 0.2


def test_resizing_is_bilinear_between_centres_of_pixels():
    model, net = flat(X.shape[1:], resize=(6, 8))
    seen = first(model, net, X).reshape(2, 6, 8, 2) * 2 - 9
    x = X / 255
    for i in range(6):
        for j in range(8):
            at = [(min(max((k + 0.5) / 2 - 0.5, 0), n - 1), n) for k, n in ((i, 3), (j, 4))]
            (top, left), (down, right) = zip(*((int(p), min(int(p) + 1, n - 1)) for p, n in at), strict=True)
            dy, dx = (p - int(p) for p, _ in at)
            upper = (1 - dx) * x[:, top, left] + dx * x[:, top, right]
            lower = (1 - dx) * x[:, down, left] + dx * x[:, down, right]
            np.testing.assert_allclose(seen[:, i, j], (1 - dy) * upper + dy * lower, atol=1e-5)


def test_resized_then_framed():
    shape = X.shape[1:]
    assert nn.image_size(shape, resize=5, frame=1) == (7, 7)
    model, net = flat(shape, resize=5, frame=1)
    smaller, plain = flat(shape, resize=5)
    inside = first(model, net, X).reshape(2, 7, 7, 2)[:, 1:-1, 1:-1].reshape(2, -1)
    np.testing.assert_allclose(inside, first(smaller, plain, X), atol=1e-6)
    features = model.features(net, X)[0]
    np.testing.assert_allclose(model.head(net, features), model.apply(net, X)[0]["logits"], rtol=1e-6)


def test_numbers_of_the_frames_of_the_papers_networks():
    shapes = lambda size: jax.eval_shape(nn.build("resnet18", 10, (size, size, 3), frame=3).init, KEY).params["prompts"]
    counts = {size: {name: nn.count_parameters(leaf) for name, leaf in shapes(size).items()} for size in (32, 224)}
    assert counts == {32: {"columns": 576, "rows": 684}, 224: {"columns": 4032, "rows": 4140}}


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("cnn", (5,), {}, r"model 'cnn' reads images \[H, W, C\], and these examples have the shape \[5\]; 'mlp' reads rows"),
        ("mlp", (5,), dict(resize=4), r"resize=4, frame=0 of mlp: inputs of shape \[5\] are no images"),
        ("cnn", (8, 8, 1), dict(frame=-1), "resize=None, frame=-1 of cnn: must be positive"),
        ("cnn", (8, 8, 1), dict(resize=0), "resize=0, frame=0 of cnn: must be positive"),
        ("cnn", (8, 8, 1), dict(resize=(4, 4, 4)), "must be positive, one number or"),
        ("cnn", (8, 8, 1), dict(resize=(4,)), r"resize=\(4,\), .* must be positive, one number or"),
        ("vit", (8, 8, 1), dict(frame=1, prompts=2, patch=2), "frame=1 of vit: it has prompts=2 tokens"),
        ("resnet8", (8, 8, 1), dict(fram=1), r"unknown option of resnet8 'fram'; allowed: .*Did you mean 'frame'\?"),
    ],
)
def test_refused(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        nn.build(name, 3, shape, **options)
