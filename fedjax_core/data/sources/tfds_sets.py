"""Image sets that tensorflow_datasets has prepared, and its records, without TensorFlow."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.sources import image_cache, image_folder
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import choose_stratified
from fedjax_core.option_types import AtLeastOne

_BLOCK = 4096  # records that are read at once


def tfds(
    data_dir: Path,
    path: str,
    train: str = "train",
    test: str = "test",
    size: AtLeastOne | None = None,
    image: str | None = None,
    label: str | None = None,
    training_examples: int | None = None,
) -> Dataset:
    """Reads an image classification set that tensorflow_datasets prepared in random-access form.

    TensorFlow is not needed. Decoded images are kept in a cache (`image_cache.py`), so that later
    starts need not decode them again. The set may be in the folder `tfds`.

    Args:
      path: NAME, NAME/CONFIG, or either with :VERSION; the newest version if none is given.
      train: split that is trained on; slices such as "train[:1000]" work.
      test: split that is the test set; some sets have "validation" only.
      size: resize all images to size x size; needed where they differ.
      image: feature that holds the image; None: the only one, or that called "image".
      label: feature that holds the label; None: the only one, or that called "label".
      training_examples: as `data.examples`; the others are not decoded.

    Raises:
      FileNotFoundError: the set is not prepared; the message says how to.
      ValueError: no such split or feature, another file format or type of images, or files that are
        damaged.
    """
    import tensorflow_datasets

    builder: Any = tensorflow_datasets.builder_from_directory(find_tfds_folder(data_dir, path))
    features = builder.info.features

    image = find_feature(path, features, tensorflow_datasets.features.Image, "image", image)
    label = find_feature(path, features, tensorflow_datasets.features.ClassLabel, "label", label)
    channels = features[image].shape[-1] or 3
    if features[image].np_dtype != np.uint8:
        raise ValueError(f"tfds:{path}: images of type {np.dtype(features[image].np_dtype)}; only uint8 images are read.")
    arrays = []
    for split, number in ((train, training_examples), (test, None)):
        choose = lambda labels, number=number: choose_stratified(labels, number)
        what = (split, image, label, channels, size)
        try:
            rows = builder.as_data_source(split)
            files = sorted({Path(part.filename) for part in builder.info.splits[split].file_instructions})
            cached = image_cache.DecodedCache(files, builder.info.full_name, *what)
            if (decoded := cached.load(choose)) is None:
                blobs, labels = _read_examples(rows.data_source, image, label, choose)
        except NotImplementedError as error:
            raise ValueError(
                f"tfds:{path}: prepared as {builder.info.file_format.value}, which has no random access; prepare it again with "
                "file_format='array_record'."
            ) from error
        except (ValueError, KeyError) as error:
            raise ValueError(f"tfds:{path}: split {split!r}: the set has {', '.join(builder.info.splits)}.") from error
        except (RuntimeError, OSError) as error:
            raise ValueError(f"tfds:{path}: split {split!r} is missing, truncated or damaged ({error}); get it again.") from error
        if decoded is None:
            where = lambda i, split=split, of=list(blobs): f"tfds:{path} {split}: image {of[i]}"
            decoded = image_folder.decode_images(where, blobs.values(), len(blobs), channels, size), labels
            if len(blobs) == len(rows):
                cached.store(*decoded)
        arrays += decoded
    return from_arrays(*arrays, class_names=tuple(features[label].names), name=builder.info.name)


def _read_examples(
    source: Any, image: str, label: str, choose: Callable[[np.ndarray], np.ndarray | None]
) -> tuple[dict[int, bytes], np.ndarray]:
    """Returns the encoded images of the chosen examples, by row, and their labels."""
    blocks = [range(begin, min(begin + _BLOCK, len(source))) for begin in range(0, len(source), _BLOCK)]
    read = lambda rows, feature: [record[feature][0] for record in _decode_records(source.__getitems__([*rows]), (feature,))]
    labels = np.array([int(value) for block in blocks for value in read(block, label)], np.int64)
    rows = choose(labels)
    rows = np.arange(len(labels)) if rows is None else rows
    cuts = np.split(rows, range(_BLOCK, len(rows), _BLOCK))
    encoded = [blob for block in cuts for blob in read(block.tolist(), image)]
    return dict(zip(rows.tolist(), encoded, strict=True)), labels[rows]


def _decode_records(records: Iterable[bytes], wanted: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yields the wanted features of records; raises RuntimeError for what is no record."""
    for record in records:
        try:
            yield decode_example(record, wanted)
        except ValueError as error:
            raise RuntimeError(str(error)) from None


def decode_example(record: bytes, names: Collection[str] | None = None) -> dict[str, list[bytes] | np.ndarray]:
    """Returns the features of a `tf.train.Example`: lists of bytes, and arrays of numbers.

    Raises:
      ValueError: it is no such record.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        message = tf_example_pb2.Example.FromString(record)  # pyright: ignore[reportAttributeAccessIssue]
        features = message.features.feature
    except DecodeError as error:
        raise ValueError(f"a record of {len(record)} bytes is no tf.train.Example ({error})") from None
    decoded: dict[str, list[bytes] | np.ndarray] = {}
    for name in features if names is None else names:
        if name not in features:
            continue
        feature = features[name]
        kind = feature.WhichOneof("kind")
        if kind == "float_list":
            decoded[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            decoded[name] = np.array(feature.int64_list.value, np.int64)
        else:
            decoded[name] = list(feature.bytes_list.value)
    return decoded


def find_feature(path: str, features: Mapping[str, Any], kind: type, option: str, chosen: str | None) -> str:
    """Returns the name of the chosen feature of a kind, else of the only one, else `option`."""
    candidates = [key for key, feature in features.items() if type(feature) is kind]
    if chosen is None:
        chosen = candidates[0] if len(candidates) == 1 else option if option in candidates else None
    if chosen not in candidates:
        raise ValueError(f"tfds:{path}: option {option}={chosen!r}: must be one of its {kind.__name__} features, {candidates}.")
    return chosen


def find_tfds_folder(data_dir: Path, path: str) -> Path:
    """Returns the folder of a prepared set: NAME/[CONFIG/]VERSION."""
    name, _, version = path.partition(":")
    roots = [data_dir, data_dir / "tfds"]

    def versions(folder: Path) -> Iterator[Path]:
        for child in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (child / "dataset_info.json").is_file() and (child / "features.json").is_file():
                yield child

    for root in roots:
        by_name = {child.name: child for child in versions(root / name)}
        if by_name and not version:
            return max(by_name.values(), key=lambda child: [int(n) if n.isdigit() else -1 for n in child.name.split(".")])
        if version in by_name:
            return by_name[version]
    configs = [child for root in roots if (root / name).is_dir() for child in (root / name).iterdir() if any(versions(child))]
    known = sorted(f"{name}/{child.name}" for child in configs)
    have = f" It has {', '.join(known)}: name one." if known else ""
    looked = ", ".join(str(root / name / (version or "VERSION") / "dataset_info.json") for root in roots)
    raise FileNotFoundError(
        f"tfds:{path} is not prepared in {data_dir}: looked for {looked}.{have} To prepare it (needs TensorFlow: pip install "
        f"'fedjax-core[prepare]'): tfds.builder({name!r}, data_dir='{data_dir / 'tfds'}', "
        "file_format='array_record').download_and_prepare()."
    )
