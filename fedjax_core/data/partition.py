"""How a data set is divided over clients: pure functions of labels and a data seed.

Every scheme takes `labels` [rows] (or domains, or ids), the number of clients N and a seed, and returns one sorted int32
array of row numbers per client. A scheme whose protocol also fixes the clients' test sets takes the test labels and returns a
pair `(train, test)` of such lists. Draws come from `numpy.random.Generator`s made from `(seed, scheme)`, so the data seed alone
fixes a partition, whatever the training seed, the backend or the number of devices.

Labels are only ever read in place: rows move between clients together with their labels. A request that cannot be met ends,
after a bounded number of tries, with a ValueError that holds the numbers.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_core import by_name

Index = list[np.ndarray]
Alpha = float | Sequence[float]

ALPHA_RANGE = (1e-100, 1e100)  # beyond it the logarithms of a draw overflow
FITTING_STEPS = 500  # of iterative proportional fitting; what it leaves over is moved by hand


def generator(seed: int, stream: str) -> np.random.Generator:
    """The random generator of one purpose: streams of one seed are independent of each other.

    Raises:
      ValueError: `seed` is not an integer >= 0.
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"data seed {seed!r}: must be an integer >= 0.")
    return np.random.default_rng((int(seed), zlib.crc32(stream.encode())))


def apportion(total: Any, shares: np.ndarray) -> np.ndarray:
    """Whole numbers in the proportions of `shares` that add up to `total` exactly (largest remainders; ties to the first).

    Args:
      total: [...] integers.
      shares: [..., N] numbers >= 0, not all of them 0 in any row; they need not add up to 1.

    Returns:
      [..., N] int64; `apportion(10, [1, 1, 1])` is `[4, 3, 3]`.
    """
    total, shares = np.asarray(total), np.asarray(shares, float)
    quota = total[..., None] * (shares / shares.sum(-1, keepdims=True))
    whole = np.floor(quota).astype(np.int64)
    left = total - whole.sum(-1)
    rank = np.argsort(np.argsort(-(quota - whole), axis=-1, kind="stable"), axis=-1, kind="stable")
    return whole + (rank < left[..., None])


