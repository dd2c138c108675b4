"""Encoded images, and folders of them."""

import io
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_core.data.row_readers import check_fits
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import TestFraction, choose_stratified, stratified_fraction_mask
from fedjax_core.option_types import AtLeastOne

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
DEEP_FORMATS = ("PNG", "PPM")  # whose mode "I" has 16 bits
FEW_LEVELS = 32  # grey levels of 256: deep images that stay below use an eighth of their depth at most
BITS_PER_SAMPLE = 258  # tag of TIFF
log = logging.getLogger("fedjax_core")


def folder(
    data_dir: Path,
    path: str,
    domains: bool = False,
    channels: Literal[1, 3] = 3,
    size: AtLeastOne | None = None,
    test_fraction: TestFraction | None = None,
    training_examples: int | None = None,
) -> Dataset:
    """Reads a folder of images: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` with
    `test_fraction`.

    With `domains`, a level above the classes: `train/DOMAIN/CLASS/*` and `test/...`, or
    `DOMAIN/CLASS/*` with `test_fraction`. Classes, domains and files come in alphabetical order;
    images are the files that end in one of `IMAGE_ENDINGS`. Images of more than 8 bits are scaled
    to bytes by their depth (`to_bytes`).

    Args:
      data_dir: where relative paths start.
      path: the folder.
      domains: whether there is a level of domains.
      channels: 3 or 1, what images are converted to.
      size: resize all images to size x size pixels; needed where they differ.
      test_fraction: part of each class (and domain) that becomes the test set, where the folder has
        none; fixed seed.
      training_examples: so many of the training images, as `data.examples` takes them; the others
        are not read. None: all.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: it has no images or no test set, an image is broken, too large, of another size or
        of no depth (floats), or a file that is called like an image is none (a pipe, a broken
        link); the message has its path.
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
        is_test = stratified_fraction_mask([*_codes(files[0], class_names, domain_names)], test_fraction)
        files = [[entry for entry, held in zip(files[0], is_test, strict=True) if held == part] for part in (False, True)]
    chosen = choose_stratified(_codes(files[0], class_names, domain_names)[0], training_examples)
    if chosen is not None:
        files[0] = [files[0][i] for i in chosen]
    if size is not None:
        number = sum(map(len, files))
        check_fits(f"size={size} for {number} images", (number, size, size, channels), np.uint8)
    arrays = []
    for half in files:
        names = [str(file) for _, _, file in half]
        x = decode_images(names.__getitem__, (file.read_bytes() for _, _, file in half), len(half), channels, size)
        arrays.append((x, *_codes(half, class_names, domain_names)))
    (train_x, train_y, train_domains), (test_x, test_y, test_domains) = arrays
    held = {"train_domains": train_domains, "test_domains": test_domains, "domain_names": domain_names} if domains else {}
    return from_arrays(train_x, train_y, test_x, test_y, class_names, name=root.name, **held)


def _codes(
    entries: Sequence[tuple[str, str, Path]], class_names: Sequence[str], domain_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes and domains of images, as (domain, class, file), by their places among
    the names.
    """
    of_class, of_domain = ({name: i for i, name in enumerate(names)} for names in (class_names, domain_names))
    y = np.array([of_class[name] for _, name, _ in entries], np.int32)
    return y, np.array([of_domain[name] for name, _, _ in entries], np.int32)


def _image_files(root: Path, domains: bool) -> list[tuple[str, str, Path]]:
    """Lists (domain, class, file) of each image under `root`, in order; the domain is "" if there
    are none.
    """

    def folders(parent: Path) -> list[Path]:
        return sorted(child for child in parent.iterdir() if child.is_dir() and not child.name.startswith("."))

    entries = []
    for domain in folders(root) if domains else [root]:
        for class_folder in folders(domain):
            for file in sorted(class_folder.iterdir()):
                if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith("."):
                    if not file.is_file():  # to read a pipe would wait for ever
                        raise ValueError(f"{file}: is no regular file (a folder, a pipe, or a link to nothing); take it out.")
                    entries.append((domain.name if domains else "", class_folder.name, file))
    if not entries:
        layout = "DOMAIN/CLASS/*" if domains else "CLASS/*"
        raise ValueError(f"{root}: no images; looked for {layout} ending in {', '.join(IMAGE_ENDINGS)}.")
    return entries


