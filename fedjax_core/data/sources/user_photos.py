"""Photographs by the users who took them: published lists of users, and a folder of images.

  FLAIR                     labels_and_metadata.json, small_images/ID.jpg       41,131 users to train on, several labels each image
  Landmarks-User-160k       federated_train.csv, test.csv, images/.../ID.jpg    1,262 users, 2,028 classes
  iNaturalist-User-120k     federated_train_user_120k.csv, test.csv, images     9,275 users, 1,203 classes

Images that would take more than half of this machine's memory are decoded once into files beside
the list, decoded-SIZE-....npy, which are memory-mapped (`image_cache.py`).

Song, Granqvist, Talwar. FLAIR: Federated Learning Annotated Image Repository. NeurIPS 2022. https://github.com/apple/ml-flair
Hsu, Qi, Brown. Federated Visual Classification with Real-World Data Distribution. ECCV 2020. https://arxiv.org/abs/2003.08082
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.apportion import make_generator
from fedjax_core.data.sources import image_cache
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import SPLIT_SEED, find_file, read_text
from fedjax_core.data.sources.image_folder import IMAGE_ENDINGS
from fedjax_core.option_types import AtLeastOne

Row = Mapping[str, Any]


def flair(
    data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None, most: AtLeastOne = 512, fine: bool = False
) -> Dataset:
    """Reads FLAIR: photographs with several of 17 labels each, or of 1,628 fine ones; natural
    clients are the photographers.

    Users with the partition "train" are trained on, those with "test" are the test set: no client
    trains on their examples. `natural` deals them over the clients in proportion to their training
    examples, so scores of the scope "own" are on strangers' photographs; use "global".

    Args:
      data_dir: where the files are, or their folder `flair`.
      size: images become size x size; as published they are 256.
      users: so many users to train on, always the same ones; None: all 41,131.
      most: images of each user.
      fine: the fine labels.

    Raises:
      FileNotFoundError: the list or an image is not there.
      ValueError: the list is damaged, or an image cannot be read.
    """
    how = "get FLAIR from https://github.com/apple/ml-flair (its download_dataset.py) and put it there"
    file = find_file("flair", data_dir, [data_dir / part / "labels_and_metadata.json" for part in ("", "flair")], how)
    field = "fine_grained_labels" if fine else "labels"
    try:
        rows = json.loads(read_text(file))
        names = sorted({label for row in rows for label in row[field]})
        held = {part: [row for row in rows if row["partition"] == part] for part in ("train", "test")}
        held["train"] = _of_some(held["train"], users, most, file)
        y = {part: np.array([[name in row[field] for name in names] for row in entries], bool) for part, entries in held.items()}
        files = {
            part: [file.parent / "small_images" / f"{row['image_id']}.jpg" for row in entries] for part, entries in held.items()
        }
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError) as error:
        wanted = f"must be a list of objects with image_id, user_id, partition and {field}"
        raise ValueError(f"{file}: {wanted} ({error}); get it again.") from error
    if empty := [part for part, entries in held.items() if not entries]:
        raise ValueError(f"{file}: has no images of the partition {empty[0]!r}.")
    x = image_cache.load_images(files, size, file.parent)
    whose = _clients([row["user_id"] for row in held["train"]])
    return from_arrays(x["train"], y["train"], x["test"], y["test"], names, targets="labels", name="flair", **whose)


def landmarks(data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None) -> Dataset:
    """Reads Landmarks-User-160k: photographs of landmarks; natural clients are the photographers.

    Test images have no user. `natural` deals them over the clients, by class in proportion to their
    training examples, so scores of the scope "own" are on strangers' photographs; use "global".

    Args:
      data_dir: where the files are, or their folder `landmarks-user-160k`.
      size: images become size x size.
      users: so many users, always the same ones; None: all 1,262.

    Raises:
      FileNotFoundError, ValueError: as `flair`.
    """
    how = "get landmarks-user-160k.zip (Hsu et al. 2020) and the images of Google Landmarks v2, and put them there, in images/"
    return _listed(data_dir, "landmarks-user-160k", "federated_train.csv", "images", how, size, users)


def inaturalist(data_dir: Path, size: AtLeastOne = 64, users: AtLeastOne | None = None) -> Dataset:
    """Reads iNaturalist-User-120k: photographs of species; natural clients are the observers.

    Test images have no user; they are dealt over the clients as `landmarks` says, so use the scope
    "global".

    Args:
      data_dir: where the files are, or their folder `inaturalist-user-120k`.
      size: images become size x size.
      users: so many users, always the same ones; None: all 9,275.

    Raises:
      FileNotFoundError, ValueError: as `flair`.
    """
    how = "get inaturalist-user-120k.zip (Hsu et al. 2020) and iNaturalist 2017's train_val_images, and put them there"
    file = "federated_train_user_120k.csv"
    return _listed(data_dir, "inaturalist-user-120k", file, "train_val_images", how, size, users)


def _listed(data_dir: Path, name: str, file: str, folder: str, how: str, size: int, users: int | None) -> Dataset:
    """Reads lists with the columns user_id, image_id and class, of which the test set's needs no
    user.
    """
    lists = {"train": find_file(name, data_dir, [data_dir / part / file for part in ("", name)], how)}
    root = lists["train"].parent
    lists["test"] = find_file(name, data_dir, [root / "test.csv"], how)
    held = {
        part: _table(entries, ("image_id", "class") if part == "test" else ("user_id", "image_id", "class"))
        for part, entries in lists.items()
    }
    held["train"] = _of_some(held["train"], users, None, lists["train"])
    paths: dict[str, Path] = {}
    for above, _, files in os.walk(root / folder):
        paths |= {
            Path(file_name).stem: Path(above) / file_name for file_name in files if Path(file_name).suffix.lower() in IMAGE_ENDINGS
        }
    classes = sorted({row["class"] for entries in held.values() for row in entries}, key=lambda c: (len(c), c))
    place = {name: i for i, name in enumerate(classes)}
    listed: dict[str, list[Path]] = {}
    for part, entries in held.items():
        if missing := [row["image_id"] for row in entries if row["image_id"] not in paths]:
            raise FileNotFoundError(f"{name}: {len(missing)} images are not under {root / folder}, such as {missing[0]}; {how}.")
        listed[part] = [paths[row["image_id"]] for row in entries]
    x = image_cache.load_images(listed, size, root)
    y = {part: np.array([place[row["class"]] for row in entries]) for part, entries in held.items()}
    whose = _clients([row["user_id"] for row in held["train"]])
    return from_arrays(x["train"], y["train"], x["test"], y["test"], classes, name=name, **whose)


def _table(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8-sig") as opened:
        try:
            rows = list(csv.DictReader(opened))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}: cannot be read ({error}): damaged or another file; get it again.") from error
    if not rows or any(not rows[0].get(column) for column in columns):
        raise ValueError(f"{file}: has columns {', '.join(rows[0] if rows else ())}; must have {', '.join(columns)}, and rows.")
    return rows


def _of_some(rows: Sequence[Row], users: int | None, most: int | None, file: Path) -> list[Any]:
    """Returns the entries of `users` users, always the same ones, at most `most` of each."""
    names = sorted({row["user_id"] for row in rows})
    if users is not None and users > len(names):
        raise ValueError(f"{file}: has {len(names)} users to train on, {users} are asked for.")
    chosen = {*(names if users is None else make_generator(SPLIT_SEED, "users").choice(names, users, replace=False).tolist())}
    taken: dict[str, int] = {}
    kept = []
    for row in rows:
        number = taken[row["user_id"]] = taken.get(row["user_id"], 0) + 1
        if row["user_id"] in chosen and (most is None or number <= most):
            kept.append(row)
    return kept


def _clients(names: Sequence[str]) -> dict[str, Any]:
    """Returns users as integers from 0 in the order of their names, and the names, as arguments of
    `from_arrays`.
    """
    different, numbers = np.unique(np.asarray(names), return_inverse=True)
    return {"train_clients": numbers.reshape(-1), "client_names": different.tolist()}