def apportion_capped(total: int, shares: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """`apportion`, but no part exceeds its cap: the excess goes to the others in proportion to their shares.

    When all parts with a positive share are full, the rest is divided by the room that is left.

    Args:
      total: at most the sum of the caps.
      shares: [K] numbers >= 0.
      caps: [K] integers >= 0.

    Returns:
      [K] int64 that adds up to `total`.
    """
    parts = np.zeros(len(caps), np.int64)
    while left := total - int(parts.sum()):
        room = caps - parts
        weights = np.where(room > 0, shares, 0.0)
        wanted = apportion(left, weights if weights.sum() > 0 else room)
        parts += np.minimum(wanted, room)
    return parts


def iid(labels: np.ndarray, clients: int, seed: int) -> Index:
    """Shuffles all rows and cuts them into N parts of equal size (up to one row).

    Args:
      labels: [rows] class indices; only their number matters.
      clients: N, at most the number of rows.
      seed: data seed.

    Returns:
      N disjoint index arrays that cover all rows: 10 rows for 3 clients give sizes 4, 3, 3.

    Raises:
      ValueError: more clients than rows, or bad labels.
    """
    labels = _labels(labels, clients)
    return [_sorted(part) for part in np.array_split(generator(seed, "iid").permutation(len(labels)), clients)]


def dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha | Literal["random"],
    min_size: int = 1,
    min_share: float = 0.0,
    balanced: bool = False,
    max_tries: int = 1000,
) -> Index:
    """Divides each class over the clients in proportions drawn from a Dirichlet distribution.

    Small alpha means more skew: with 10 clients, the largest share of a class that one client gets is 0.94 on average at alpha
    0.01, 0.66 at 0.1, 0.38 at 0.5, 0.29 at 1, and 0.1 (an equal split) as alpha grows to infinity. Client sizes differ too,
    unless `balanced`. The draws are made in log space: a tiny alpha gives each class whole to one client, and never NaN.

    Args:
      labels: [rows] class indices.
      clients: N, at most the number of rows.
      seed: data seed.
      alpha: concentration; one number, or N of them, one per client; or "random" (FedHPL): for each class, N uniform numbers
        scaled to add up to 1.
      min_size: rows that the smallest client must have; the draw is repeated until it has. 0 allows empty clients.
      min_share: part of *each class* that every client gets before the rest is drawn (FedHPL: 0.01 for 5 clients on CIFAR-10,
        so 50 of 5000 rows); rounded down to whole rows. At most 1/N.
      balanced: all clients get equally many rows (up to one). The drawn proportions are fitted to equal client sizes by
        iterative proportional fitting, which keeps the draw's odds ratios; what whole rows leave over is moved between clients.
      max_tries: draws before giving up on `min_size`.

    Returns:
      N disjoint index arrays that cover all rows.

    Raises:
      ValueError: alpha outside (0, inf), N * min_size more than there are rows, N * min_share over 1, `min_share` with
        `balanced`, or no draw in `max_tries` with `min_size` rows for everyone; the message names a `min_size` and an alpha
        that would do.

    Source: Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
    in the per-class form of Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019.
    """
    labels = _labels(labels, clients)
    if not 0 <= min_share <= 1 / clients:
        raise ValueError(f"min_share={min_share} for {clients} clients: must lie in [0, 1/{clients} = {1 / clients:.4g}].")
    if balanced and min_share:
        raise ValueError(f"min_share={min_share} with balanced=True: equal sizes leave no minimum share; set one of them.")
    rng = generator(seed, "dirichlet")
    classes, rows = np.unique(labels, return_counts=True)

    def draw(concentration):
        if isinstance(concentration, str):
            concentration = 1.0 - rng.random((len(classes), clients))
            concentration = concentration / concentration.sum(1, keepdims=True)
        log_share = _log_dirichlet(rng, concentration, (len(classes), clients))
        if balanced:
            return _fit_equal_sizes(rows, log_share)
        return apportion(rows, min_share + (1 - clients * min_share) * np.exp(log_share))

    if isinstance(alpha, str) and alpha != "random":
        raise ValueError(f"alpha={alpha!r}: must be a number > 0, {clients} of them, or 'random'.")
    concentration = alpha if isinstance(alpha, str) else _alpha(alpha, clients, "client")
    table = _draw_until(draw, "dirichlet", concentration, min_size, len(labels), clients, max_tries)
    return _deal(labels, classes, table, rng)


def quantity_skew(labels: np.ndarray, clients: int, seed: int, *, alpha: Alpha, min_size: int = 1, max_tries: int = 1000) -> Index:
    """Client sizes from a Dirichlet distribution, rows at random: label distributions agree, quantities do not.

    Small alpha means more skew: with 10 clients the largest holds 66 % of the rows on average at alpha 0.1, 15 % at alpha 10.

    Args:
      labels: [rows] class indices; only their number matters.
      clients: N, at most the number of rows.
      seed: data seed.
      alpha: concentration, one number or N of them.
      min_size: rows that the smallest client must have; 0 allows empty clients.
      max_tries: draws before giving up on `min_size`.

    Returns:
      N disjoint index arrays that cover all rows.

    Raises:
      ValueError: as `dirichlet`.

    Source: Li, Diao, Chen, He. Federated Learning on Non-IID Data Silos: An Experimental Study. ICDE 2022.
    """
    labels = _labels(labels, clients)
    rng = generator(seed, "quantity_skew")

    def draw(concentration):
        return apportion([len(labels)], np.exp(_log_dirichlet(rng, concentration, (1, clients))))

    concentration = _alpha(alpha, clients, "client")
    sizes = _draw_until(draw, "quantity_skew", concentration, min_size, len(labels), clients, max_tries)[0]
    return [_sorted(part) for part in np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])]


