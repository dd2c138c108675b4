"""Label skew: each class is divided over the clients; no example has two clients."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_core.data.apportion import MANY, apportion, make_generator
from fedjax_core.data.partition import large_populations
from fedjax_core.data.partition.sampling import (
    Alpha,
    assign_classes,
    check_concentration,
    check_labels,
    draw_until_min_size,
    log_dirichlet,
    log_sum_exp,
)
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Fraction, Positive

FITTING_STEPS = 500  # of iterative proportional fitting; what it leaves over is moved by hand


def dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha | Literal["random"],
    min_size: AtLeastZero = 1,
    min_share: Fraction = 0.0,
    balanced: bool = False,
    self_balancing: bool = False,
    max_tries: AtLeastOne = 1000,
) -> RaggedIndex:
    """Divides each class over the clients in proportions drawn from a Dirichlet distribution.

    Small alpha means more skew: with 10 clients, the largest share of a class that one client gets
    is 0.94 on average at alpha 0.01, 0.66 at 0.1, 0.38 at 0.5, 0.29 at 1, and 0.1 (an equal split)
    as alpha grows to infinity. Client sizes differ too, unless `balanced`. The draws are made in
    log space: a tiny alpha gives each class whole to one client, and never NaN.

    Args:
      alpha: concentration; one number, or N of them, one per client; or "random" (FedHPL): for each
        class, N uniform numbers scaled to add up to 1.
      min_size: examples that the smallest client must have; the draw is repeated until it has. 0
        allows empty clients.
      min_share: part of *each class* that every client gets before the rest is drawn (FedHPL: 0.01
        for 5 clients on CIFAR-10, so 50 of 5000 examples); rounded down. At most 1/N.
      balanced: all clients get equally many examples (up to one). The drawn proportions are fitted
        to equal client sizes by iterative proportional fitting, which keeps the draw's odds ratios;
        what rounding leaves over is moved between clients.
      self_balancing: classes are dealt one after another, and a client that has the mean number of
        examples gets none of the next ones (PFLlib's `dir`; Flower's option of this name).
      max_tries: draws before giving up on `min_size`.

    Raises:
      ValueError: no draw in `max_tries` with `min_size` examples for everyone; the message names a
        `min_size` and an alpha that would do.

    Source: Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification, 2019, in the per-class form of Yurochkin et al., Bayesian Nonparametric
    Federated Learning of Neural Networks, ICML 2019.
    """
    labels = check_labels(labels, clients)
    if not 0 <= min_share <= 1 / clients:
        raise ValueError(f"min_share={min_share} for {clients} clients: must lie in [0, 1/{clients} = {1 / clients:.4g}].")
    if balanced and min_share:
        raise ValueError(f"min_share={min_share} with balanced=True: equal sizes leave no minimum share; set one of them.")
    if self_balancing and (balanced or min_share):
        other = "balanced=True" if balanced else f"min_share={min_share}"
        raise ValueError(f"self_balancing=True with {other}: both say how many examples a client has; set one of them.")
    rng = make_generator(seed, "dirichlet")
    classes, rows = np.unique(labels, return_counts=True)

    def draw(concentration):
        if isinstance(concentration, str):
            concentration = 1.0 - rng.random((len(classes), clients))
            concentration = concentration / concentration.sum(1, keepdims=True)
        log_share = log_dirichlet(rng, concentration, (len(classes), clients))
        if balanced:
            return _fit_equal_sizes(rows, log_share)
        if self_balancing:
            return _pass_over_full_clients(rows, log_share)
        return apportion(rows, min_share + (1 - clients * min_share) * np.exp(log_share))

    if isinstance(alpha, str) and alpha != "random":
        raise ValueError(f"alpha={alpha!r}: must be a number > 0, {clients} of them, or 'random'.")
    concentration = alpha if isinstance(alpha, str) else check_concentration(alpha, clients, "client")
    table = draw_until_min_size(draw, "dirichlet", concentration, min_size, len(labels), clients, max_tries)
    return _deal(labels, classes, table, rng)


def extended_dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    classes_per_client: AtLeastOne,
    alpha: Positive,
    min_size: AtLeastZero = 1,
    max_tries: AtLeastOne = 1000,
) -> RaggedIndex:
    """Gives each client n classes, and divides each class over its holders by a Dirichlet distribution.

    Classes are dealt as `pathological` deals them. Options but n are those of `dirichlet`.

    Args:
      classes_per_client: n, between 1 and K.
      alpha: concentration over the holders of a class.
      min_size: examples that the smallest client must have.
      max_tries: draws before giving up on `min_size`.

    Source: Li, Lyu. Convergence Analysis of Sequential Federated Learning on Heterogeneous Data.
    NeurIPS 2023. PFLlib's "exdir" deals classes at random and stops a client at the mean size.
    """
    labels = check_labels(labels, clients)
    classes, rows = np.unique(labels, return_counts=True)
    if clients * classes_per_client < len(classes):
        what = f"{clients} clients with classes_per_client={classes_per_client} hold fewer than {len(classes)} classes"
        raise ValueError(f"{what}; needs classes_per_client >= {-(-len(classes) // clients)} or more clients.")
    concentration = check_concentration(alpha, 1, "client").reshape(())
    rng = make_generator(seed, "extended_dirichlet")
    held = assign_classes(rng, len(classes), clients, classes_per_client).T > 0  # [K, N]

    def draw(concentration):
        log_share = np.where(held, log_dirichlet(rng, concentration, held.shape), -np.inf)
        return apportion(rows, np.exp(log_share - log_share.max(1, keepdims=True)))

    table = draw_until_min_size(draw, "extended_dirichlet", concentration, min_size, len(labels), clients, max_tries)
    return _deal(labels, classes, table, rng)


def grouped_dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Positive,
    group_size: AtLeastOne = 10,
    min_fraction: Fraction = 0.5,
    equal_sizes: bool = True,
    max_tries: AtLeastOne = 1000,
) -> RaggedIndex:
    """Divides random parts of the data over groups of clients by a capped Dirichlet distribution.

    The examples are shuffled and cut into one part per group, in proportion to the group's clients.
    Within a group, each class in turn is divided in proportions drawn from a Dirichlet
    distribution, over those clients that have fewer examples so far than the group's mean. The draw
    is repeated until every client has `min_fraction` of that mean. At the end `equal_sizes` puts
    the clients' examples one after another, each client's in the order of classes, and cuts them
    into N parts of one size (up to one example), so that a client passes what is over to the next
    one.

    Args:
      alpha: concentration; small alpha means more skew.
      group_size: clients of a group; the last one may have fewer.
      min_fraction: part of a group's mean size that its smallest client must have.
      equal_sizes: whether all clients get equally many examples in the end.
      max_tries: draws per group before giving up.

    Source: Lin, Kong, Stich, Jaggi. Ensemble Distillation for Robust Model Fusion in Federated
    Learning. NeurIPS 2020 (its released code); with `equal_sizes` the data of FedSKC's released
    code. Both round each client's part of a class down along the cumulative sum; here the largest
    remainders are rounded up.
    """
    labels = check_labels(labels, clients)
    concentration = check_concentration(alpha, 1, "group").reshape(())
    rng = make_generator(seed, "grouped_dirichlet")
    shuffled = rng.permutation(len(labels))
    members = np.bincount(np.arange(clients) // group_size)  # [groups]
    ends = np.cumsum(members) * len(labels) // clients
    parts = []  # each client's examples, in the order of classes
    for rows, number in zip(np.split(shuffled, ends[:-1]), members, strict=True):
        classes, counts = np.unique(labels[rows], return_counts=True)
        mean = len(rows) / number

        def draw(alpha, counts=counts, number=number, mean=mean):
            table = np.zeros((len(counts), number), np.int64)
            for c, count in enumerate(counts):
                log_share = log_dirichlet(rng, alpha, (number,))
                log_share = np.where(table.sum(0) < mean, log_share, -np.inf)
                table[c] = apportion(count, np.exp(log_share - log_share.max()))
            return table

        min_size = int(min_fraction * mean)
        table = draw_until_min_size(draw, "grouped_dirichlet", concentration, min_size, len(rows), int(number), max_tries)
        by_class = [np.split(rows[labels[rows] == c], np.cumsum(n)[:-1]) for c, n in zip(classes, table, strict=True)]
        parts += [np.concatenate(own) for own in zip(*by_class, strict=True)]
    sizes = np.array([len(part) for part in parts])
    if equal_sizes:
        sizes = apportion(len(labels), np.ones(clients))
    return RaggedIndex.split(np.concatenate(parts), sizes)


def pathological(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    classes_per_client: AtLeastOne | Sequence[AtLeastOne],
    equal_volume: bool | Literal["random"] = True,
) -> RaggedIndex:
    """Gives each client n classes; the clients that hold a class divide its examples equally.

    Classes are dealt so that each has the same number of holders, up to one: 20 clients with n = 2
    and 10 classes of 5000 examples give every class 4 holders with 1250 examples each, so 2500
    examples per client.

    Args:
      classes_per_client: n, between 1 and K; or N of them, one per client (FedHPL, Figures 7 to 9:
        2, 4, 6, 8 and 10).
      equal_volume: every client gets the same number of examples of each of its classes, the
        largest that all can have; examples beyond it belong to no client. False deals out all
        examples, and sizes differ as class sizes and holders do. "random" draws sizes as PFLlib
        without `balance`: of a class's m examples and h holders, each but the last gets between
        m / (10 h) and m / h, and the last one the rest. All classes per client are its `iid`.
    """
    labels = check_labels(labels, clients)
    classes, rows = np.unique(labels, return_counts=True)
    classes_of_client = np.asarray(classes_per_client)
    if classes_of_client.shape not in ((), (clients,)) or not np.issubdtype(classes_of_client.dtype, np.integer):
        raise ValueError(f"classes_per_client={classes_per_client}: must be an integer, or {clients} of them, one per client.")
    places = int(np.broadcast_to(classes_of_client, clients).sum())
    if classes_of_client.min() >= 1 and places < len(classes):
        raise ValueError(
            f"{clients} clients with classes_per_client={classes_per_client} hold {places} of {len(classes)} classes; needs "
            f"classes_per_client >= {-(-len(classes) // clients)} or more clients."
        )
    rng = make_generator(seed, "pathological")
    if clients > MANY and not classes_of_client.ndim:
        held = large_populations.assign_classes(rng, len(classes), clients, int(classes_of_client)).T  # [K, N]
    else:
        held = assign_classes(rng, len(classes), clients, classes_per_client).T
    holders = held.sum(1)
    if np.any(rows < holders):
        c = int(np.argmax(holders - rows))
        raise ValueError(
            f"class {classes[c]} has {rows[c]} examples for {holders[c]} holders ({clients} clients with classes_per_client="
            f"{classes_per_client}); needs fewer clients or fewer classes per client."
        )
    if equal_volume == "random":
        table = _draw_volumes(rng, rows, held)
    else:
        table = held * np.min(rows // holders) if equal_volume else apportion(rows, held)
    return _deal(labels, classes, table, rng)


def _draw_volumes(rng: np.random.Generator, rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Returns [K, N] random numbers of examples of clients that hold a class; the last one's is the rest of `rows` [K]."""
    table = np.zeros(held.shape, np.int64)
    for own, number, holds in zip(table, rows, held, strict=True):
        *others, last = np.flatnonzero(holds)
        most = number // (len(others) + 1)
        least = max(most // 10, 1)
        own[others] = rng.integers(least, max(most, least + 1), len(others))
        own[last] = number - own.sum()
    return table


def shards(labels: np.ndarray, clients: int, seed: int, *, shards_per_client: AtLeastOne = 2) -> RaggedIndex:
    """Sorts the examples by label, cuts them into N * s equal shards and deals s to each client.

    60,000 examples, 100 clients and s = 2 give 200 shards of 300 examples; most clients then hold
    two classes.

    Args:
      shards_per_client: s.

    Source: McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized
    Data. AISTATS 2017.
    """
    labels = check_labels(labels, clients)
    if not 1 <= shards_per_client <= len(labels) // clients:
        raise ValueError(
            f"shards_per_client={shards_per_client} for {clients} clients and {len(labels)} examples: must lie in "
            f"[1, {len(labels) // clients}]."
        )
    rng, number = make_generator(seed, "shards"), clients * shards_per_client
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shard_size, more = divmod(len(labels), number)
    whose = np.empty(number, np.int64)  # each shard
    whose[rng.permutation(number)] = np.repeat(np.arange(clients), shards_per_client)
    return RaggedIndex.group_by_client(by_label, np.repeat(whose, shard_size + (np.arange(number) < more)), clients)


def _fit_equal_sizes(rows: np.ndarray, log_share: np.ndarray) -> np.ndarray:
    """Returns integers [K, N] near the draw's odds, with sums `rows` and equal column sums."""
    sizes = apportion(rows.sum(), np.ones(log_share.shape[1]))
    logs = log_share
    for _ in range(FITTING_STEPS):
        logs = logs + np.log(sizes) - log_sum_exp(logs, 0)
        logs = logs + np.log(rows)[:, None] - log_sum_exp(logs, 1)
        if np.abs(np.exp(logs).sum(0) - sizes).max() < 0.5:
            break
    table = apportion(rows, np.exp(logs - np.log(rows)[:, None]))
    surplus = table.sum(0) - sizes
    (_move_one_by_one if len(sizes) <= MANY else _move_together)(table, surplus, logs)
    return table


def _move_one_by_one(table: np.ndarray, surplus: np.ndarray, logs: np.ndarray) -> None:
    """Moves examples in `table` [K, N] from clients with a surplus [N], largest first, to others."""
    while surplus.any():  # every move uses up a surplus, a deficit or a cell
        giver, taker = int(surplus.argmax()), int(surplus.argmin())
        gain = np.where(table[:, giver] > 0, logs[:, taker] - logs[:, giver], -np.inf)
        c = int(gain.argmax())
        moved = min(surplus[giver], -surplus[taker], table[c, giver])
        table[c, [giver, taker]] += [-moved, moved]
        surplus[[giver, taker]] += [-moved, moved]


def _move_together(table: np.ndarray, surplus: np.ndarray, logs: np.ndarray) -> None:
    """Moves one example from each giver to a taker of its own, at most about K times."""
    while surplus.any():
        givers, takers = np.flatnonzero(surplus > 0), np.flatnonzero(surplus < 0)
        number = min(len(givers), len(takers))
        givers, takers = givers[:number], takers[:number]
        c = np.where(table[:, givers] > 0, logs[:, takers] - logs[:, givers], -np.inf).argmax(0)
        table[c, givers] -= 1
        table[c, takers] += 1
        surplus[givers] -= 1
        surplus[takers] += 1


def _pass_over_full_clients(rows: np.ndarray, log_share: np.ndarray) -> np.ndarray:
    """Returns the table [K, N] of `rows` [K] dealt class by class to clients below the mean, in the proportions drawn for them."""
    table = np.zeros(log_share.shape, np.int64)
    held = np.zeros(log_share.shape[1], np.int64)
    for c, drawn in enumerate(log_share):
        open_share = np.where(held * len(held) < rows.sum(), drawn, -np.inf)
        table[c] = apportion(rows[c], np.exp(open_share - open_share.max()))
        held += table[c]
    return table


def _deal(labels: np.ndarray, classes: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> RaggedIndex:
    """Deals `table[c, i]` random examples of class c to client i, disjointly."""
    shuffled = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    rows = np.concatenate([of_class[: numbers.sum()] for of_class, numbers in zip(shuffled, table, strict=True)])
    everyone = np.arange(table.shape[1])
    whose = np.concatenate([np.repeat(everyone, numbers) for numbers in table])
    return RaggedIndex.group_by_client(rows, whose, len(everyone))
