"""Encoded images, and folders of them."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_core.data.memory import check_fits
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.splits import TestFraction, choose_rows, stratified_fraction
from fedjax_core.values import AtLeastOne

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def folder(
    data_dir: Path,
    path: str,
    domains: bool = False,
    channels: Literal[1, 3] = 3,
    size: AtLeastOne | None = None,
    test_fraction: TestFraction | None = None,
    training_examples: int | None = None,
) -> Dataset:
    """A folder of images: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` with `test_fraction`.

    With `domains`, a level above the classes: `train/DOMAIN/CLASS/*` and `test/...`, or `DOMAIN/CLASS/*` with `test_fraction`.
    Classes, domains and files come in alphabetical order; images are the files that end in one of `IMAGE_ENDINGS`.

    Args:
      data_dir: where relative paths start.
      path: the folder.
      domains: whether there is a level of domains.
      channels: 3 or 1, what images are converted to.
      size: resize all images to size x size pixels; needed where they differ.
      test_fraction: part of each class (and domain) that becomes the test set, where the folder has none; fixed seed.
      training_examples: so many of the training images, as `data.examples` takes them; the others are not read. None: all.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: it has no images or no test set, an image is broken, too large or of another size, or a file that is called
        like an image is none (a pipe, a broken link); the message has its path.
    """
    root = data_dir / Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"folder:{path}: there is no folder {root}; put it there, or give its full path.")
    halves = [root / part for part in ("train", "test")]
    has_split = all(half.is_dir() for half in halves)
    if has_split and test_fraction is not None:
        raise ValueError(f"{root}: test_fraction={test_fraction}, but the folder has train/ and test/ of its own.")
    if not has_split and test_fraction is None:
        raise ValueError(f"{root}: has no train/ and test/; pass test_fraction, such as 0.2, to split it.")
    files = [_image_files(half, domains) for half in (halves if has_split else [root])]
    listed = [entry for half in files for entry in half]
    class_names = sorted({class_name for _, class_name, _ in listed})
    domain_names = sorted({domain for domain, _, _ in listed})
    if test_fraction is not None:
        is_test = stratified_fraction([*_codes(files[0], class_names, domain_names)], test_fraction)
        files = [[entry for entry, held in zip(files[0], is_test, strict=True) if held == part] for part in (False, True)]
    chosen = choose_rows(_codes(files[0], class_names, domain_names)[0], training_examples)
    if chosen is not None:
        files[0] = [files[0][i] for i in chosen]
    if size is not None:
        number = sum(map(len, files))
        check_fits(f"size={size} for {number} images", (number, size, size, channels), np.uint8)
    arrays = []
    for half in files:
        names = [str(file) for _, _, file in half]
        x = decode(names.__getitem__, (file.read_bytes() for _, _, file in half), len(half), channels, size)
        arrays.append((x, *_codes(half, class_names, domain_names)))
    (train_x, train_y, train_domains), (test_x, test_y, test_domains) = arrays
    held = {"train_domains": train_domains, "test_domains": test_domains, "domain_names": domain_names} if domains else {}
    return from_arrays(train_x, train_y, test_x, test_y, class_names, name=root.name, **held)


def _codes(
    entries: Sequence[tuple[str, str, Path]], class_names: Sequence[str], domain_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes and domains of images, as (domain, class, file), by their places among the names."""
    of_class, of_domain = ({name: i for i, name in enumerate(names)} for names in (class_names, domain_names))
    y = np.array([of_class[name] for _, name, _ in entries], np.int32)
    return y, np.array([of_domain[name] for name, _, _ in entries], np.int32)


def _image_files(root: Path, domains: bool) -> list[tuple[str, str, Path]]:
    """(domain, class, file) of each image under `root`, in order; the domain is "" if there are none."""

    def folders(parent: Path) -> list[Path]:
        return sorted(child for child in parent.iterdir() if child.is_dir() and not child.name.startswith("."))

    found = []
    for domain in folders(root) if domains else [root]:
        for class_folder in folders(domain):
            for file in sorted(class_folder.iterdir()):
                if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith("."):
                    if not file.is_file():  # to read a pipe would wait for ever
                        raise ValueError(f"{file}: is no regular file (a folder, a pipe, or a link to nothing); take it out.")
                    found.append((domain.name if domains else "", class_folder.name, file))
    if not found:
        layout = "DOMAIN/CLASS/*" if domains else "CLASS/*"
        raise ValueError(f"{root}: no images; looked for {layout} ending in {', '.join(IMAGE_ENDINGS)}.")
    return found


def decode(where: Callable[[int], str], blobs: Iterable[bytes], count: int, channels: int, size: int | None) -> np.ndarray:
    """Decodes encoded images into one array [count, H, W, channels] uint8.

    Args:
      where: what messages call image i, such as its path.
      blobs: the encoded images.
      count: how many there are.
      channels: 1 (grey) or 3 (colour), what they are converted to.
      size: they are resized to size x size pixels, bilinearly; None: all must have the size of the first.

    Raises:
      ValueError: no images; one that cannot be decoded, has more pixels than Pillow decodes (179 million), or another size; or more
        than fit into memory.
    """
    from PIL import Image, UnidentifiedImageError

    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (colour).")
    if size is not None:
        if size < 1:
            raise ValueError(f"size={size}: must be >= 1.")
        check_fits(f"size={size} for {count} images", (count, size, size, channels), np.uint8)
    out = None
    for i, blob in enumerate(blobs):
        try:
            image = Image.open(io.BytesIO(blob)).convert("L" if channels == 1 else "RGB")
        except UnidentifiedImageError as error:
            raise ValueError(f"{where(i)} cannot be decoded (it is no image that Pillow knows).") from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{where(i)} cannot be decoded ({error}).") from error
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        width, height = image.size
        if out is None:
            check_fits(
                f"{where(i)} and {count - 1} more images as large; pass size to make them smaller",
                (count, height, width, channels),
                np.uint8,
            )
            out = np.empty((count, height, width, channels), np.uint8)
        if out.shape[1:3] != (height, width):
            raise ValueError(
                f"{where(i)} is {height}x{width} and the first, {where(0)}, {out.shape[1]}x{out.shape[2]}; pass size to resize all."
            )
        out[i] = np.asarray(image).reshape(height, width, channels)
    if out is None:
        raise ValueError("there are no images.")
    return out