def dirichlet_clients(
    labels: np.ndarray,
    test_labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha,
    train_examples: int = 500,
    test_examples: int = 100,
    replace: bool = False,
    max_tries: int = 1000,
) -> tuple[Index, Index]:
    """Each client draws its own label distribution, q ~ Dir(alpha) over the classes, and fixed numbers of rows from it.

    Client i gets q_ic * train_examples training rows and q_ic * test_examples test rows of class c (largest remainders, so
    the totals are exact). Clients choose their rows independently and *may share examples*. Small alpha means fewer classes
    per client: with 10 classes the largest has 94 % of a client's rows on average at alpha 0.01, 66 % at 0.1, 29 % at 1.

    Args:
      labels: [rows] class indices of the training rows.
      test_labels: [test rows] class indices of the test rows.
      clients: N.
      seed: data seed.
      alpha: concentration; one number, or one per class that occurs in `labels`.
      train_examples: training rows per client (FedPFT: 500).
      test_examples: test rows per client (FedPFT: 100; 200 on Tiny-ImageNet).
      replace: where a client wants more rows of a class than there are, False draws its q again; True draws that class's rows
        with repetition, as the authors' code does, and keeps q.
      max_tries: draws of q per client before giving up.

    Returns:
      Training and test index arrays, N each, of exactly the sizes asked for.

    Raises:
      ValueError: alpha outside (0, inf), a number of examples that is negative or (training) 0, a class without test rows, or a
        client whose q asks for more rows than a class has in each of `max_tries` draws; the message says of what.

    Source: Wu et al. Tackling Feature-Classifier Mismatch in Federated Learning via Prompt-Driven Feature Transformation
    (FedPFT), 2024.
    """
    labels, test_labels = _labels(labels, 1), _labels(test_labels, 1)
    _at_least_one_client(clients)
    classes = np.unique(labels)
    concentration = _alpha(alpha, len(classes), "class")
    rng = generator(seed, "dirichlet_clients")

    def draw():
        return np.exp(_log_dirichlet(rng, concentration, (len(classes),)))

    numbers = (train_examples, test_examples)
    return _own_distributions("dirichlet_clients", (labels, test_labels), numbers, [draw] * clients, rng, replace, max_tries)


def pathological_clients(
    labels: np.ndarray,
    test_labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    classes_per_client: int,
    train_examples: int = 500,
    test_examples: int = 100,
    replace: bool = False,
) -> tuple[Index, Index]:
    """Each client draws n classes and fixed numbers of rows from them, equally many of each; clients may share examples.

    With 10 classes, n = 2 and 500 training rows a client holds 250 rows of each of two classes. Classes are dealt so that all
    are used equally often (up to one client).

    Args:
      labels: [rows] class indices of the training rows.
      test_labels: [test rows] class indices of the test rows.
      clients: N.
      seed: data seed.
      classes_per_client: n (FedPFT: 2, 20 and 40 on 10, 100 and 200 classes).
      train_examples: training rows per client.
      test_examples: test rows per client.
      replace: True draws a class's rows with repetition where a client wants more than there are; False refuses.

    Returns:
      Training and test index arrays, N each, of exactly the sizes asked for.

    Raises:
      ValueError: n outside [1, K], or more rows of a class than there are.

    Source: Wu et al. Tackling Feature-Classifier Mismatch in Federated Learning via Prompt-Driven Feature Transformation
    (FedPFT), 2024.
    """
    labels, test_labels = _labels(labels, 1), _labels(test_labels, 1)
    _at_least_one_client(clients)
    classes = np.unique(labels)
    rng = generator(seed, "pathological_clients")
    held = _deal_classes(rng, len(classes), clients, classes_per_client)
    draws = [lambda row=row: row / row.sum() for row in held]
    return _own_distributions(
        "pathological_clients", (labels, test_labels), (train_examples, test_examples), draws, rng, replace, max_tries=1
    )


