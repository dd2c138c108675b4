"""Batch statistics that stay with the client: `statistics="local"`, for any method.

The statistics are removed from every `Net` that the server stores or a client sends, and one set
per client is kept beside the method's own client state.
"""

from collections.abc import Callable

import jax
import optax

from fedjax_core.algorithm import Algorithm, Array, PyTree, find_nets, is_net, map_built
from fedjax_core.task import Task


def _with_stats(tree: PyTree, stats: PyTree) -> PyTree:
    """Replaces the statistics of every Net in the tree, but for those that `optax.masked` leaves out."""
    has_stats = lambda x: is_net(x) and not isinstance(x.stats, optax.MaskedNode)
    return jax.tree.map(lambda x: x._replace(stats=stats) if has_stats(x) else x, tree, is_leaf=is_net)


def _stats(tree: PyTree) -> list[PyTree]:
    return [net.stats for net in find_nets(tree)]


def _plus(delta: Array | None, value: Array) -> Array:
    """Adds a delta; None where the method itself keeps the statistic with the client."""
    return value if delta is None else value + delta


def with_local_statistics(build: Callable[[Task], Algorithm]) -> Callable[[Task], Algorithm]:
    """Returns the method with batch statistics that clients keep and never send.

    Client states become (the method's own, statistics). A predictor "global" becomes "personal",
    the server's parameters with the client's statistics; a method that has a "personal" one keeps
    that and loses "global". Raises ValueError (when built into a round) if the uplink has several
    networks, or what is sent has several in one Net or is of another architecture.
    """
    return map_built(build, _keep_statistics)


def _keep_statistics(inner: Algorithm, task: Task) -> Algorithm:
    def server_init(key):
        server = inner.server_init(key)
        shapes = lambda stats: [leaf.shape for leaf in jax.tree.leaves(stats)]
        own = shapes(jax.eval_shape(task.model.init, key).stats)
        sent = jax.eval_shape(inner.broadcast, server, 0)
        if any(len(held) == len(own) and held != own for held in map(shapes, _stats(sent))):
            what = "this method sends several in one Net, or one of another architecture"
            raise ValueError(f"statistics='local' needs sent networks to have the statistics of the client's own: {what}")
        return _with_stats(server, ())

    def client_init(key, server, client_id):
        stats = task.model.init(key).stats
        return inner.client_init(key, _with_stats(server, stats), client_id), stats

    def client_update(sent, client, data, key):
        inner_client, stats = client
        out = inner.client_update(_with_stats(sent, stats), inner_client, data, key)
        moved = _stats(out.uplink)
        if len(moved) > 1:
            raise ValueError(f"statistics='local' needs an uplink with at most one network, this method's has {len(moved)}")
        if moved:
            stats = jax.tree.map(_plus, moved[0], stats, is_leaf=lambda x: x is None)
        local = out.local and (_with_stats(out.local[0], ()), (out.local[1], stats))
        uplink, wire = _with_stats(out.uplink, ()), _with_stats(out.wire, ())
        return out._replace(state=(out.state, stats), uplink=uplink, local=local, wire=wire)

    def personalise(sent, client, data, key):
        assert inner.personalise is not None
        inner_client, stats = client
        sent, inner_client = inner.personalise(_with_stats(sent, stats), inner_client, data, key)
        moved = _stats(sent)
        return _with_stats(sent, ()), (inner_client, moved[0] if moved else stats)

    def init_unseen(sent, client):
        assert callable(inner.init_unseen)
        return inner.init_unseen(_with_stats(sent, client[1]), client[0]), client[1]

    def prepare(sent, client, data, key):
        assert inner.prepare is not None
        return inner.prepare(_with_stats(sent, client[1]), client[0], data, key), client[1]

    def with_client_stats(predict):
        return lambda sent, client, x: predict(_with_stats(sent, client[1]), client[0], x)

    of_client = {"personal" if name == "global" else name: p for name, p in inner.predict.items()}
    if "personal" in inner.predict:
        of_client["personal"] = inner.predict["personal"]
    return inner._replace(
        server_init=server_init,
        client_init=client_init,
        client_update=client_update,
        predict={name: with_client_stats(p) for name, p in of_client.items()},
        personalise=inner.personalise and personalise,
        prepare=inner.prepare and prepare,
        init_unseen=init_unseen if callable(inner.init_unseen) else inner.init_unseen,
    )