def decode_images(where: Callable[[int], str], blobs: Iterable[bytes], count: int, channels: int, size: int | None) -> np.ndarray:
    """Decodes encoded images into one array [count, H, W, channels] uint8; deeper ones by their
    depth (`to_bytes`).

    Args:
      where: what messages call image i, such as its path.
      blobs: the encoded images.
      count: how many there are.
      channels: 1 (grey) or 3 (colour), what they are converted to.
      size: they are resized to size x size pixels, bilinearly; None: all must have the size of the
        first.

    Raises:
      ValueError: no images; one that cannot be decoded, has more pixels than Pillow decodes (179
        million), another size, or no depth that is known; or more than fit into memory.
    """
    from PIL import Image, UnidentifiedImageError

    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (colour).")
    if size is not None:
        if size < 1:
            raise ValueError(f"size={size}: must be >= 1.")
        check_fits(f"size={size} for {count} images", (count, size, size, channels), np.uint8)
    out, brightest = None, None
    for i, blob in enumerate(blobs):
        try:
            image = Image.open(io.BytesIO(blob))
            image.load()
        except UnidentifiedImageError as error:
            raise ValueError(f"{where(i)} cannot be decoded (it is no image that Pillow knows).") from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{where(i)} cannot be decoded ({error}).") from error
        pixels = to_bytes(image, where(i))
        if is_deep(image):
            brightest = max(brightest or 0, pixels.getextrema()[1])
        image = convert(pixels, channels, where(i))
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
    warn_if_dark(brightest, where(0))
    return out


def is_deep(image: Any) -> bool:
    """Returns whether a Pillow image has more than 8 bits for each number."""
    return image.mode.startswith(("I", "F"))


def to_bytes(image: Any, what: str) -> Any:
    """Returns a Pillow image of at most 8 bits for each number: the image itself, or a deeper one
    scaled by its depth.

    Pillow's own conversion cuts a deeper image at 255, so that it is plain white, or black where
    pixels are fractions.

    Args:
      image: of any mode.
      what: begins the message, such as the file.

    Raises:
      ValueError: how bright white is in this image is not known: it has floats, or integers of 32
        bits.
    """
    if not is_deep(image):
        return image
    pixels = np.asarray(image)
    bits = _depth_of(image)
    if bits is None or pixels.min() < 0 or pixels.max() >= 2**bits:
        raise ValueError(
            f"{what} is an image of mode {image.mode!r} with pixels from {pixels.min():g} to {pixels.max():g}, and nothing says "
            "which of them is white: must have 8 or 16 bits; convert it, or give arrays of floats in [0, 1]."
        )
    from PIL import Image

    return Image.fromarray(np.round(pixels * (255 / (2**bits - 1))).astype(np.uint8))


def convert(image: Any, channels: int, what: str) -> Any:
    """Returns a Pillow image as grey (1 channel) or in colours (3).

    Raises:
      ValueError: Pillow cannot; the message begins with `what`.
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        return image.convert(mode)
    except ValueError as error:
        raise ValueError(f"{what} is an image of mode {image.mode!r}, which cannot become {mode!r} ({error}).") from error


def _depth_of(image: Any) -> int | None:
    """Returns the bits of a deep image, where they are known."""
    if image.mode.startswith("I;16"):
        bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))
        return int(bits[0] if isinstance(bits, tuple) else bits)
    return 16 if image.mode == "I" and image.format in DEEP_FORMATS else None


def warn_if_dark(brightest: int | None, what: str) -> None:
    """Warns of deep images that are nearly black as bytes: scans of 12 bits in files that say 16.

    Args:
      brightest: byte of all deep images; None: there are none.
      what: begins the line, such as the first file.
    """
    if brightest is not None and brightest < FEW_LEVELS:
        log.warning(
            "%s and the images that go with it use %d of 256 grey levels, scaled by the depth that their files say; if theirs is "
            "less, such as 12 bits in files of 16, scale them first, or give arrays",
            what,
            brightest + 1,
        )