def overlapping_dirichlet(
    labels: np.ndarray,
    clients: int,
    seed: int,
    *,
    alpha: Alpha | Literal["random_over_classes", "random_over_clients"] = "random_over_classes",
    train_examples: int | None = None,
) -> Index:
    """FedHPL's "Dir": client k takes q_kc * |D_k| rows of each class c, q_k ~ Dir(alpha_k); clients may share examples.

    Small alpha means fewer classes per client. A client's share of a class can exceed the class: 5 clients on CIFAR-10 take
    10,000 rows each, and a class has 5,000. It then gets the whole class, and the excess is divided over its other
    classes in proportion to q (our choice; the paper is silent). A row occurs at most once in a client.

    Args:
      labels: [rows] class indices.
      clients: N.
      seed: data seed.
      alpha: concentration, one number or one per class; or drawn uniformly and scaled so that the alpha_kc of a client add up
        to 1 ("random_over_classes", FedHPL's CIFAR-10) or those of a class do ("random_over_clients", its CIFAR-100 and SVHN).
      train_examples: |D_k|. None: the rows are counted out equally, so that the sizes add up to all rows.

    Returns:
      N index arrays that may overlap.

    Raises:
      ValueError: alpha outside (0, inf), an unknown way to draw it, or `train_examples` outside [1, rows].

    Source: Ma et al. FedHPL: Efficient Heterogeneous Federated Learning with Prompt Tuning and Logit Distillation, 2024.
    """
    labels = _labels(labels, clients)
    classes, rows = np.unique(labels, return_counts=True)
    rng = generator(seed, "overlapping_dirichlet")
    if isinstance(alpha, str):
        by_name.choose("way to draw alpha", alpha, ("random_over_classes", "random_over_clients"))
        drawn = 1.0 - rng.random((clients, len(classes)))
        concentration = drawn / drawn.sum(1 if alpha == "random_over_classes" else 0, keepdims=True)
    else:
        concentration = _alpha(alpha, len(classes), "class")
    if train_examples is None:
        sizes = apportion(len(labels), np.ones(clients))
    elif 1 <= train_examples <= len(labels):
        sizes = np.full(clients, train_examples)
    else:
        raise ValueError(f"train_examples={train_examples}: must lie in [1, {len(labels)}], the number of rows.")
    shares = np.exp(_log_dirichlet(rng, concentration, (clients, len(classes))))
    of_class = [np.flatnonzero(labels == c) for c in classes]
    return [
        _choose_rows(rng, of_class, apportion_capped(int(size), share, rows), replace=False)
        for size, share in zip(sizes, shares, strict=True)
    ]


def pathological(
    labels: np.ndarray, clients: int, seed: int, *, classes_per_client: int | Sequence[int], equal_volume: bool = True
) -> Index:
    """Each client holds n classes; a class's rows are divided equally over the clients that hold it.

    Classes are dealt so that each has the same number of holders, up to one: 20 clients with n = 2 and 10 classes of 5000 rows
    give every class 4 holders with 1250 rows each, so 2500 rows per client.

    Args:
      labels: [rows] class indices.
      clients: N.
      seed: data seed.
      classes_per_client: n, between 1 and K; or N of them, one per client (FedHPL, Figures 7 to 9: 2, 4, 6, 8 and 10).
      equal_volume: every client gets the same number of rows of each of its classes, the largest that all can have; rows
        beyond it belong to no client. False deals out all rows, and sizes differ as class sizes and holders do.

    Returns:
      N disjoint index arrays, each with exactly n classes.

    Raises:
      ValueError: n outside [1, K] or not one per client; N * n < K, which would leave classes without a holder; or a class with
        fewer rows than holders.
    """
    labels = _labels(labels, clients)
    classes, rows = np.unique(labels, return_counts=True)
    each = np.asarray(classes_per_client)
    if each.shape not in ((), (clients,)) or not np.issubdtype(each.dtype, np.integer):
        raise ValueError(f"classes_per_client={classes_per_client}: must be an integer, or {clients} of them, one per client.")
    places = int(np.broadcast_to(each, clients).sum())
    if each.min() >= 1 and places < len(classes):
        raise ValueError(
            f"{clients} clients with classes_per_client={classes_per_client} hold {places} of {len(classes)} classes; needs "
            f"classes_per_client >= {-(-len(classes) // clients)} or more clients."
        )
    rng = generator(seed, "pathological")
    held = _deal_classes(rng, len(classes), clients, classes_per_client).T  # [K, N]
    holders = held.sum(1)
    if np.any(rows < holders):
        c = int(np.argmax(holders - rows))
        raise ValueError(
            f"class {classes[c]} has {rows[c]} rows for {holders[c]} holders ({clients} clients with classes_per_client="
            f"{classes_per_client}); needs fewer clients or fewer classes per client."
        )
    table = held * np.min(rows // holders) if equal_volume else apportion(rows, held)
    return _deal(labels, classes, table, rng)


def shards(labels: np.ndarray, clients: int, seed: int, *, shards_per_client: int = 2) -> Index:
    """Sorts the rows by label, cuts them into N * s shards of equal size (up to one row) and deals s of them to each client.

    60,000 rows, 100 clients and s = 2 give 200 shards of 300 rows; most clients then hold two classes.

    Args:
      labels: [rows] class indices.
      clients: N.
      seed: data seed.
      shards_per_client: s.

    Returns:
      N disjoint index arrays that cover all rows.

    Raises:
      ValueError: s < 1, or more shards than rows.

    Source: McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
    """
    labels = _labels(labels, clients)
    if not 1 <= shards_per_client <= len(labels) // clients:
        raise ValueError(
            f"shards_per_client={shards_per_client} for {clients} clients and {len(labels)} rows: must lie in "
            f"[1, {len(labels) // clients}]."
        )
    rng = generator(seed, "shards")
    shuffled = rng.permutation(len(labels))
    cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients * shards_per_client)
    dealt = rng.permutation(len(cut)).reshape(clients, shards_per_client)
    return [_sorted(np.concatenate([cut[shard] for shard in hand])) for hand in dealt]


