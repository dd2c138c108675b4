"""Every augmentation against a restatement in NumPy loops; draws that depend on an example's key alone."""

import colorsys
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import ClientData, Examples
from fedjax_core.training import local_training
from fedjax_core.training.augment import color, geometric, pipeline
from tests import toy

RNG = np.random.default_rng(0)
SHAPES = [(8, 8, 3), (7, 5, 3), (5, 9, 1), (1, 1, 1)]
EVERYTHING = "resized_crop(scale=(0.2, 1.0)) | greyscale | colour_jitter | crop(padding=1) | flip"


def image(shape=(7, 5, 3), seed=0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape).astype(np.float32)


@functools.cache
def many(text: str, shape=(7, 5, 3), n: int = 400) -> np.ndarray:
    """[n, H, W, C] results for one image, each with a key of its own."""
    keys = jax.random.split(jax.random.key(1), n)
    return np.asarray(jax.jit(jax.vmap(pipeline.parse(text), (0, None)))(keys, image(shape)))


def apart(results: np.ndarray) -> list[np.ndarray]:
    """The different ones."""
    return list({result.tobytes(): result for result in results}.values())


# ------------------------------------------------------------------------------------------------ places


def shifted(x: np.ndarray, down: int, right: int) -> np.ndarray:
    """x moved, black where nothing came from."""
    out = np.zeros_like(x)
    for i, j in itertools.product(range(x.shape[0]), range(x.shape[1])):
        if 0 <= i + down < x.shape[0] and 0 <= j + right < x.shape[1]:
            out[i, j] = x[i + down, j + right]
    return out


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_crop_is_each_shift_equally_often(shape):
    wanted = {shifted(image(shape), dy, dx).tobytes(): 0 for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    for result in many("crop(padding=1)", shape):
        wanted[result.tobytes()] += 1  # a KeyError is a result that is no shift
    counts = np.array(list(wanted.values()))
    assert len(counts) == 9
    assert np.sum((counts - 400 / 9) ** 2 / (400 / 9)) < 27  # chi-square, 8 degrees of freedom: 0.1 % lie above 26


def test_crop_wider_than_the_image_is_refused():
    """Some of its windows would hold nothing."""
    with pytest.raises(ValueError, match="augmentation crop: padding=5 of images 5x9 must be less than 5, their smaller side"):
        pipeline.parse("crop(padding=5)")(jax.random.key(0), jnp.zeros((5, 9, 1)))


def test_flip():
    x = image()
    found = many("flip")
    flipped = (found == x[:, ::-1]).all((1, 2, 3))
    assert np.all(flipped | (found == x).all((1, 2, 3)))
    assert 0.4 < flipped.mean() < 0.6
    assert 0.15 < (many("flip(probability=0.2)") == x[:, ::-1]).all((1, 2, 3)).mean() < 0.25


@pytest.mark.parametrize("shape", SHAPES)
def test_what_does_nothing_does_nothing(shape):
    x = image(shape)
    nothing = [
        "crop(padding=0)",
        "flip(probability=0.0)",
        "resized_crop(scale=(1.0, 1.0), ratio=({0}, {0}))",
        "greyscale(probability=0)",
    ]
    nothing += ["colour_jitter(brightness=0, contrast=0, saturation=0, hue=0)", "normalise(mean=0.0, std=1.0)"]
    for text in nothing:
        found = pipeline.parse(text.format(shape[1] / shape[0]))(jax.random.key(3), jnp.asarray(x))
        np.testing.assert_array_equal(found, x, err_msg=text)
        assert found.dtype == x.dtype


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_certain_happens_always(shape):
    x = image(shape)
    key = jax.random.key(3)
    np.testing.assert_array_equal(pipeline.parse("flip(probability=1.0)")(key, x), x[:, ::-1])
    grey = pipeline.parse("greyscale(probability=1.0)")(key, x)
    assert grey.shape == x.shape
    np.testing.assert_allclose(grey, np.broadcast_to(grey_of(x)[..., None], x.shape), atol=1e-6)


# ------------------------------------------------------------------------------------------------ windows


def windowed(x: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    """A window at the size of the image: each pixel from the four around its centre, none of them outside of the window."""
    cut = x.astype(np.float64)[top : top + height, left : left + width]
    out = np.zeros(x.shape)
    for i, j in itertools.product(range(x.shape[0]), range(x.shape[1])):
        y, z = (i + 0.5) * height / x.shape[0] - 0.5, (j + 0.5) * width / x.shape[1] - 0.5
        y0, z0 = int(np.floor(y)), int(np.floor(z))
        for a, b in itertools.product((y0, y0 + 1), (z0, z0 + 1)):
            weight = (1 - abs(y - a)) * (1 - abs(z - b))
            out[i, j] += weight * cut[min(max(a, 0), height - 1), min(max(b, 0), width - 1)]
    return out


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_resize_is_bilinear_and_stays_in_the_window(shape):
    x = image(shape)
    resize = jax.jit(geometric.resize)
    for height, width in {(1, 1), (2, 3), (shape[0], 1), (1, shape[1]), shape[:2]}:
        for top, left in {(0, 0), (shape[0] - height, shape[1] - width)}:
            found = resize(x, *np.float32([top, left, height, width]))
            np.testing.assert_allclose(found, windowed(x, top, left, height, width), atol=1e-6)
            outside = np.full_like(x, 1e6)
            outside[top : top + height, left : left + width] = x[top : top + height, left : left + width]
            np.testing.assert_array_equal(resize(outside, *np.float32([top, left, height, width])), found)


def test_windows_lie_inside_and_are_as_asked():
    draw = functools.partial(geometric.window, height=60, width=80, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    found = np.stack(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(2), 500)), -1)
    top, left, height, width = found.T
    np.testing.assert_array_equal(found, np.round(found))
    assert np.all((top >= 0) & (left >= 0) & (top + height <= 60) & (left + width <= 80) & (height > 0) & (width > 0))
    area, shape = height * width / (60 * 80), width / height
    assert area.min() > 0.19
    assert area.max() < 0.51
    assert abs(area.mean() - 0.35) < 0.02
    assert shape.min() > 0.48
    assert shape.max() < 2.1
    assert abs(np.log(shape).mean()) < 0.15  # as many wide as tall, but for those that do not fit
    for start, space in ((top, 60 - height), (left, 80 - width)):
        assert abs((start / np.maximum(space, 1)).mean() - 0.5) < 0.05
        assert start.min() == 0
        assert np.any(start == space)


@pytest.mark.parametrize(
    ("height", "width", "ratio", "wanted"),
    [
        (10, 40, (1.9999, 2.0), (0, 10, 10, 20)),  # too wide an image: all of its height
        (40, 10, (0.5, 0.5001), (10, 0, 20, 10)),  # too tall a one: all of its width
        (10, 12, (0.5, 0.5), (0, 3, 10, 5)),
    ],
)
def test_windows_that_never_fit_give_the_middle(height, width, ratio, wanted):
    """Of the image's whole area at a ratio that it has not, no window fits."""
    assert tuple(map(int, geometric.window(jax.random.key(0), height, width, (1.0, 1.0), ratio))) == wanted


def test_resized_crop_takes_the_drawn_window():
    x, key = image((9, 12, 3)), jax.random.key(5)
    place = np.asarray(geometric.window(key, 9, 12, (0.2, 0.6), (0.75, 4 / 3)), int)
    found = pipeline.resized_crop((0.2, 0.6))(key, x)
    np.testing.assert_allclose(found, windowed(x, *place), atol=1e-6)


# ------------------------------------------------------------------------------------------------ colours


def grey_of(x: np.ndarray) -> np.ndarray:
    return x[..., 0] if x.shape[-1] == 1 else 0.2989 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]


