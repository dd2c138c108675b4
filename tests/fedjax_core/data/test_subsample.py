"""Smaller versions of data sets keep what they should."""

import numpy as np
import pytest

from fedjax_core.algorithm import Examples
from fedjax_core.data import sources
from fedjax_core.data.subsample import match_image_shape, subsample


def dataset(size=4):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 30, 10]).astype(np.int32)
    x = rng.integers(0, 256, (100, size, size, 3), np.uint8)
    clients = np.arange(100) % 7
    return sources.from_arrays(x, y, x[:5], y[:5], ["a", "b", "c"], train_clients=clients, test_clients=clients[:5])


def test_shares_of_classes_are_kept_and_rows_stay_together():
    whole = dataset()
    part = subsample(whole, examples=20)
    assert np.bincount(part.train.y).tolist() == [12, 6, 2]
    places = [int(np.flatnonzero((whole.train.x == row).all((1, 2, 3)))[0]) for row in part.train.x]
    assert places == sorted(places)
    np.testing.assert_array_equal(part.train.y, whole.train.y[places])
    np.testing.assert_array_equal(part.train_clients, whole.train_clients[places])
    np.testing.assert_array_equal(part.test.x, whole.test.x)
    np.testing.assert_array_equal(subsample(whole, examples=20).train.x, part.train.x)


def test_a_pixel_is_the_mean_of_what_it_covers():
    whole = dataset()
    part = subsample(whole, size=2)
    for images, small in ((whole.train.x, part.train.x), (whole.test.x, part.test.x)):
        blocks = images.reshape(-1, 2, 2, 2, 2, 3).astype(float).mean((2, 4))
        np.testing.assert_allclose(small, blocks, atol=1)  # rounded along each axis


def test_grey_images_keep_their_channel():
    grey = dataset()
    grey = sources.from_arrays(grey.train.x[..., :1], grey.train.y, grey.test.x[..., :1], grey.test.y)
    assert subsample(grey, size=8).train.x.shape == (100, 8, 8, 1)


def test_nothing_asked_nothing_changed():
    whole = dataset()
    part = subsample(whole)
    np.testing.assert_array_equal(part.train.x, whole.train.x)
    np.testing.assert_array_equal(part.train.y, whole.train.y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "data.size=0"),
        ({"examples": 0}, "data.examples=0"),
        ({"examples": 101}, "data.examples=101 must be an integer from 1 to the 100"),
        ({"size": 99_999_999_999}, "data.size=99999999999 for 105 images: an array .* TiB, this machine has"),
        ({"examples": "x", "field": "public: "}, "public: examples='x' must be an integer"),
    ],
)
def test_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        subsample(dataset(), **options)


def test_features_cannot_be_resized():
    features = sources.from_arrays(np.zeros((4, 3)), np.arange(4) % 2, np.zeros((2, 3)), np.arange(2))
    with pytest.raises(ValueError, match=r"images of bytes, not float32\[4, 3\]"):
        subsample(features, size=4)


@pytest.mark.parametrize("channels", [1, 3])
def test_adapted_to_other_images(channels):
    """As large, as many channels, labels as they were; grey is the mean of the colours."""
    whole = dataset().train
    grey = whole._replace(x=whole.x[..., :1])
    like = Examples(np.zeros((2, 2, 4, channels), np.uint8), np.zeros(2, np.int32))
    for examples in (whole, grey):
        found = match_image_shape(examples, like)
        assert found.x.shape == (100, 2, 4, channels)
        assert found.x.dtype == np.uint8
        np.testing.assert_array_equal(found.y, examples.y)
        rows = examples.x.reshape(100, 2, 2, 4, -1).astype(float).mean(2)
        rows = rows if examples.x.shape[-1] == channels else rows.mean(-1, keepdims=True)
        np.testing.assert_allclose(found.x, np.broadcast_to(rows, found.x.shape), atol=1)
    assert match_image_shape(whole, whole) is whole


def test_grey_is_rounded():
    pixel, like = np.array([[[[0, 1, 1]]]], np.uint8), np.zeros((1, 1, 1, 1), np.uint8)
    assert match_image_shape(Examples(pixel, np.zeros(1)), Examples(like, np.zeros(1))).x.tolist() == [[[[1]]]]


def test_what_is_not_an_image_is_not_adapted():
    rows = Examples(np.zeros((2, 5), np.float32), np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"public examples uint8\[4, 4, 3\] cannot be made float32\[5\]"):
        match_image_shape(dataset().train, rows)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_no_channel_says_how_opaque_a_pixel_is(channels):
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4, channels), np.uint8)
    x[..., -1] //= 8
    small = subsample(sources.from_arrays(x, [0, 1] * 3, x, [0, 1] * 3), size=2).train.x
    np.testing.assert_allclose(small, x.reshape(6, 2, 2, 2, 2, channels).astype(float).mean((2, 4)), atol=1)
