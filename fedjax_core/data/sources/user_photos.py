"""Photographs by the users who took them: published lists of users, and a folder of images.

  FLAIR                     labels_and_metadata.json, small_images/ID.jpg       41,131 users to train on, several labels each image
  Landmarks-User-160k       federated_train.csv, test.csv, images/.../ID.jpg    1,262 users, 2,028 classes
  iNaturalist-User-120k     federated_train_user_120k.csv, test.csv, images     9,275 users, 1,203 classes

Images that would take more than half of this machine's memory are decoded once into files beside
the list, decoded-SIZE-....npy, which are memory-mapped (`image_cache.py`). `natural` deals test
examples over the clients in proportion to their training examples, so scores of the scope "own" are
on strangers' photographs; use "global".
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.sources import image_cache
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.dataset_cards import CARDS
from fedjax_core.data.sources.file_checks import choose_users, find_file, read_text
from fedjax_core.data.sources.image_folder import IMAGE_ENDINGS
from fedjax_core.option_types import AtLeastOne

Row = Mapping[str, Any]


def flair(
    data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None, most: AtLeastOne = 512, fine: bool = False
) -> Dataset:
    """Reads FLAIR: photographs by their photographers, with several of 17 or of 1,628 labels each.

    Users with the partition "train" are trained on, those with "test" are the test set: no client
    trains on their examples, so use the scope "global". The files may be in the folder `flair`.

    Args:
      size: images become size x size; as published they are 256.
      users: so many users to train on, always the same ones; None: all 41,131.
      most: images of each user.
      fine: the fine labels.
    """
    how = f"get FLAIR from {CARDS['flair'].where} (its download_dataset.py) and put it there"
    file = find_file("flair", data_dir, [data_dir / part / "labels_and_metadata.json" for part in ("", "flair")], how)
    field = "fine_grained_labels" if fine else "labels"
    try:
        rows = json.loads(read_text(file))
        names = sorted({label for row in rows for label in row[field]})
        photos = {part: [row for row in rows if row["partition"] == part] for part in ("train", "test")}
        photos["train"] = _choose_photos(photos["train"], users, most, file)
        y = {part: np.array([[name in row[field] for name in names] for row in held], bool) for part, held in photos.items()}
        folder = file.parent / "small_images"
        files = {part: [folder / f"{row['image_id']}.jpg" for row in held] for part, held in photos.items()}
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError) as error:
        wanted = f"must be a list of objects with image_id, user_id, partition and {field}"
        raise ValueError(f"{file}: {wanted} ({error}); get it again.") from error
    if empty := [part for part, held in photos.items() if not held]:
        raise ValueError(f"{file}: has no images of the partition {empty[0]!r}.")
    return _build_dataset("flair", files, y, photos["train"], names, size, file.parent, targets="labels")


def landmarks(data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None) -> Dataset:
    """Reads Landmarks-User-160k: photographs of landmarks; natural clients are the photographers.

    Test images have no user, so use the scope "global". The files may be in the folder
    `landmarks-user-160k`.

    Args:
      size: images become size x size.
      users: so many users, always the same ones; None: all 1,262.
    """
    how = f"get {CARDS['landmarks'].where}, and put them there, in images/"
    return _read_lists(data_dir, "landmarks-user-160k", "federated_train.csv", "images", how, size, users)


def inaturalist(data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None) -> Dataset:
    """Reads iNaturalist-User-120k: photographs of species; natural clients are the observers.

    Test images have no user, so use the scope "global". The files may be in the folder
    `inaturalist-user-120k`.

    Args:
      size: images become size x size.
      users: so many users, always the same ones; None: all 9,275.
    """
    how = f"get the lists and train_val_images from {CARDS['inaturalist'].where}, and put them there"
    file = "federated_train_user_120k.csv"
    return _read_lists(data_dir, "inaturalist-user-120k", file, "train_val_images", how, size, users)


def _read_lists(data_dir: Path, name: str, file: str, folder: str, how: str, size: int, users: int | None) -> Dataset:
    """Reads lists with the columns user_id, image_id and class; test images need no user."""
    train_list = find_file(name, data_dir, [data_dir / part / file for part in ("", name)], how)
    root = train_list.parent
    train = _choose_photos(_read_list(train_list, "user_id", "image_id", "class"), users, None, train_list)
    photos = {"train": train, "test": _read_list(find_file(name, data_dir, [root / "test.csv"], how), "image_id", "class")}
    paths: dict[str, Path] = {}
    for above, _, names in os.walk(root / folder):
        paths |= {path.stem: path for path in (Path(above, each) for each in names) if path.suffix.lower() in IMAGE_ENDINGS}
    classes = sorted({row["class"] for held in photos.values() for row in held}, key=lambda c: (len(c), c))
    index = {class_name: i for i, class_name in enumerate(classes)}
    for held in photos.values():
        if missing := [row["image_id"] for row in held if row["image_id"] not in paths]:
            raise FileNotFoundError(f"{name}: {len(missing)} images are not under {root / folder}, such as {missing[0]}; {how}.")
    files = {part: [paths[row["image_id"]] for row in held] for part, held in photos.items()}
    y = {part: np.array([index[row["class"]] for row in held]) for part, held in photos.items()}
    return _build_dataset(name, files, y, train, classes, size, root)


def _read_list(file: Path, *columns: str) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(file), newline="")))
    except csv.Error as error:
        raise ValueError(f"{file}: cannot be read ({error}): damaged or another file; get it again.") from error
    if not rows or any(not rows[0].get(column) for column in columns):
        raise ValueError(f"{file}: has columns {', '.join(rows[0] if rows else ())}; must have {', '.join(columns)}, and rows.")
    return rows


def _choose_photos(rows: Sequence[Row], users: int | None, most: int | None, file: Path) -> list[Any]:
    """Returns the photographs of `users` users, always the same ones, at most `most` of each."""
    names = {row["user_id"] for row in rows}
    chosen = names if users is None else {*choose_users(names, users, file)}
    counts: Counter[str] = Counter()
    kept = []
    for row in rows:
        counts[row["user_id"]] += 1
        if row["user_id"] in chosen and (most is None or counts[row["user_id"]] <= most):
            kept.append(row)
    return kept


def _build_dataset(
    name: str,
    files: Mapping[str, Sequence[Path]],
    y: Mapping[str, np.ndarray],
    train: Sequence[Row],
    class_names: Sequence[str],
    size: int,
    root: Path,
    targets: str = "classes",
) -> Dataset:
    """Loads the images of both parts; clients are the users of `train` in order of their names."""
    x = image_cache.load_images(files, size, root)
    users, clients = np.unique([row["user_id"] for row in train], return_inverse=True)
    owners: dict[str, Any] = {"train_clients": clients.reshape(-1), "client_names": users.tolist()}
    return from_arrays(x["train"], y["train"], x["test"], y["test"], class_names, targets=targets, name=name, **owners)