def brightness(x, f):
    return np.clip(x * f, 0, 1)


def contrast(x, f):
    return np.clip(f * x + (1 - f) * grey_of(x).mean(), 0, 1)


def saturation(x, f):
    return np.clip(f * x + (1 - f) * grey_of(x)[..., None], 0, 1)


def hue(x, turn):
    out = np.empty_like(x)
    for i, j in np.ndindex(x.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*x[i, j].tolist())
        out[i, j] = colorsys.hsv_to_rgb((h + turn) % 1, s, v)
    return out


NAIVE = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
CORNERS = np.array(list(itertools.product((0.0, 0.5, 1.0), repeat=3)), np.float32).reshape(9, 3, 3)  # greys, ties, black, white


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("x", [image(), CORNERS], ids=["random", "corners"])
def test_adjustments(name, x):
    adjust = jax.jit(color.ADJUST[name])
    for amount in (-0.5, -0.3, 0.0, 0.2, 0.5) if name == "hue" else (0.0, 0.6, 1.0, 1.4, 2.0):
        found = np.stack(adjust(tuple(np.moveaxis(x, -1, 0)), np.float32(amount)), -1)
        np.testing.assert_allclose(found, NAIVE[name](x.astype(np.float64), amount), atol=2e-6, err_msg=f"{amount}")
    whole = 1.0  # a factor of one, or all the way round
    np.testing.assert_allclose(np.stack(adjust(tuple(np.moveaxis(x, -1, 0)), np.float32(whole)), -1), x, atol=1e-6)