def by_domain(
    domains: np.ndarray,
    test_domains: np.ndarray,
    clients: int,
    seed: int,
    *,
    train_examples: int | None = None,
    test_examples: int | None = None,
) -> tuple[Index, Index]:
    """Each client holds one domain (feature shift); with several clients per domain they divide it equally.

    Client i has the i-th domain, counting round: 4 clients on PACS have one domain each, 8 clients halve each domain. Where
    no domain is both trained and tested on (`sources.unseen_domain`), every client has all test rows.

    Args:
      domains: [rows] domain indices of the training rows.
      test_domains: [test rows] domain indices of the test rows.
      clients: N, a multiple of the number of domains.
      seed: data seed.
      train_examples: training rows per client, drawn from its part (FedPFT on PACS: 1000); None: all of them.
      test_examples: test rows per client (FedPFT on PACS: 500); None: all of them.

    Returns:
      Training and test index arrays, N each, disjoint but for the test rows of unseen domains.

    Raises:
      ValueError: N is no multiple of the number of domains, a domain without test rows, or fewer rows in a client's part than
        asked for.
    """
    domains, test_domains = _labels(domains, clients, "domain"), _labels(test_domains, 1, "domain")
    present = np.unique(domains)
    if clients % len(present):
        raise ValueError(f"{clients} clients for {len(present)} domains: must be a multiple of {len(present)}.")
    rng = generator(seed, "by_domain")

    def divide(of_row, examples, what):
        parts: list[np.ndarray] = [np.zeros(0, np.int32)] * clients
        for place, domain in enumerate(present):
            owners = range(place, clients, len(present))
            rows = rng.permutation(np.flatnonzero(of_row == domain))
            fewest = len(rows) // len(owners)
            if fewest < (1 if examples is None else max(examples, 1)):
                raise ValueError(
                    f"domain {domain} has {len(rows)} {what} rows for {len(owners)} clients, {fewest} each; {what}_examples="
                    f"{examples} needs at least as many, so lower it or change the train/test split."
                )
            for owner, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
                parts[owner] = _sorted(part[:examples])
        return parts

    train = divide(domains, train_examples, "train")
    if not np.isin(test_domains, present).any() and test_examples is None:
        return train, [np.arange(len(test_domains), dtype=np.int32)] * clients
    return train, divide(test_domains, test_examples, "test")


def natural(ids: np.ndarray, test_ids: np.ndarray | None, clients: int, seed: int) -> tuple[Index, Index | None]:
    """The clients that come with the data, such as the writers of handwritten characters.

    Args:
      ids: [rows] the client of each training row, integers >= 0.
      test_ids: [test rows] the client of each test row; None if test rows belong to nobody.
      clients: N; fewer than there are ids: N of them are chosen at random. They come in increasing order of id.
      seed: data seed.

    Returns:
      Training index arrays, and test index arrays or None. A chosen client without test rows has an empty test array.

    Raises:
      ValueError: more clients than ids.
    """
    ids = _labels(ids, clients, "id")
    present = np.unique(ids)
    if clients > len(present):
        raise ValueError(f"{clients} clients, but the data have {len(present)} natural ones; allowed: 1 to {len(present)}.")
    chosen = np.sort(generator(seed, "natural").choice(present, clients, replace=False))
    if test_ids is None:
        return _rows_of(ids, chosen), None
    return _rows_of(ids, chosen), _rows_of(_labels(test_ids, 1, "id"), chosen)


