"""A smaller version of a data set: fewer pixels, fewer training examples."""

import numpy as np
from PIL import Image

from fedjax_core.algorithm import Examples
from fedjax_core.data.row_readers import check_fits
from fedjax_core.data.sources import Dataset
from fedjax_core.data.sources.file_checks import stratified_mask
from fedjax_core.data.target_types import stratify


def subsample(dataset: Dataset, size: int | None = None, examples: int | None = None, field: str = "data.") -> Dataset:
    """Resizes images, and keeps some of the training examples.

    Args:
      dataset: with uint8 images, if they are to be resized.
      size: images become size x size, each pixel the mean of what it covers (larger ones: the
        nearest pixel); None: as they are.
      examples: of training, with the classes' shares kept, always the same ones; None: all. The
        test set is kept whole.
      field: of the config, with which messages name an option.

    Raises:
      ValueError: size or examples is out of range, there are no images to resize, or larger ones
        would not fit into memory.
    """
    if examples is not None:
        number = len(dataset.train.y)
        if not _is_int(examples) or not 1 <= examples <= number:
            raise ValueError(f"{field}examples={examples!r} must be an integer from 1 to the {number} training examples")
        dataset = dataset.select(np.flatnonzero(stratified_mask(stratify(dataset.train.y), examples)))
    if size is None:
        return dataset
    (x, y), (test_x, test_y) = dataset.train, dataset.test
    if not _is_int(size) or size < 1 or x.ndim != 4 or x.dtype != np.uint8:
        raise ValueError(f"{field}size={size!r} must be an integer >= 1, of images of bytes, not {x.dtype}{list(x.shape)}")
    number = len(x) + len(test_x)
    check_fits(f"{field}size={size} for {number} images", (number, size, size, x.shape[-1]), np.uint8)
    return dataset._replace(train=Examples(_resize(x, size, size), y), test=Examples(_resize(test_x, size, size), test_y))


def match_image_shape(examples: Examples, like: Examples) -> Examples:
    """Converts images to the size and channels of `like`; grey is the mean of the colours.

    Raises:
      ValueError: one of the two has no uint8 images, and their shapes differ.
    """
    x, wanted = examples.x, like.x.shape[1:]
    if x.shape[1:] == wanted and x.dtype == like.x.dtype:
        return examples
    for images in (x, like.x):
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"public examples {x.dtype}{list(x.shape[1:])} cannot be made {like.x.dtype}{list(wanted)}")
    x = x if x.shape[1:3] == wanted[:2] else _resize(x, *wanted[:2])
    if x.shape[-1] != wanted[-1]:
        x = np.repeat(np.round(x.mean(-1, keepdims=True)).astype(np.uint8), wanted[-1], -1)
    return examples._replace(x=x)


def _is_int(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _resize(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes images [n, H, W, C] uint8 to [n, height, width, C]."""
    channels = images.shape[-1]
    if channels not in (1, 3):  # Pillow would take the last of 2 or 4 for how opaque a pixel is
        return np.concatenate([_resize(images[..., c : c + 1], height, width) for c in range(channels)], -1)

    def resize(image):
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        return np.asarray(picture.resize((width, height), Image.Resampling.BOX)).reshape(height, width, -1)

    return np.stack([resize(image) for image in images])
