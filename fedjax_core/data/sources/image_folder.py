"""Encoded images, and folders of them."""

import io
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


class ImageFile(NamedTuple):
    """An image of a folder, with its domain ("" if there are none) and its class."""

    domain: str
    class_name: str
    path: Path


def folder(
    data_dir: Path,
    path: str,
    domains: bool = False,
    channels: Literal[1, 3] = 3,
    size: AtLeastOne | None = None,
    test_fraction: TestFraction | None = None,
    training_examples: int | None = None,
) -> Dataset:
    """Reads a folder of images: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` to be split.

    With `domains`, a level above the classes: `train/DOMAIN/CLASS/*` and `test/...`, or
    `DOMAIN/CLASS/*`. Classes, domains and files come in alphabetical order; images are the files
    that end in one of `IMAGE_ENDINGS`. What else a class has is not read, of which a line warns.
    Images of more than 8 bits are scaled by their depth. Transparent pixels keep the colour that
    their file has for them, often black, of which a line warns, too.

    Args:
      path: the folder.
      domains: whether there is a level of domains.
      channels: 3 or 1, what images are converted to.
      size: resize all images to size x size pixels; needed where they differ.
      test_fraction: part of each class (and domain) that becomes the test set, where the folder has
        none; fixed seed.
      training_examples: as `data.examples`; the others are not read.

    Raises:
      ValueError: it, or a class that is not empty, has no images, it has no test set, an image is
        broken, too large, of another size or of no depth (floats), or a file that is called like an
        image is none (a pipe, a broken link); the message has its path.
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
    listed = [_list_images(half, domains) for half in (halves if has_split else [root])]
    parts = [images for images, _ in listed]
    if others := [path for _, paths in listed for path in paths]:
        log.warning("%s: %d files or folders beside images are not read, such as %s", root, len(others), others[0])
    images = [image for part in parts for image in part]
    classes = {name: i for i, name in enumerate(sorted({image.class_name for image in images}))}
    domain_index = {name: i for i, name in enumerate(sorted({image.domain for image in images}))}

    def encode(images: Sequence[ImageFile]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the classes and the domains, as indices of their names."""
        y = np.array([classes[image.class_name] for image in images], np.int32)
        return y, np.array([domain_index[image.domain] for image in images], np.int32)

    if test_fraction is not None:
        is_test = stratified_fraction_mask(encode(parts[0]), test_fraction)
        parts = [[image for image, held in zip(parts[0], is_test, strict=True) if held == part] for part in (False, True)]
    chosen = choose_stratified(encode(parts[0])[0], training_examples)
    if chosen is not None:
        parts[0] = [parts[0][i] for i in chosen]
    arrays: dict[str, Any] = {"domain_names": list(domain_index) if domains else ()}
    for part, images in zip(("train", "test"), parts, strict=True):
        blobs = (image.path.read_bytes() for image in images)
        arrays[f"{part}_x"] = decode_images(lambda i, images=images: str(images[i].path), blobs, len(images), channels, size)
        arrays[f"{part}_y"], image_domains = encode(images)
        arrays[f"{part}_domains"] = image_domains if domains else None
    return from_arrays(**arrays, class_names=list(classes), name=root.name)


def _list_images(root: Path, domains: bool) -> tuple[list[ImageFile], list[Path]]:
    """Returns the images of a folder, and what its classes have beside them."""

    def folders(parent: Path) -> list[Path]:
        return sorted(child for child in parent.iterdir() if child.is_dir() and not child.name.startswith("."))

    layout, endings = "DOMAIN/CLASS/*" if domains else "CLASS/*", ", ".join(IMAGE_ENDINGS)
    images, others = [], []
    for domain in folders(root) if domains else [root]:
        for class_folder in folders(domain):
            visible = sorted(path for path in class_folder.iterdir() if not path.name.startswith("."))
            files = [path for path in visible if path.suffix.lower() in IMAGE_ENDINGS]
            if visible and not files:
                holds = f"{class_folder}: has no images, but {len(visible)} other files or folders, such as {visible[0].name!r}"
                raise ValueError(f"{holds}; looked for {layout} ending in {endings}; convert them, or take the folder out.")
            for file in files:
                if not file.is_file():  # to read a pipe would wait for ever
                    raise ValueError(f"{file}: is no regular file (a folder, a pipe, or a link to nothing); take it out.")
                images.append(ImageFile(domain.name if domains else "", class_folder.name, file))
            others += [path for path in visible if path.suffix.lower() not in IMAGE_ENDINGS]
    if not images:
        raise ValueError(f"{root}: no images; looked for {layout} ending in {endings}.")
    return images, others


