"""Ranks of an adapter by client, for any method.

A client of rank r_i has the first r_i columns of each "a" and rows of each "b"; its arrays have
zeros beyond. There both factors are zero, so their gradients are, and training keeps them.

The scale is that of the network's own rank, alpha / rank, for all clients. Clients of rank r_i thus
have alpha_i = alpha r_i / rank, as in FLoRA's code (https://arxiv.org/abs/2409.05976). With
alpha / r_i the same columns would be another update at each client and at the server, and their
mean would have no meaning.
"""

from collections.abc import Callable

from fedjax_core.algorithm import Algorithm, ClientData, PyTree, builder_name, map_built
from fedjax_core.task import Task
from fedjax_core.training.adapters import find_ranks, truncate_adapters


def truncate_to_client(tree: PyTree, data: ClientData) -> PyTree:
    """Returns a tree with adapters of the client's rank; of the network's, if clients have no other."""
    own = None if data.settings is None else data.settings.rank
    return tree if own is None else truncate_adapters(tree, own)


def with_client_ranks(build: Callable[[Task], Algorithm], rank: int) -> Callable[[Task], Algorithm]:
    """Returns the method for clients that have `settings.rank` of the adapter's columns and rows.

    What a client receives, keeps and sends is truncated. A mean of uplinks has zeros in place of
    what a client lacks. The predictor "global" is the server's model at the network's rank; others
    are the client's at its own. Unseen clients have the network's rank.

    Args:
      build: the method.
      rank: of the network's adapter.

    Raises:
      ValueError: (when traced) clients neither receive nor keep an adapter of this rank.
    """
    name = builder_name(build)
    return map_built(build, lambda inner, _: _truncate(inner, rank, name))


def _truncate(inner: Algorithm, rank: int, name: str) -> Algorithm:
    def client_update(sent, client, data, key):
        if (ranks := find_ranks((sent, client))) != {rank}:
            has = f"adapters of rank {', '.join(map(str, sorted(ranks)))}" if ranks else "none"
            raise ValueError(
                f"clients.rank needs clients that receive or keep adapters of the network's rank, {rank}; those of "
                f"{name} have {has}"
            )
        out = inner.client_update(truncate_to_client(sent, data), truncate_to_client(client, data), data, key)
        local = truncate_to_client(out.after_training(sent), data)
        return out._replace(state=truncate_to_client(out.state, data), uplink=truncate_to_client(out.uplink, data), local=local)

    def personalise(sent, client, data, key):
        held = truncate_to_client((sent, client), data)
        return held if inner.personalise is None else truncate_to_client(inner.personalise(held[0], held[1], data, key), data)

    def prepare(sent, client, data, key):
        assert inner.prepare is not None
        held = truncate_to_client((sent, client), data)
        return truncate_to_client(inner.prepare(held[0], held[1], data, key), data)

    has_own_models = inner.personalise is not None or set(inner.predict) != {"global"}
    return inner._replace(
        client_update=client_update,
        personalise=personalise if has_own_models else None,
        prepare=inner.prepare and prepare,
    )
