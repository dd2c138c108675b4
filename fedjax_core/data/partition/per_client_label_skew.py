"""Label skew per client: clients have distributions over the classes, and may share examples."""

from typing import Literal

import numpy as np

from fedjax_core import registry
from fedjax_core.data.apportion import MANY, apportion, apportion_capped, make_generator
from fedjax_core.data.partition import large_populations
from fedjax_core.data.partition.sampling import (
    Alpha,
    Index,
    assign_classes,
    check_concentration,
    check_labels,
    check_num_clients,
    choose_examples,
    log_dirichlet,
)
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.option_types import AtLeastOne, AtLeastZero

Lists = Index | RaggedIndex
_BLOCK = 2**22  # examples, and shares of classes, that are drawn at once where clients are very many


def dirichlet_clients(
    labels: np.ndarray,
    test_labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha,
    train_examples: AtLeastOne = 500,
    test_examples: AtLeastZero = 100,
    replace: bool = False,
    max_tries: AtLeastOne = 1000,
) -> tuple[Lists, Lists]:
    """Draws q ~ Dir(alpha) over the classes per client, and fixed numbers of examples from it.

    Client i gets q_ic * train_examples training examples and q_ic * test_examples test examples of
    class c (largest remainders, so the totals are exact). Clients choose their examples
    independently and *may share examples*. Small alpha means fewer classes per client: with 10
    classes the largest has 94 % of a client's examples on average at alpha 0.01, 66 % at 0.1, 29 %
    at 1.

    Args:
      alpha: concentration; one number, or one per class that occurs in `labels`.
      train_examples: training examples per client (FedPFT: 500).
      test_examples: test examples per client (FedPFT: 100; 200 on Tiny-ImageNet).
      replace: where a client wants more examples of a class than there are, False draws its q
        again; True draws that class's examples with repetition, as the authors' code does, and
        keeps q.
      max_tries: draws of q per client before giving up.

    Source: Wu et al. Tackling Feature-Classifier Mismatch in Federated Learning via Prompt-Driven
    Feature Transformation (FedPFT), 2024.
    """
    labels, test_labels = check_labels(labels, 1), check_labels(test_labels, 1)
    check_num_clients(clients)
    classes = np.unique(labels)
    concentration = check_concentration(alpha, len(classes), "class")
    rng = make_generator(seed, "dirichlet_clients")

    def draw(*these: np.ndarray):
        return np.exp(log_dirichlet(rng, concentration, (*map(len, these), len(classes))))

    numbers = (train_examples, test_examples)
    return _draw_from_own_distributions("dirichlet_clients", (labels, test_labels), numbers, clients, draw, rng, replace, max_tries)


def pathological_clients(
    labels: np.ndarray,
    test_labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    classes_per_client: AtLeastOne,
    train_examples: AtLeastOne = 500,
    test_examples: AtLeastZero = 100,
    replace: bool = False,
) -> tuple[Lists, Lists]:
    """Draws n classes per client and fixed numbers of examples, equally many of each of them.

    With 10 classes, n = 2 and 500 training examples a client holds 250 examples of each of two
    classes. Classes are dealt so that all are used equally often (up to one client); clients may
    share examples.

    Args:
      classes_per_client: n (FedPFT: 2, 20 and 40 on 10, 100 and 200 classes).
      train_examples: training examples per client.
      test_examples: test examples per client.
      replace: True draws a class's examples with repetition where a client wants more than there
        are; False refuses.

    Source: Wu et al., as `dirichlet_clients`.
    """
    labels, test_labels = check_labels(labels, 1), check_labels(test_labels, 1)
    check_num_clients(clients)
    classes = np.unique(labels)
    rng = make_generator(seed, "pathological_clients")
    deal = assign_classes if clients <= MANY else large_populations.assign_classes
    held = deal(rng, len(classes), clients, classes_per_client)
    in_turn = iter(held)

    def draw(*these: np.ndarray):
        classes_held = held[these[0]] if these else next(in_turn)
        return classes_held / classes_held.sum(-1, keepdims=True)

    numbers = (train_examples, test_examples)
    return _draw_from_own_distributions(
        "pathological_clients", (labels, test_labels), numbers, clients, draw, rng, replace, max_tries=1
    )