def decode_images(where: Callable[[int], str], files: Iterable[Any], count: int, channels: int, size: int | None) -> np.ndarray:
    """Decodes images into one array [count, H, W, channels] uint8.

    Args:
      where: what messages call image i, such as its path.
      files: encoded images, or Pillow's.
      count: number of files.
      channels: 1 (grey) or 3 (colour), what they are converted to.
      size: they are resized to size x size pixels, bilinearly; None: all must have the size of the
        first.

    Raises:
      ValueError: no images; one that cannot be decoded, has more pixels than Pillow decodes (179
        million), another size, or no depth that is known; or more than fit into memory.
    """
    from PIL import Image

    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (colour).")
    if size is not None:
        if size < 1:
            raise ValueError(f"size={size}: must be >= 1.")
        check_fits(f"size={size} for {count} images", (count, size, size, channels), np.uint8)
    out, brightest, transparent = None, None, None
    for i, file in enumerate(files):
        image = _open_image(file, where(i)) if isinstance(file, bytes) else file
        pixels = to_bytes(image, where(i))
        if _is_deep(image):
            brightest = max(brightest or 0, pixels.getextrema()[1])
        image = convert(pixels, channels, where(i))
        if transparent is None and _is_transparent(pixels):
            transparent = where(i)
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        width, height = image.size
        if out is None:
            shape = (count, height, width, channels)
            check_fits(f"{where(i)} and {count - 1} more images as large; pass size to make them smaller", shape, np.uint8)
            out = np.empty(shape, np.uint8)
        if out.shape[1:3] != (height, width):
            first = f"the first, {where(0)}, {out.shape[1]}x{out.shape[2]}"
            raise ValueError(f"{where(i)} is {height}x{width} and {first}; pass size to resize all.")
        out[i] = np.asarray(image).reshape(height, width, channels)
    if out is None:
        raise ValueError("there are no images.")
    if transparent is not None:
        log.warning(
            "%s has transparent pixels, which keep the colour that the file has for them, often black; if their shape is only in "
            "their transparency, put such images on a ground first",
            transparent,
        )
    if brightest is not None and brightest < FEW_LEVELS:  # such as scans of 12 bits in files that say 16
        log.warning(
            "%s and the images that go with it use %d of 256 grey levels, scaled by the depth that their files say; if theirs is "
            "less, such as 12 bits in files of 16, scale them first, or give arrays",
            where(0),
            brightest + 1,
        )
    return out


def _open_image(blob: bytes, what: str) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(blob))
        image.load()
        return image
    except UnidentifiedImageError as error:
        raise ValueError(f"{what} cannot be decoded (it is no image that Pillow knows).") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{what} cannot be decoded ({error}).") from error


def _is_transparent(image: Any) -> bool:
    """Returns whether a Pillow image has pixels that are not opaque."""
    return image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] < 255


def _is_deep(image: Any) -> bool:
    """Returns whether a Pillow image has more than 8 bits for each number."""
    return image.mode.startswith(("I", "F"))


def to_bytes(image: Any, what: str) -> Any:
    """Returns a Pillow image with at most 8 bits a number; a deeper one is scaled by its depth.

    Pillow's own conversion cuts a deeper image at 255, so that it is plain white, or black where
    pixels are fractions.

    Raises:
      ValueError: how bright white is in this image is not known: it has floats, or integers of 32
        bits; the message begins with `what`.
    """
    if not _is_deep(image):
        return image
    pixels, bits = np.asarray(image), None
    if image.mode.startswith("I;16"):
        tag = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))
        bits = int(tag[0] if isinstance(tag, tuple) else tag)
    elif image.mode == "I" and image.format in DEEP_FORMATS:
        bits = 16
    if bits is None or pixels.min() < 0 or pixels.max() >= 2**bits:
        raise ValueError(
            f"{what} is an image of mode {image.mode!r} with pixels from {pixels.min():g} to {pixels.max():g}, and nothing says "
            "which of them is white: must have 8 or 16 bits; convert it, or give arrays of floats in [0, 1]."
        )
    from PIL import Image

    return Image.fromarray(np.round(pixels * (255 / (2**bits - 1))).astype(np.uint8))


def convert(image: Any, channels: int, what: str) -> Any:
    """Returns a Pillow image as grey (1 channel) or in colours (3); `what` begins an error."""
    mode = "L" if channels == 1 else "RGB"
    try:
        return image.convert(mode)
    except ValueError as error:
        raise ValueError(f"{what} is an image of mode {image.mode!r}, which cannot become {mode!r} ({error}).") from error