def long_tail(labels: np.ndarray, seed: int, *, rho: float) -> np.ndarray:
    """Thins the classes to an exponential profile; applied before any of the partitions.

    Class j of K keeps n_j = floor(n_max * rho^(-j / (K-1))) rows, chosen at random: class 0 is the head, class K-1 the tail,
    and rho the ratio between them. On CIFAR-10 with rho = 100: 5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50. n_max is the
    size of the classes if all are equal, and else the largest with which no class falls short of its n_j. Small rho means less
    skew; 1 balances the classes.

    Args:
      labels: [rows] class indices.
      seed: data seed.
      rho: imbalance factor, at least 1 (FedSKC: 10, 50, 100).

    Returns:
      The kept rows, sorted, int32.

    Raises:
      ValueError: rho is not a number >= 1, or so large that the last class would be empty; the message has the largest
        that is possible.

    Source: Cao et al. Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS 2019.
    """
    labels = _labels(labels, 1)
    if not (isinstance(rho, int | float | np.number) and math.isfinite(rho) and rho >= 1):
        raise ValueError(f"rho={rho!r}: must be a finite number >= 1 (1 balances the classes, 100 is a long tail).")
    classes, rows = np.unique(labels, return_counts=True)
    decay = float(rho) ** -(np.arange(len(classes)) / max(len(classes) - 1, 1))
    most = np.min(rows / decay)
    kept = np.floor(np.floor(most + 1e-9) * decay + 1e-9).astype(int)
    if kept.min() < 1:
        raise ValueError(
            f"rho={rho}: class {classes[-1]} would keep no row of {rows[-1]} (the first class keeps {kept[0]}); "
            f"allowed here: 1 to {kept[0]}."
        )
    rng = generator(seed, "long_tail")
    return _choose_rows(rng, [np.flatnonzero(labels == c) for c in classes], kept, replace=False)


SCHEMES: tuple[Callable, ...] = (
    iid,
    dirichlet,
    quantity_skew,
    dirichlet_clients,
    pathological_clients,
    overlapping_dirichlet,
    pathological,
    shards,
    by_domain,
    natural,
)


def make(name: str, columns: Mapping[str, np.ndarray | None], clients: int, seed: int, **options) -> tuple[Index, Index | None]:
    """Runs the scheme called `name`.

    Args:
      name: one of the functions in `SCHEMES`.
      columns: what is known about the rows: `labels`, `test_labels`, `domains`, `test_domains`, `ids`, `test_ids`; None or
        absent where the data have no such column.
      clients: N.
      seed: data seed.
      **options: the scheme's own keyword arguments.

    Returns:
      Training index arrays, and the test index arrays of a scheme that defines them, otherwise None.

    Raises:
      ValueError: an unknown name, or a scheme that needs a column that the data lack.
      TypeError: an option that the scheme does not have, or one that is missing.
    """
    functions = {function.__name__: function for function in SCHEMES}
    scheme = functions[by_name.choose("partition", name, functions)]
    needs = {by_domain: ("domains", "test_domains"), natural: ("ids",)}.get(scheme, ())
    for column in needs:
        if columns.get(column) is None:
            raise ValueError(f"partition {name!r} needs {column}, and this data set has none.")
    given = {**dict.fromkeys(("domains", "test_domains", "ids", "test_ids")), **columns, "clients": clients, "seed": seed}
    result = by_name.call(f"partition {name!r}", scheme, given, options)
    return result if isinstance(result, tuple) else (result, None)


def _sorted(rows: np.ndarray) -> np.ndarray:
    return np.sort(rows).astype(np.int32)


def _at_least_one_client(clients: int) -> None:
    if not isinstance(clients, int | np.integer) or isinstance(clients, bool) or clients < 1:
        raise ValueError(f"clients={clients!r}: must be an integer >= 1.")


