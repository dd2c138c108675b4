"""Data sets derived from another one: some of its classes or domains, rotated, or split anew."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Examples, targets_of
from fedjax_core.data.apportion import make_generator
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import SPLIT_SEED, TestFraction, stratified_fraction_mask
from fedjax_core.data.target_types import require_classes, stratify

Load = Callable[[str], Dataset]  # by its spec, such as "digits" or "npz(path='pacs64.npz')"
SUPERCLASS = (  # of each class of CIFAR-100, both in alphabetical order
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10),
    *(12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12),
    *(1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)
FC100 = {  # superclasses
    "train": (1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19),
    "validation": (8, 11, 13, 16),
    "test": (0, 7, 12, 14),
}


def fc100(load: Load, of: str = "cifar100", test: str = "test") -> Dataset:
    """Makes FC100 for few-shot learning: CIFAR-100 with its classes divided by superclass.

    60 classes are trained on (labels 0 to 59), and the test set is of 20 others (60 to 79); each in
    alphabetical order, with all 600 images. FC100 as folders `train/CLASS/*` and `test/CLASS/*` is
    read by `folder:DIR`.

    Args:
      of: where CIFAR-100 comes from: "cifar100", its published archive; "tfds:cifar100"; or another
        source that has all of it.
      test: "test", or "validation" for the 20 classes that hyperparameters are chosen on.

    Raises:
      ValueError: the other set has not the classes of CIFAR-100.
    """
    registry.check_choice("FC100 test", test, ("test", "validation"))
    dataset = load(of)
    require_classes(f"fc100(of={of!r})", dataset.train.y, "give a source that has all of CIFAR-100")
    if len(dataset.class_names) != len(SUPERCLASS) or list(dataset.class_names) != sorted(dataset.class_names):
        raise ValueError(
            f"fc100: of={of!r} has {len(dataset.class_names)} classes, {', '.join(dataset.class_names[:3])} ...: must have the "
            "100 of CIFAR-100, in alphabetical order."
        )
    train, tested = (np.flatnonzero(np.isin(SUPERCLASS, FC100[part])) for part in ("train", test))
    return _split_by_class(dataset, train, tested, "fc100")


def unseen(load: Load, of: str, classes: Sequence[int]) -> Dataset:
    """Moves some classes of another set into the test set alone: for few-shot episodes.

    All examples of a class, of both parts, are on one side. The classes that are trained on come
    first.

    Args:
      of: the set, such as "digits" or "emnist(split='bymerge')".
      classes: labels of the unseen ones, each once; some, not all.
    """
    dataset = load(of)
    require_classes(f"unseen(of={of!r})", dataset.train.y, "use a set with classes")
    number = len(dataset.class_names)
    wanted = np.unique(np.asarray(classes, int))
    if len(wanted) != len(classes) or not 1 <= len(wanted) < number or not 0 <= wanted[0] <= wanted[-1] < number:
        raise ValueError(f"unseen: classes={classes}: must be some, not all, of the labels 0 to {number - 1} of {of!r}, each once.")
    return _split_by_class(dataset, np.setdiff1d(np.arange(number), wanted), wanted, f"{dataset.name}_unseen")


def unseen_domain(load: Load, of: str, domain: str) -> Dataset:
    """Makes one domain of another set its test set: "leave one domain out".

    All examples of a domain, of both parts, are on one side. With the partition `by_domain` each
    client has one of the others, and is tested on all test examples.

    Args:
      of: a set with domains, such as "npz(path='pacs64.npz')" or "folder(path='office',
        domains=True, test_fraction=0.2)".
      domain: the name of the unseen one.
    """
    dataset = load(of)
    if dataset.train_domains is None or dataset.test_domains is None:
        raise ValueError(f"unseen_domain: of={of!r} has no domains; needs a set that has, such as folder(path=DIR, domains=True).")
    left_out = dataset.domain_names.index(registry.check_choice(f"domain of {of}", domain, dataset.domain_names))
    examples, domains = _pool(dataset), np.concatenate([dataset.train_domains, dataset.test_domains])
    is_test = domains == left_out
    if is_test.all() or not is_test.any():
        counts = f"{is_test.sum()} of the {len(is_test)} examples"
        raise ValueError(f"unseen_domain: domain={domain!r} has {counts}: must have some, and not all.")
    pooled = dataset._replace(
        name=f"{dataset.name}_unseen_{domain}",
        train=examples,
        test=examples,
        train_domains=domains,
        test_domains=domains,
        train_clients=None,
        test_clients=None,
    )
    return pooled.select(~is_test, is_test)


def only(load: Load, of: str, classes: Sequence[int]) -> Dataset:
    """Keeps some classes of another set, such as half of them to pre-train on, or public ones.

    Args:
      of: the set, such as "cifar10".
      classes: labels of those that stay, two or more, each once; the first of them becomes label 0.
    """
    dataset = load(of)
    require_classes(f"only(of={of!r})", dataset.train.y, "use the whole set, or one with classes")
    number, wanted = len(dataset.class_names), np.asarray(classes, int)
    if len(wanted) < 2 or len({*wanted.tolist()}) < len(wanted) or not 0 <= min(wanted) <= max(wanted) < number:
        raise ValueError(f"only: classes={classes}: must be two or more of the labels 0 to {number - 1} of {of!r}, each once.")
    label = _new_labels(number, wanted)
    kept = dataset.select(np.isin(dataset.train.y, wanted), np.isin(dataset.test.y, wanted))
    for part, y in (("training", kept.train.y), ("test", kept.test.y)):
        if not len(y):
            raise ValueError(f"only: classes={classes} have no {part} examples in {of!r}: must have some of both parts.")
    return kept._replace(
        name=f"{dataset.name}_only",
        train=kept.train._replace(y=label[kept.train.y]),
        test=kept.test._replace(y=label[kept.test.y]),
        class_names=tuple(dataset.class_names[c] for c in wanted),
    )


def resplit(load: Load, of: str, test_fraction: TestFraction = 0.2) -> Dataset:
    """Splits another set's training examples anew; its own test set is left out.

    The test set is a part of each class, and of each client's examples as far as it goes; where
    targets are no classes, of each domain's and each client's examples. For clients with private
    test sets (FedHPL, Figures 7 to 9), with `pathological(classes_per_client=(2, 4, 6, 8, 10))`.

    Args:
      of: the set, such as "cifar10".
      test_fraction: part that is tested on, between 0 and 1; fixed seed.
    """
    dataset = load(of)
    y = dataset.train.y
    owners = (dataset.train_domains if targets_of(y) != "classes" else None, dataset.train_clients)
    is_test = stratified_fraction_mask([stratify(y), *(column for column in owners if column is not None)], test_fraction)
    twice = dataset._replace(
        name=f"{dataset.name}_resplit",
        test=dataset.train,
        test_domains=dataset.train_domains,
        test_clients=dataset.train_clients,
    )
    return twice.select(~is_test, is_test)


def rotated(load: Load, of: str, degrees: Sequence[float] = (0, 30, 60, 90)) -> Dataset:
    """Rotates another set's images counterclockwise by one of several angles; each is a domain.

    As in Ghifary, Kleijn, Zhang, Balduzzi. Domain Generalization for Object Recognition with
    Multi-task Autoencoders. ICCV 2015.

    Args:
      of: a set of uint8 images, such as "digits".
      degrees: the angles, two or more, each once; the names of the domains. Corners that turn in
        are black.
    """
    from PIL import Image

    dataset, angles = load(of), tuple(degrees)
    if len(angles) < 2 or len({*angles}) < len(angles):
        raise ValueError(f"rotated: degrees={angles}: must be two or more angles, each once.")
    if dataset.train.x.ndim != 4 or dataset.train.x.dtype != np.uint8:
        raise ValueError(
            f"rotated: of={of!r} has examples {dataset.train.x.shape[1:]} {dataset.train.x.dtype}: must be uint8 images."
        )
    changes: dict[str, Any] = {"name": f"{dataset.name}_rotated", "domain_names": tuple(f"{angle:g}" for angle in angles)}
    for part, (x, y) in (("train", dataset.train), ("test", dataset.test)):
        domains = make_generator(SPLIT_SEED, f"rotated {part}").permutation(np.arange(len(y)) % len(angles)).astype(np.int32)
        turned = x.copy()
        for i in np.flatnonzero(np.asarray(angles)[domains] != 0):
            for c in range(x.shape[-1]):
                turned[i, ..., c] = Image.fromarray(x[i, ..., c]).rotate(angles[domains[i]], Image.Resampling.BILINEAR)
        changes |= {part: Examples(turned, y), f"{part}_domains": domains}
    return dataset._replace(**changes)


def _pool(dataset: Dataset) -> Examples:
    """Returns the training examples and then the test examples."""
    return Examples(*(np.concatenate(column) for column in zip(dataset.train, dataset.test, strict=True)))


def _new_labels(number: int, classes: np.ndarray) -> np.ndarray:
    """Returns the label of each of a number of old classes: its index in `classes`, or -1."""
    label = np.full(number, -1, np.int32)
    label[classes] = np.arange(len(classes))
    return label


def _split_by_class(dataset: Dataset, train: np.ndarray, test: np.ndarray, name: str) -> Dataset:
    """Makes the classes `train` the training set and `test` the test set, numbered in order."""
    (x, y), classes = _pool(dataset), np.concatenate([train, test])
    label = _new_labels(len(dataset.class_names), classes)
    train_rows, test_rows = np.isin(y, train), np.isin(y, test)
    names = [dataset.class_names[c] for c in classes]
    return from_arrays(x[train_rows], label[y[train_rows]], x[test_rows], label[y[test_rows]], names, name=name)