@pytest.mark.parametrize("channels", [3, 1])
def test_colour_jitter_is_all_of_them_in_the_drawn_order(channels):
    x = image((6, 5, channels))
    amounts = {"brightness": 0.4, "contrast": 0.3, "saturation": 0.5, "hue": 0.2}
    names = list(amounts)[: 4 if channels == 3 else 2]
    keys = jax.random.split(jax.random.key(4), 60)
    found = jax.jit(jax.vmap(pipeline.colour_jitter(**amounts), (0, None)))(keys, x)
    orders = set()
    for key, result in zip(keys, found, strict=True):
        of_order, of_amounts = jax.random.split(key)
        order = np.argsort(jax.random.uniform(of_order, (len(names),)))
        u = np.asarray(jax.random.uniform(of_amounts, (len(names),)), np.float64)
        wanted = x.astype(np.float64)
        for i in order:
            amount = amounts[names[i]]
            wanted = NAIVE[names[i]](wanted, (0 if names[i] == "hue" else 1) - amount + 2 * amount * u[i])
        np.testing.assert_allclose(result, wanted, atol=1e-5)
        orders.add(tuple(order))
    assert len(orders) > (15 if channels == 3 else 1)  # of 24, or of 2


def test_colour_jitter_leaves_out_what_is_zero_and_never_inverts():
    x = image()
    keys = jax.random.split(jax.random.key(4), 200)
    found = jax.vmap(pipeline.colour_jitter(brightness=3.0, contrast=0, saturation=0, hue=0), (0, None))(keys, x * 0.1)
    factors = found[:, 0, 0, 0] / (0.1 * x[0, 0, 0])
    assert 0 <= factors.min() < 0.1  # max(0, 1 - 3) ... 1 + 3
    assert 3.9 < factors.max() <= 4.001
    np.testing.assert_allclose(found, factors[:, None, None, None] * (0.1 * x)[None], rtol=1e-5)


def test_normalise():
    x = image()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    wanted = np.stack([(x[..., c] - mean[c]) / std[c] for c in range(3)], -1)
    np.testing.assert_allclose(pipeline.normalise(mean, std)(jax.random.key(0), x), wanted, rtol=1e-6)
    np.testing.assert_allclose(pipeline.parse("normalise(mean=0.5, std=0.25)")(jax.random.key(0), x), (x - 0.5) * 4, rtol=1e-6)


# ------------------------------------------------------------------------------------------------ keys, batches, dtypes


def test_parts_draw_apart_and_from_left_to_right():
    x = image()
    key = jax.random.key(7)
    first, second = jax.random.split(key)
    found = pipeline.parse("crop(padding=2) | flip(probability=1.0)")(key, x)
    np.testing.assert_array_equal(found, pipeline.crop(2)(first, x)[:, ::-1])
    found = pipeline.parse("flip(probability=1.0) | crop(padding=2)")(key, x)
    np.testing.assert_array_equal(found, pipeline.crop(2)(second, x[:, ::-1]))
    both = many("flip | flip")  # two flips cancel, so half of the images come back: they do not share their draw
    assert 0.4 < (both == x).all((1, 2, 3)).mean() < 0.6