def _labels(labels: np.ndarray, clients: int, what: str = "label") -> np.ndarray:
    """Labels (or domains, or ids) as an array, checked, with at least as many rows as clients."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{what}s of shape {labels.shape} and type {labels.dtype}: must be integers of shape [rows].")
    if len(labels) and labels.min() < 0:
        raise ValueError(f"{what} {labels.min()} in row {labels.argmin()}: must be >= 0.")
    _at_least_one_client(clients)
    if clients > len(labels):
        raise ValueError(f"{clients} clients for {len(labels)} rows; allowed: 1 to {len(labels)}.")
    return labels


def _alpha(alpha: Alpha, number: int, per: str) -> np.ndarray:
    """Concentration as a scalar or [number] array, checked."""
    low, high = ALPHA_RANGE
    try:
        values = np.asarray(alpha, float)
    except (TypeError, ValueError):
        raise ValueError(f"alpha={alpha!r}: must be a number > 0, or one number per {per}.") from None
    if values.shape not in ((), (number,)):
        raise ValueError(f"alpha has shape {values.shape}: must be one number, or {number} of them, one per {per}.")
    if not np.all((values >= low) & (values <= high)):  # NaN fails too
        raise ValueError(f"alpha={alpha}: must be > 0 and finite (from {low:g} to {high:g}); small alpha means more skew.")
    return values


def _log_dirichlet(rng: np.random.Generator, alpha: np.ndarray | float, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithm of a Dirichlet draw over the last axis, finite at any alpha: Gamma(a) = Gamma(a + 1) * U^(1 / a)."""
    alpha = np.broadcast_to(alpha, shape)
    log_gamma = np.log(rng.gamma(alpha + 1.0)) + np.log(1.0 - rng.random(shape)) / alpha
    return log_gamma - _log_sum(log_gamma, -1)


def _log_sum(logs: np.ndarray, axis: int) -> np.ndarray:
    most = logs.max(axis, keepdims=True)
    return most + np.log(np.exp(logs - most).sum(axis, keepdims=True))


def _draw_until(draw, name: str, alpha, min_size: int, rows: int, clients: int, max_tries: int) -> np.ndarray:
    """The first of at most `max_tries` tables [K, N] in which every client has `min_size` rows."""
    if not 0 <= min_size <= rows // clients:
        raise ValueError(f"{name}: min_size={min_size} for {clients} clients and {rows} rows: must lie in [0, {rows // clients}].")
    if max_tries < 1:
        raise ValueError(f"{name}: max_tries={max_tries}: must be >= 1.")
    best = 0
    for _ in range(max_tries):
        table = draw(alpha)
        smallest = int(table.sum(0).min())
        if smallest >= min_size:
            return table
        best = max(best, smallest)
    advice = f"min_size <= {best}"
    if not isinstance(alpha, str) and alpha.ndim == 0:
        larger = (alpha * 2.0**step for step in range(1, 40))
        enough = (a for a in larger if any(draw(a).sum(0).min() >= min_size for _ in range(10)))
        if (found := next(enough, None)) is not None:
            advice += f", or alpha >= {found:.2g}"
    raise ValueError(
        f"{name}: none of {max_tries} draws with alpha={alpha} gave each of {clients} clients min_size={min_size} of {rows} "
        f"rows; in the best one the smallest client had {best}. Try {advice}, or fewer clients."
    )


def _fit_equal_sizes(rows: np.ndarray, log_share: np.ndarray) -> np.ndarray:
    """Whole numbers [K, N] with row sums `rows`, equal column sums (up to one), and about the odds ratios of the draw."""
    sizes = apportion(rows.sum(), np.ones(log_share.shape[1]))
    logs = log_share
    for _ in range(FITTING_STEPS):
        logs = logs + np.log(sizes) - _log_sum(logs, 0)
        logs = logs + np.log(rows)[:, None] - _log_sum(logs, 1)
        if np.abs(np.exp(logs).sum(0) - sizes).max() < 0.5:
            break
    table = apportion(rows, np.exp(logs - np.log(rows)[:, None]))
    surplus = table.sum(0) - sizes
    while surplus.any():  # every move uses up a surplus, a deficit or a cell
        giver, taker = int(surplus.argmax()), int(surplus.argmin())
        gain = np.where(table[:, giver] > 0, logs[:, taker] - logs[:, giver], -np.inf)
        c = int(gain.argmax())
        moved = min(surplus[giver], -surplus[taker], table[c, giver])
        table[c, [giver, taker]] += [-moved, moved]
        surplus[[giver, taker]] += [-moved, moved]
    return table


