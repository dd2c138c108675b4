"""Data sets derived from another one: some of its classes or domains, rotated, or split anew."""

from collections.abc import Callable, Sequence

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
    """Makes FC100: CIFAR-100 with its classes divided by superclass, for few-shot learning; all 600
    images of each class.

    60 classes are trained on (labels 0 to 59), and the test set is of 20 others (60 to 79); each in
    alphabetical order. FC100 as folders `train/CLASS/*` and `test/CLASS/*` is read by `folder:DIR`.

    Oreshkin, Rodriguez Lopez, Lacoste. TADAM: Task dependent adaptive metric for improved few-shot
    learning. NeurIPS 2018. https://arxiv.org/abs/1805.10123

    Args:
      load: reads the other set.
      of: where CIFAR-100 comes from: "cifar100", its published archive; "tfds:cifar100"; or another
        source that has all of it.
      test: "test", or "validation" for the 20 classes that hyperparameters are chosen on.

    Raises:
      ValueError: the other set has not the classes of CIFAR-100; or what reading the other set
        raises.
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
    return _divided(dataset, train, tested, "fc100")


def unseen(load: Load, of: str, classes: Sequence[int]) -> Dataset:
    """Moves some classes of another set into the test set alone: for few-shot episodes.

    All examples of a class, of both parts, are on one side. The classes that are trained on come
    first.

    Args:
      load: reads the other set.
      of: the set, such as "digits" or "emnist(split='bymerge')".
      classes: labels of the unseen ones, each once; some, not all.

    Raises:
      ValueError: labels that there are not, or targets that are no classes; or what reading the
        other set raises.
    """
    dataset = load(of)
    require_classes(f"unseen(of={of!r})", dataset.train.y, "use a set with classes")
    number = len(dataset.class_names)
    wanted = np.unique(np.asarray(classes, int))
    if len(wanted) != len(classes) or not 1 <= len(wanted) < number or not 0 <= wanted[0] <= wanted[-1] < number:
        raise ValueError(f"unseen: classes={classes}: must be some, not all, of the labels 0 to {number - 1} of {of!r}, each once.")
    return _divided(dataset, np.setdiff1d(np.arange(number), wanted), wanted, f"{dataset.name}_unseen")


def unseen_domain(load: Load, of: str, domain: str) -> Dataset:
    """Makes one domain of another set its test set: "leave one domain out".

    All examples of a domain, of both parts, are on one side. With the partition `by_domain` each
    client has one of the others, and is tested on all test examples.

    Args:
      load: reads the other set.
      of: a set with domains, such as "npz(path='pacs64.npz')" or "folder(path='office',
        domains=True, test_fraction=0.2)".
      domain: the name of the unseen one.

    Raises:
      ValueError: the set has no such domain, or no domains at all; or what reading the other set
        raises.
    """
    dataset = load(of)
    if dataset.train_domains is None or dataset.test_domains is None:
        raise ValueError(f"unseen_domain: of={of!r} has no domains; needs a set that has, such as folder(path=DIR, domains=True).")
    left_out = dataset.domain_names.index(registry.check_choice(f"domain of {of}", domain, dataset.domain_names))
    x, y = (np.concatenate(column) for column in zip(dataset.train, dataset.test, strict=True))
    domains = np.concatenate([dataset.train_domains, dataset.test_domains])
    test = domains == left_out
    if test.all() or not test.any():
        raise ValueError(
            f"unseen_domain: domain={domain!r} has {test.sum()} of the {len(test)} examples: must have some, and not all."
        )
    return dataset._replace(
        name=f"{dataset.name}_unseen_{domain}",
        train=Examples(x[~test], y[~test]),
        test=Examples(x[test], y[test]),
        train_domains=domains[~test],
        test_domains=domains[test],
        train_clients=None,
        test_clients=None,
    )


def only(load: Load, of: str, classes: Sequence[int]) -> Dataset:
    """Keeps some classes of another set, such as half of them to pre-train on, or those that are
    public.

    Args:
      load: reads the other set.
      of: the set, such as "cifar10".
      classes: labels of those that stay, each once; the first of them becomes label 0.

    Raises:
      ValueError: labels that there are not, or targets that are no classes; or what reading the
        other set raises.
    """
    dataset = load(of)
    require_classes(f"only(of={of!r})", dataset.train.y, "use the whole set, or one with classes")
    number, wanted = len(dataset.class_names), np.asarray(classes, int)
    if not len(wanted) or len({*wanted.tolist()}) < len(wanted) or not 0 <= min(wanted) <= max(wanted) < number:
        raise ValueError(f"only: classes={classes}: must be some of the labels 0 to {number - 1} of {of!r}, each once.")
    label = np.full(number, -1, np.int32)
    label[wanted] = np.arange(len(wanted))
    train, test = (np.flatnonzero(np.isin(part.y, wanted)) for part in (dataset.train, dataset.test))
    of_rows = lambda column, rows: None if column is None else column[rows]
    return dataset._replace(
        name=f"{dataset.name}_only",
        train=Examples(dataset.train.x[train], label[dataset.train.y[train]]),
        test=Examples(dataset.test.x[test], label[dataset.test.y[test]]),
        class_names=tuple(dataset.class_names[c] for c in wanted),
        train_domains=of_rows(dataset.train_domains, train),
        test_domains=of_rows(dataset.test_domains, test),
        train_clients=of_rows(dataset.train_clients, train),
        test_clients=of_rows(dataset.test_clients, test),
    )


def resplit(load: Load, of: str, test_fraction: TestFraction = 0.2) -> Dataset:
    """Splits another set's training examples anew, a part of each class as test set; its own test
    set is left out. Where targets are no classes, it is a part of each domain's and each client's
    examples.

    For clients with private test sets (FedHPL, Figures 7 to 9), with
    `pathological(classes_per_client=(2, 4, 6, 8, 10))`.

    Args:
      load: reads the other set.
      of: the set, such as "cifar10".
      test_fraction: part that is tested on, between 0 and 1; fixed seed.

    Raises:
      ValueError: a fraction that leaves no examples on one side; or what reading the other set
        raises.
    """
    dataset = load(of)
    x, y = dataset.train
    whose = (dataset.train_domains, dataset.train_clients) if targets_of(y) != "classes" else ()
    is_test = stratified_fraction_mask([stratify(y), *(column for column in whose if column is not None)], test_fraction)
    of_row = lambda column, kept: None if column is None else column[kept]
    return dataset._replace(
        name=f"{dataset.name}_resplit",
        train=Examples(x[~is_test], y[~is_test]),
        test=Examples(x[is_test], y[is_test]),
        train_domains=of_row(dataset.train_domains, ~is_test),
        test_domains=of_row(dataset.train_domains, is_test),
        train_clients=of_row(dataset.train_clients, ~is_test),
        test_clients=of_row(dataset.train_clients, is_test),
    )


def rotated(load: Load, of: str, degrees: Sequence[float] = (0, 30, 60, 90)) -> Dataset:
    """Rotates another set's images counterclockwise, by one of several angles each: a domain per
    angle.

    As in Ghifary, Kleijn, Zhang, Balduzzi. Domain Generalization for Object Recognition with
    Multi-task Autoencoders. ICCV 2015.

    Args:
      load: reads the other set.
      of: a set of uint8 images, such as "digits".
      degrees: the angles, two or more, each once; the names of the domains. Corners that turn in
        are black.

    Raises:
      ValueError: other angles, or a set that is not of uint8 images; or what reading the other set
        raises.
    """
    from PIL import Image

    dataset, angles = load(of), tuple(degrees)
    if len(angles) < 2 or len({*angles}) < len(angles):
        raise ValueError(f"rotated: degrees={angles}: must be two or more angles, each once.")
    if dataset.train.x.ndim != 4 or dataset.train.x.dtype != np.uint8:
        raise ValueError(
            f"rotated: of={of!r} has examples {dataset.train.x.shape[1:]} {dataset.train.x.dtype}: must be uint8 images."
        )
    parts = []
    for part, (x, y) in (("train", dataset.train), ("test", dataset.test)):
        domains = make_generator(SPLIT_SEED, f"rotated {part}").permutation(np.arange(len(y)) % len(angles)).astype(np.int32)
        turned = x.copy()
        for i in np.flatnonzero(np.asarray(angles)[domains] != 0):
            for c in range(x.shape[-1]):
                turned[i, ..., c] = Image.fromarray(x[i, ..., c]).rotate(angles[domains[i]], Image.Resampling.BILINEAR)
        parts += [turned, y, domains]
    train_x, train_y, train_domains, test_x, test_y, test_domains = parts
    return dataset._replace(
        name=f"{dataset.name}_rotated",
        train=Examples(train_x, train_y),
        test=Examples(test_x, test_y),
        train_domains=train_domains,
        test_domains=test_domains,
        domain_names=tuple(f"{angle:g}" for angle in angles),
    )


def _divided(dataset: Dataset, train: np.ndarray, test: np.ndarray, name: str) -> Dataset:
    """Splits a set by class: `train` is the training set, `test` the test set, numbered in this
    order.
    """
    x, y = (np.concatenate(column) for column in zip(dataset.train, dataset.test, strict=True))
    chosen = np.concatenate([train, test])
    label = np.full(len(dataset.class_names), -1, np.int32)
    label[chosen] = np.arange(len(chosen))
    train_rows, test_rows = (np.flatnonzero(np.isin(y, classes)) for classes in (train, test))
    names = [dataset.class_names[c] for c in chosen]
    return from_arrays(x[train_rows], label[y[train_rows]], x[test_rows], label[y[test_rows]], names, name=name)