def overlapping_dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha | Literal["random_over_classes", "random_over_clients"] = "random_over_classes",
    train_examples: AtLeastOne | None = None,
) -> Lists:
    """Divides as FedHPL's "Dir": client k takes q_kc * |D_k| examples of class c.

    q_k ~ Dir(alpha_k), and clients may share examples. Small alpha means fewer classes per client.
    A client's share of a class can exceed the class: 5 clients on CIFAR-10 take 10,000 examples
    each, and a class has 5,000. It then gets the whole class, and the excess is divided over its
    other classes in proportion to q (our choice; the paper is silent). An example occurs at most
    once in a client.

    Args:
      alpha: concentration, one number or one per class; or drawn uniformly and scaled so that the
        alpha_kc of a client add up to 1 ("random_over_classes", FedHPL's CIFAR-10) or those of a
        class do ("random_over_clients", its CIFAR-100 and SVHN).
      train_examples: |D_k|. None: the examples are counted out equally.

    Source: Ma et al. FedHPL: Efficient Heterogeneous Federated Learning with Prompt Tuning and
    Logit Distillation, 2024.
    """
    labels = check_labels(labels, clients)
    classes, rows = np.unique(labels, return_counts=True)
    rng = make_generator(seed, "overlapping_dirichlet")
    if isinstance(alpha, str):
        registry.check_choice("way to draw alpha", alpha, ("random_over_classes", "random_over_clients"))
        drawn = 1.0 - rng.random((clients, len(classes)))
        concentration = drawn / drawn.sum(1 if alpha == "random_over_classes" else 0, keepdims=True)
    else:
        concentration = check_concentration(alpha, len(classes), "class")
    if train_examples is None:
        sizes = apportion(len(labels), np.ones(clients))
    elif 1 <= train_examples <= len(labels):
        sizes = np.full(clients, train_examples)
    else:
        raise ValueError(f"train_examples={train_examples}: must lie in [1, {len(labels)}], the number of examples.")
    shares = np.exp(log_dirichlet(rng, concentration, (clients, len(classes))))
    of_class = [np.flatnonzero(labels == c) for c in classes]
    if clients > MANY:
        return large_populations.choose_examples(
            rng, of_class, large_populations.apportion_capped(sizes, shares, rows), replace=False
        )
    return [
        choose_examples(rng, of_class, apportion_capped(int(size), share, rows), replace=False)
        for size, share in zip(sizes, shares, strict=True)
    ]


def _draw_from_own_distributions(
    name, labels, numbers, clients: int, draw, rng, replace: bool, max_tries: int
) -> tuple[Lists, Lists]:
    """Draws `numbers` (training, test) of examples per client from a label distribution of its own.

    `draw()` is the next client's distribution over the classes of the training labels, `draw(ids)`
    those of these clients [n, K]; it is drawn again while a class has too few examples.
    """
    if numbers[0] < 1 or numbers[1] < 0:
        raise ValueError(f"{name}: train_examples={numbers[0]} must be >= 1, and test_examples={numbers[1]} >= 0.")
    classes = np.unique(labels[0])
    of_class = [[np.flatnonzero(part == c) for c in classes] for part in labels]
    available = np.array([[len(rows) for rows in part] for part in of_class])  # [2, K]
    if numbers[1] and available[1].min() == 0:
        raise ValueError(f"{name}: class {classes[available[1].argmin()]} has training examples but no test examples.")

    def refuse(client: int, wanted: np.ndarray):
        part, c = np.unravel_index(np.argmax(wanted - available), available.shape)
        raise ValueError(
            f"{name}: client {client} wants {wanted[part, c]} of the {available[part, c]} {('training', 'test')[part]} examples of "
            f"class {classes[c]} (draw {max_tries} of {max_tries}); lower {('train', 'test')[part]}_examples="
            f"{numbers[part]}, or allow repeated examples with replace=True."
        )

    if clients > MANY:
        return _draw_in_blocks(clients, numbers, available, of_class, draw, rng, replace, max_tries, refuse)
    parts: tuple[Index, Index] = ([], [])
    for client in range(clients):
        for _ in range(max_tries):
            share = draw()
            wanted = np.stack([apportion(number, share) for number in numbers])
            if replace or np.all(wanted <= available):
                break
        else:
            refuse(client, wanted)
        for part in (0, 1):
            parts[part].append(choose_examples(rng, of_class[part], wanted[part], replace))
    return parts


def _draw_in_blocks(
    clients: int, numbers, available, of_class, draw, rng, replace: bool, max_tries: int, refuse
) -> tuple[Lists, Lists]:
    """Draws as the loop of `_draw_from_own_distributions`, a block of clients at a time."""
    rows, block = ([], []), max(1, _BLOCK // (available.shape[1] + sum(numbers)))
    for begin in range(0, clients, block):
        ids = np.arange(begin, min(begin + block, clients))
        wanted, left = np.zeros((len(ids), *available.shape), np.int64), np.arange(len(ids))
        for _ in range(max_tries):
            wanted[left] = apportion(np.tile(numbers, (len(left), 1)), draw(ids[left])[:, None])
            left = left[:0] if replace else left[np.any(wanted[left] > available, axis=(1, 2))]
            if not len(left):
                break
        else:
            refuse(int(ids[left[0]]), wanted[left[0]])
        for part in (0, 1):
            rows[part].append(large_populations.choose_examples(rng, of_class[part], wanted[:, part], replace).rows)
    train, test = (RaggedIndex.from_sizes(np.concatenate(part), np.full(clients, n)) for part, n in zip(rows, numbers, strict=True))
    return train, test