def _deal(labels: np.ndarray, classes: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> Index:
    """Deals `table[c, i]` random rows of class c to client i, disjointly; rows beyond the table's sums go to nobody."""
    hands = []
    for c, numbers in zip(classes, table, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == c))
        hands.append(np.split(rows, np.cumsum(numbers))[:-1])
    return [_sorted(np.concatenate(hand)) for hand in zip(*hands, strict=True)]


def _deal_classes(rng: np.random.Generator, classes: int, clients: int, each: int | Sequence[int]) -> np.ndarray:
    """[N, K] 0 or 1: `each` classes per client, those that the fewest clients hold so far, ties at random."""
    numbers = np.broadcast_to(each, clients)
    if not 1 <= numbers.min() <= numbers.max() <= classes:
        raise ValueError(f"classes_per_client={each}: must lie in [1, {classes}], the number of classes.")
    held = np.zeros((clients, classes), np.int64)
    for client in range(clients):
        order = rng.permutation(classes)
        chosen = order[np.argsort(held.sum(0)[order], kind="stable")[: numbers[client]]]
        held[client, chosen] = 1
    return held


def _choose_rows(rng: np.random.Generator, of_class: Index, numbers: np.ndarray, replace: bool) -> np.ndarray:
    """`numbers[c]` random rows of each class, sorted; with repetition only where a class has fewer and `replace` allows it."""
    drawn = [rng.choice(rows, n, replace=replace and n > len(rows)) for rows, n in zip(of_class, numbers, strict=True) if n]
    return _sorted(np.concatenate([np.zeros(0, np.int64), *drawn]))


def _own_distributions(name, labels, numbers, draws, rng, replace: bool, max_tries: int) -> tuple[Index, Index]:
    """Draws a label distribution per client, and `numbers` (training, test) of rows from it, shared between clients.

    `draws[i]()` is a distribution over the classes of the training labels; it is drawn again while a class has too few rows.
    """
    if numbers[0] < 1 or numbers[1] < 0:
        raise ValueError(f"{name}: train_examples={numbers[0]} must be >= 1, and test_examples={numbers[1]} >= 0.")
    classes = np.unique(labels[0])
    of_class = [[np.flatnonzero(part == c) for c in classes] for part in labels]
    there = np.array([[len(rows) for rows in part] for part in of_class])  # [2, K]
    if numbers[1] and there[1].min() == 0:
        raise ValueError(f"{name}: class {classes[there[1].argmin()]} has training rows but no test rows.")
    parts: tuple[Index, Index] = ([], [])
    for client, draw in enumerate(draws):
        for _ in range(max_tries):
            share = draw()
            wanted = np.stack([apportion(number, share) for number in numbers])
            if replace or np.all(wanted <= there):
                break
        else:
            part, c = np.unravel_index(np.argmax(wanted - there), there.shape)
            raise ValueError(
                f"{name}: client {client} wants {wanted[part, c]} of the {there[part, c]} {('training', 'test')[part]} rows of "
                f"class {classes[c]} (draw {max_tries} of {max_tries}); lower {('train', 'test')[part]}_examples="
                f"{numbers[part]}, or allow repeated rows with replace=True."
            )
        for part in (0, 1):
            parts[part].append(_choose_rows(rng, of_class[part], wanted[part], replace))
    return parts


def _rows_of(ids: np.ndarray, chosen: np.ndarray) -> Index:
    """The rows of each chosen id, in one pass over the sorted ids."""
    order = np.argsort(ids, kind="stable")
    first = np.searchsorted(ids[order], chosen, "left")
    last = np.searchsorted(ids[order], chosen, "right")
    return [_sorted(order[a:b]) for a, b in zip(first, last, strict=True)]