def test_an_example_draws_from_its_key_alone():
    """The same key gives the same bits; neither the rows beside it nor how many there are change its view."""
    pixels = RNG.integers(0, 256, (6, 7, 5, 3)).astype(np.uint8)
    run = jax.jit(pipeline.augment_batch(pipeline.parse(EVERYTHING)))
    whole, again, other = (np.asarray(run(jax.random.key(k), pixels)) for k in (0, 0, 1))
    np.testing.assert_array_equal(again, whole)
    assert np.all(np.abs(other - whole).max((1, 2, 3)) > 0)
    beside = pixels.copy()
    beside[[0, 1, 2, 3, 5]] = 0
    np.testing.assert_array_equal(run(jax.random.key(0), beside)[4], whole[4])
    alone = jax.jit(pipeline.parse(EVERYTHING))(jax.random.fold_in(jax.random.key(0), 4), pixels[4].astype(np.float32) / 255)
    np.testing.assert_allclose(alone, whole[4], atol=1e-6)


def test_a_vmap_over_clients_or_a_scan_over_steps_changes_nothing():
    pixels = RNG.integers(0, 256, (2, 4, 7, 5, 3)).astype(np.uint8)
    run = pipeline.augment_batch(
        pipeline.parse("greyscale(probability=0.5) | crop(padding=2) | colour_jitter(saturation=0, hue=0)")
    )
    keys = jax.random.split(jax.random.key(0), 2)
    mapped = jax.jit(jax.vmap(run))(keys, pixels)
    np.testing.assert_allclose(mapped[1, :3], jax.jit(run)(keys[1], pixels[1, :3]), atol=1e-6)
    np.testing.assert_allclose(mapped, jax.jit(lambda xs: jax.lax.map(lambda kx: run(*kx), xs))((keys, pixels)), atol=1e-6)


def test_bytes_become_parts_of_one_and_floats_keep_their_type():
    pixels = RNG.integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
    run = pipeline.augment_batch(pipeline.parse("flip(probability=1.0)"))
    found = run(jax.random.key(0), jnp.asarray(pixels))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, pixels[:, :, ::-1] / 255, rtol=1e-6)
    x = jnp.asarray(pixels / 255, jnp.bfloat16)
    found = jax.jit(pipeline.augment_batch(pipeline.parse(EVERYTHING)))(jax.random.key(0), x)
    assert (found.dtype, found.shape) == (jnp.bfloat16, x.shape)
    assert found.min() >= 0
    assert found.max() <= 1


# ------------------------------------------------------------------------------------------------ in training


def model():
    """The toy model on images of 1 x INPUTS x 1."""
    inner = toy.model()

    def flat(x):
        return x.reshape(len(x), -1)

    return inner._replace(
        apply=lambda net, x, *a, **k: inner.apply(net, flat(x), *a, **k),
        features=lambda net, x, *a, **k: inner.features(net, flat(x), *a, **k),
    )


def test_a_model_sees_views_in_training_only():
    plain, augmented = model(), pipeline.with_augmentation(model(), "flip(probability=1.0)")
    net = plain.init(jax.random.key(0))
    x, key, mask = (
        image((4, 1 * toy.INPUTS, 1)).reshape(4, 1, toy.INPUTS, 1),
        jax.random.key(1),
        jnp.array([True, True, True, False]),
    )
    for f in ("apply", "features"):
        here, there = getattr(augmented, f), getattr(plain, f)
        jax.tree.map(np.testing.assert_array_equal, here(net, x), there(net, x))
        jax.tree.map(np.testing.assert_array_equal, here(net, x, key), there(net, x, key))
        jax.tree.map(np.testing.assert_array_equal, here(net, x, key, True, mask), there(net, x[:, :, ::-1], key, True, mask))
    jax.tree.map(np.testing.assert_array_equal, augmented.init(key), plain.init(key))
    np.testing.assert_array_equal(augmented.head(net, jnp.ones((2, 6))), plain.head(net, jnp.ones((2, 6))))
    with pytest.raises(ValueError, match="augmentation in training needs a key"):
        augmented.apply(net, x, train=True)


