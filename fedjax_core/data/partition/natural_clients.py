"""Natural partitions: by domain, or by the clients that the data name."""

import logging

import numpy as np

from fedjax_core.data.apportion import make_generator
from fedjax_core.data.partition.sampling import Index, check_labels, sort_indices
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.option_types import AtLeastOne

log = logging.getLogger("fedjax_core")


def by_domain(
    domains: np.ndarray,
    test_domains: np.ndarray,
    clients: int,
    seed: int,
    *,
    train_examples: AtLeastOne | None = None,
    test_examples: AtLeastOne | None = None,
) -> tuple[Index, Index]:
    """Gives each client one domain (feature shift); with several clients per domain they divide it.

    Client i has the i-th domain, counting round: 4 clients on PACS have one domain each, 8 clients
    halve each domain, and N must be a multiple of the number of domains. Where no domain is both
    trained and tested on (`sources.unseen_domain`), every client has all test examples.

    Args:
      train_examples: training examples per client, drawn from its part (FedPFT on PACS: 1000);
        None: all of them.
      test_examples: test examples per client (FedPFT on PACS: 500); None: all of them.
    """
    domains, test_domains = check_labels(domains, clients, "domain"), check_labels(test_domains, 1, "domain")
    present = np.unique(domains)
    if clients % len(present):
        raise ValueError(f"{clients} clients for {len(present)} domains: must be a multiple of {len(present)}.")
    rng = make_generator(seed, "by_domain")

    def divide(of_row, examples, what):
        parts: list[np.ndarray] = [np.zeros(0, np.int32)] * clients
        for place, domain in enumerate(present):
            owners = range(place, clients, len(present))
            rows = rng.permutation(np.flatnonzero(of_row == domain))
            fewest = len(rows) // len(owners)
            if fewest < (1 if examples is None else max(examples, 1)):
                raise ValueError(
                    f"domain {domain} has {len(rows)} {what} examples for {len(owners)} clients, {fewest} each; {what}_examples="
                    f"{examples} needs at least as many, so lower it or change the train/test split."
                )
            for owner, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
                parts[owner] = sort_indices(part[:examples])
        return parts

    train = divide(domains, train_examples, "train")
    if not np.isin(test_domains, present).any() and test_examples is None:
        return train, [np.arange(len(test_domains), dtype=np.int32)] * clients
    return train, divide(test_domains, test_examples, "test")


def natural(
    ids: np.ndarray, clients: int | None, seed: int, test_ids: np.ndarray | None = None
) -> tuple[RaggedIndex, RaggedIndex | None]:
    """Keeps the clients that come with the data, such as the writers of handwritten characters.

    They come in increasing order of id; of more than N, N are chosen at random. Where test examples
    belong to nobody (test_ids None), there are no own ones. A client without training examples is
    left out, and a line says so.
    """
    ids = check_labels(ids, 1 if clients is None else clients, "id")
    small = ids.max(initial=0) < 4 * len(ids)  # then counting is faster than sorting
    present = np.flatnonzero(np.bincount(ids)) if small else np.unique(ids)
    clients = len(present) if clients is None else clients
    if clients > len(present):
        raise ValueError(f"{clients} clients, but the data have {len(present)} natural ones; allowed: 1 to {len(present)}.")
    chosen = np.sort(make_generator(seed, "natural").choice(present, clients, replace=False))
    if test_ids is None:
        return _rows_of(ids, chosen), None
    test_ids = check_labels(test_ids, 1, "id")
    if len(only := np.setdiff1d(test_ids, present)):
        what = "%d natural clients have test examples only, %d of all %d, which only scores on the whole test set count"
        log.warning(what, len(only), np.isin(test_ids, only).sum(), len(test_ids))
    return _rows_of(ids, chosen), _rows_of(test_ids, chosen)


def _rows_of(ids: np.ndarray, chosen: np.ndarray) -> RaggedIndex:
    """Returns the examples of each chosen id, ascending, in one pass over the sorted ids."""
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    first = np.searchsorted(ids, chosen, "left")
    lists = RaggedIndex(order, first, np.searchsorted(ids, chosen, "right") - first)
    return lists if lists.total == len(order) else RaggedIndex.from_sizes(lists.concatenate(), lists.size)
