"""A smaller version of a data set, for machines that cannot afford the whole: fewer pixels, fewer
training examples.
"""

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
    train, test = dataset.train, dataset.test
    if size is None and examples is None:  # files are not read
        return dataset
    kept = np.arange(len(train.y))
    if examples is not None:
        if not _whole(examples) or not 1 <= examples <= len(kept):
            raise ValueError(f"{field}examples={examples!r} must be an integer from 1 to the {len(kept)} training examples")
        kept = np.flatnonzero(stratified_mask(stratify(train.y), examples))
    x, test_x = train.x[kept], test.x
    if size is not None:
        if not _whole(size) or size < 1 or x.ndim != 4 or x.dtype != np.uint8:
            raise ValueError(f"{field}size={size!r} must be an integer >= 1, of images of bytes: found {x.dtype}{list(x.shape)}")
        check_fits(
            f"{field}size={size} for {len(x) + len(test_x)} images", (len(x) + len(test_x), size, size, x.shape[-1]), np.uint8
        )
        x, test_x = (_resized(part, size, size) for part in (x, test_x))
    return dataset._replace(
        train=Examples(x, train.y[kept]),
        test=Examples(test_x, test.y),
        train_domains=None if dataset.train_domains is None else dataset.train_domains[kept],
        train_clients=None if dataset.train_clients is None else dataset.train_clients[kept],
    )


def match_image_shape(examples: Examples, like: Examples) -> Examples:
    """Converts images to the size and channels of `like`: resized as in `subsample`; grey from
    colours by their mean.

    Raises:
      ValueError: one of the two has no images of bytes, and their shapes differ.
    """
    x, wanted = examples.x, like.x.shape[1:]
    if x.shape[1:] == wanted and x.dtype == like.x.dtype:
        return examples
    for images in (x, like.x):
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"public examples {x.dtype}{list(x.shape[1:])} cannot be made {like.x.dtype}{list(wanted)}")
    x = x if x.shape[1:3] == wanted[:2] else _resized(x, *wanted[:2])
    if x.shape[-1] != wanted[-1]:
        x = np.repeat(np.round(x.mean(-1, keepdims=True)).astype(np.uint8), wanted[-1], -1)
    return examples._replace(x=x)


def _whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _resized(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes images [n, H, W, C] uint8 to [n, height, width, C]."""
    channels = images.shape[-1]
    if channels not in (1, 3):  # Pillow would take the last of 2 or 4 for how opaque a pixel is
        return np.concatenate([_resized(images[..., c : c + 1], height, width) for c in range(channels)], -1)

    def one(image):
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        return np.asarray(picture.resize((width, height), Image.Resampling.BOX)).reshape(height, width, -1)

    return np.stack([one(image) for image in images])