def test_training_on_views_ignores_padding():
    augmented = pipeline.with_augmentation(model(), "flip")
    net = augmented.init(jax.random.key(0))
    arrays = Examples(jnp.asarray(image((9, toy.INPUTS, 1)).reshape(9, 1, toy.INPUTS, 1)), jnp.arange(9) % toy.CLASSES)
    rows = jnp.array([3, 1, 8, 5, 6])

    def trained(model, index):
        train = local_training.fit(local_training.model_loss(model), local_training.sgd(0.1)(0), epochs=1, batch=2)
        return jax.jit(train)(net, ClientData(arrays, index, jnp.int32(5)), jax.random.key(3)).net

    views = trained(augmented, rows)
    padded = trained(augmented, jnp.pad(rows, (0, 4), constant_values=2))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), views, padded)
    assert np.abs(views.params["body"]["kernel"] - trained(model(), rows).params["body"]["kernel"]).max() > 1e-4


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("flipp", ValueError, "unknown augmentation 'flipp'; allowed: crop, flip, .* Did you mean 'flip'?"),
        ("flip | ", ValueError, "unknown augmentation ''"),
        ("", ValueError, "unknown augmentation ''"),
        ("crop(4)", ValueError, "'crop(4)' is not of the form name(key=value, ...)"),
        ("crop(pading=4)", TypeError, "augmentation 'crop' has no option 'pading'; it takes: padding. Did you mean 'padding'?"),
        ("normalise(mean=0.5)", TypeError, "augmentation 'normalise' needs the option 'std'"),
        ("crop(padding=-1)", ValueError, "augmentation 'crop': padding=-1 must be at least 0"),
        ("flip(probability=1.5)", ValueError, "augmentation 'flip': probability=1.5 must be in [0, 1]"),
        ("greyscale(probability=-0.1)", ValueError, "augmentation 'greyscale': probability=-0.1 must be in [0, 1]"),
        ("resized_crop(scale=(0.0, 1.0))", ValueError, "'resized_crop': scale=(0.0, 1.0) must be a tuple, each positive"),
        ("resized_crop(scale=(0.5, 1.5))", ValueError, "resized_crop: scale=(0.5, 1.5) must be 0 < lowest <= highest <= 1"),
        ("resized_crop(scale=0.5)", ValueError, "augmentation 'resized_crop': scale=0.5 must be a tuple of 2"),
        ("crop(padding='x')", ValueError, "augmentation 'crop': padding='x' must be an int"),
        ("resized_crop(ratio=(2.0, 1.0))", ValueError, "resized_crop: ratio=(2.0, 1.0) must be 0 < lowest <= highest"),
        ("colour_jitter(hue=0.6)", ValueError, "augmentation 'colour_jitter': hue=0.6 must be in [0, 0.5]"),
        ("colour_jitter(contrast=-1)", ValueError, "augmentation 'colour_jitter': contrast=-1 must be at least 0"),
        ("normalise(mean=0.0, std=0.0)", ValueError, "augmentation 'normalise': std=0.0 must be positive"),
    ],
)
def test_mistakes_are_named(text, kind, said):
    with pytest.raises(kind, match=re.escape(said).replace(re.escape(".*"), ".*")) as caught:
        pipeline.parse(text)
    assert "\n" not in str(caught.value)


def test_mistakes_about_the_data_are_named():
    with pytest.raises(ValueError, match="the network normalizes its inputs"):
        pipeline.with_augmentation(model(), "flip | normalise(mean=0.5, std=0.5)")
    with pytest.raises(ValueError, match=r"for images \[H, W, C\], these examples are \[5\]"):
        pipeline.augment_batch(pipeline.flip())(jax.random.key(0), jnp.zeros((2, 5)))
    for name in ("greyscale", "colour_jitter"):
        with pytest.raises(ValueError, match=f"{name} is for images of 1 or 3 channels, these have 2"):
            pipeline.parse(name)(jax.random.key(0), jnp.zeros((4, 4, 2)))


def test_an_augmentation_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def darker(factor: float = 0.5):\n    return lambda key, x: factor * x\n"
        "def cut(rows: int):\n    return lambda key, x: x[rows:]\n"
    )
    x = image()
    found = pipeline.parse(f"flip(probability=1.0) | {tmp_path}/mine.py:darker(factor=0.25)")(jax.random.key(0), jnp.asarray(x))
    np.testing.assert_allclose(found, 0.25 * x[:, ::-1])
    with pytest.raises(ValueError, match=r"mine\.py:darker': factor='x' must be a finite number"):
        pipeline.parse(f"{tmp_path}/mine.py:darker(factor='x')")
    cut = pipeline.augment_batch(pipeline.parse(f"{tmp_path}/mine.py:cut(rows=2)"))
    with pytest.raises(
        ValueError, match=r"augmentation made float32\[5, 5, 3\] of an image float32\[7, 5, 3\]: it must keep shape"
    ):
        cut(jax.random.key(0), jnp.asarray(x)[None])
