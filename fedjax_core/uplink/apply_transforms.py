"""An Algorithm whose uplinks pass through links: the package's docstring has the picture."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Cohort, PyTree, Reduce
from fedjax_core.task import Task
from fedjax_core.training import aggregators
from fedjax_core.uplink import sharded_aggregation
from fedjax_core.uplink.flatten import checked, joined, length, of_vector, vector
from fedjax_core.uplink.statistics import floored
from fedjax_core.uplink.transform import Carried, Link, Reduction, Sender, order

HIDING = ("local privacy", "compression", "privacy")  # kinds of links that can make a number of what is not finite
_STREAM = 0x6C696E6B  # keeps the links' draws apart from the method's own, which come from the same key


class Server(NamedTuple):
    """Attributes:
    inner: the method's state.
    memory: each link's.
    """

    inner: PyTree
    memory: tuple[PyTree, ...]


class Client(NamedTuple):
    """Attributes:
    inner: the method's state.
    kept: what each link keeps with the client.
    """

    inner: PyTree
    kept: tuple[PyTree, ...]


class Sent(NamedTuple):
    """Attributes:
    inner: what the method sends.
    id: [] of the client that it goes to.
    memory: each link's.
    """

    inner: PyTree
    id: Array
    memory: tuple[PyTree, ...]


class Arriving(NamedTuple):
    """The uplink of a wrapped method.

    Attributes:
      uplink: the method's, part by part (part, counts), where it reduces them itself; else `()`.
      deltas, classes: contributions to a reduction; else `()`.
      weights: of each part of class means, [K] what the method weighs the client's by; with a reduction.
      counts: [] whether the client counts: it is not left out.
      notes: pairs of the links.
    """

    uplink: PyTree
    deltas: PyTree
    classes: tuple[PyTree, ...]
    weights: tuple[PyTree, ...]
    counts: PyTree
    notes: PyTree


def wrapped(
    build: Callable[[Task], Algorithm], links: Sequence[Link], like: PyTree, leave_out: bool = False
) -> Callable[[Task], Algorithm]:
    """`wrap` for a method's builder."""
    return functools.update_wrapper(lambda task: wrap(build(task), links, like, leave_out, name_of(build)), build)


def name_of(build: Any) -> str:
    """What a method is called, of its builder with options or inside a transformation."""
    while isinstance(build, functools.partial) or hasattr(build, "__wrapped__"):
        build = build.func if isinstance(build, functools.partial) else build.__wrapped__
    return getattr(build, "__name__", "the method")


def bare(held: PyTree) -> PyTree:
    """A state, or what is sent, without what wrapping has put around it."""
    return held.inner if isinstance(held, (Server, Client, Sent)) else held


def wrap(inner: Algorithm, links: Sequence[Link], like: PyTree, leave_out: bool = False, name: str = "the method") -> Algorithm:
    """The method with its uplinks passed through links.

    Args:
      inner: the method.
      links: in any order.
      like: shapes of one client's uplink.
      leave_out: whether a client that sends, reports or keeps something not finite counts as one that dropped out: it keeps the
        state that it had, and the record says how many there were. Else such a round ends the run.
      name: of the method, for messages.

    Returns:
      The wrapped method.

    Raises:
      ValueError: a part of the uplink is neither a delta nor class means; two links would reduce; a link is not for the method; an
        attack that knows the others' uplinks meets noise of the server.
    """
    links, parts = order(links), Parts(inner.collect, like, name, links)
    for link in links:
        link.check(name, parts.like)
        if link.alike:
            parts.weighs_alike(link)
    counted = next((link.counted for link in links if link.counted is not None), None)
    chosen = [(place, link) for place, link in enumerate(links) if link.reduction is not None]
    crafting = [(place, link.craft) for place, link in enumerate(links) if link.craft is not None]
    noisy = next((link for link in links if link.kind == "privacy"), None)
    if crafting and noisy is not None:
        attack = links[crafting[0][0]].name
        raise ValueError(
            f"attack {attack!r} is made of what the others send, so one client would move the sum by more than its clip, and "
            f"privacy {noisy.name!r} could not tell epsilon; take an attack that knows its own client alone, such as sign_flip, or "
            "a mechanism whose noise clients add, such as local_gaussian"
        )
    hides = [link.kind in HIDING and (link.send is not None or link.reduction is not None) for link in links]
    reduces = bool(chosen or crafting)
    at, reduction = (chosen[0][0], chosen[0][1].reduction) if chosen else (None, Reduction())
    assert reduction is not None
    who = f"{chosen[0][1].kind} {chosen[0][1].name!r}, combining," if chosen else "the mean"

    def of_link(key: Array, place: int) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, _STREAM), place)

    def received(sent: PyTree) -> tuple[PyTree, PyTree]:
        """What a client is sent: (as it has it, the arrays that travel)."""
        travels = sent
        for link in links:
            sent, travels = (sent, travels) if link.down is None else link.down(sent)
        return sent, travels

    def memory_of(memory: tuple) -> PyTree:
        return () if at is None else memory[at]

    def lift(vectors, weights, sender: Sender):
        """Contributions of a client's deltas and of its class means, these mapped over their classes."""
        (of_deltas, of_classes), (w, of_class) = vectors, weights
        there = lambda row, w: jnp.where(w > 0, row, 0)  # noise and what compression had left are no part of the absent
        deltas = () if of_deltas is None else reduction.lift(there(of_deltas, w), w, sender)
        each = jax.vmap(lambda row, w: reduction.lift(there(row, w), w, sender._replace(memory=())))
        return deltas, tuple(each(rows, w) for rows, w in zip(of_classes, of_class, strict=True))

    def client_update(sent: Sent, client: Client, data, key):
        out = inner.client_update(sent.inner, client.inner, data, key)
        value, kept, notes, wire = parts.carried(out.uplink), [], {}, None
        sound = jnp.bool_(True)  # whether all was finite that a link may have made a number
        for place, link in enumerate(links):
            if hides[place]:
                sound &= _finite(value)
            if link.send is None:
                kept.append(client.kept[place])
                continue
            sender = Sender(sent.id, data.size, of_link(key, place), sent.memory[place])
            value, own, said, packed = link.send(value, sender, client.kept[place])
            kept.append(own)
            notes |= said
            wire = wire if packed is None else packed
        uplink = parts.put(out.uplink, value)
        travels = received(sent.inner)[1], uplink if wire is None else wire
        local = out.local and (sent._replace(inner=out.local[0]), Client(out.local[1], client.kept))
        state, counts, metrics = Client(out.state, tuple(kept)), jnp.bool_(True), out.metrics
        if leave_out:
            counts = sound & _finite((uplink, metrics)) & ~_turned(state, client)
            only = lambda new, old: jax.tree.map(lambda n, o: jnp.where(counts, n, o), new, old)
            zeros = lambda tree: only(tree, jax.tree.map(jnp.zeros_like, tree))
            value, uplink, metrics, notes, state = *map(zeros, (value, uplink, metrics, notes)), only(state, client)
            local = local and only(local, (sent, client))
        size = jnp.where(counts, data.size, 0)
        if not reduces:
            arriving = Arriving(parts.each(uplink, counts), (), (), (), counts, notes)
        else:
            weights = parts.weights(value, Cohort(sent.id, size))
            vectors = parts.vectors(value)
            contributions = vectors, weights
            if not crafting:
                contributions = lift(*contributions, Sender(sent.id, size, of_link(key, len(links)), memory_of(sent.memory)))
            else:
                contributions = (vectors[0], weights[0]), tuple(zip(vectors[1], weights[1], strict=True))
            arriving = Arriving((), *contributions, weights[1], counts, notes)
        if any(hides) and not leave_out:  # the engine sees it, and ends the run
            shown = lambda x: jnp.where(sound | (data.size == 0), x, jnp.nan) if _floating(x) else x
            arriving = jax.tree.map(shown, arriving)
        return ClientOutput(state, arriving, metrics, local, travels)

    def server_update(server: Server, collected: Arriving, cohort: Cohort, key):
        present = cohort.examples > 0
        seen = cohort._replace(examples=jnp.where(collected.counts, cohort.examples, 0))
        memory, record = list(server.memory), dict(collected.notes)
        if leave_out:
            record["left_out"] = jnp.sum(present & ~collected.counts).astype(jnp.float32), jnp.float32(1)
        uplink = collected.uplink
        told = seen if counted is None else Cohort(seen.ids, (jnp.arange(len(seen.ids)) < counted).astype(seen.examples.dtype))
        if reduces:
            deltas, classes = collected.deltas, collected.classes
            if crafting:
                deltas, classes = crafted(deltas, classes, seen, server.memory, key)
            draw = of_link(key, len(links))
            made, of_classes = None, []
            # by ids: where several are as good, Krum takes the first, and the cohort's own order is the plan's
            order = jnp.argsort(seen.ids) if reduction.join == "stack" else None
            if parts.like.deltas:
                made, new, said = sharded_aggregation.combine(reduction, deltas, memory_of(server.memory), draw, order)
                made = checked(made, (length(parts.like.deltas),), who)
                record |= said
                if at is not None:
                    memory[at] = new
            for n, contributions in enumerate(classes):
                contributions = sharded_aggregation.placed(contributions, order)
                keys = jax.random.split(jax.random.fold_in(draw, n + 1), parts.classes(n))
                row, _, said = jax.vmap(lambda c, k: reduction.combine(c, (), k), (0 if reduction.join == "add" else 1, 0))(
                    contributions, keys
                )
                record |= {} if parts.like.deltas else jax.tree.map(lambda x: jnp.sum(x, 0), said)
                of_classes.append(row)
            uplink = parts.reduced(made, of_classes, collected.weights)
        new, said = inner.server_update(server.inner, uplink, told, key)
        return Server(floored(new) if links else new, tuple(memory)), {**(said or {}), **record}

    def crafted(deltas, classes, seen: Cohort, memory, key):
        """Contributions to the reduction, of stacks (vectors, weights) that attackers have changed."""

        def changed(rows, weights, *folds):
            for place, craft in crafting:
                draw = functools.reduce(jax.random.fold_in, folds, of_link(key, place))
                rows = craft(rows, weights > 0, seen.ids, draw)
            return jnp.where((weights > 0)[:, None], rows, 0)

        def of_each(rows, weights, part):
            return jax.vmap(changed, (1, 1, None, 0), 1)(rows, weights, part, jnp.arange(rows.shape[1]))

        rows, w = deltas if parts.like.deltas else (None, None)
        rows = None if rows is None else changed(rows, w, 0)
        of_class = [(of_each(rows, w, n + 1), w) for n, (rows, w) in enumerate(classes)]
        keys = jax.vmap(lambda i: jax.random.fold_in(of_link(key, len(links)), i))(seen.ids)

        def one(rows, w, of_class, i, examples, key):
            vectors, weights = (rows, [r for r, _ in of_class]), (w, [w for _, w in of_class])
            return lift(vectors, weights, Sender(i, examples, key, memory_of(memory)))

        lifted = jax.vmap(one)(rows, w, of_class, seen.ids, seen.examples, keys)
        there = seen.examples > 0
        return joined(lifted, there) if reduction.join == "add" else lifted

    def client_init(key, server: Server, client_id):
        return Client(inner.client_init(key, server.inner, client_id), tuple(link.state(parts.like) for link in links))

    def personalise(sent, client, data, key):
        assert inner.personalise is not None
        new, mine = inner.personalise(sent.inner, client.inner, data, key)
        return sent._replace(inner=new), client._replace(inner=mine)

    def newcomer(sent, client):
        assert callable(inner.newcomer)
        return client._replace(inner=inner.newcomer(sent.inner, client.inner))

    def prepare(sent, client, data, key):
        assert inner.prepare is not None
        return client._replace(inner=inner.prepare(sent.inner, client.inner, data, key))

    def reading(predict):
        return lambda sent, client, x: predict(bare(sent), bare(client), x)

    adding, stacking = Reduce(join="add"), Reduce()
    across = adding if reduction.join == "add" and not crafting else stacking
    classes = len(parts.like.classes) if reduces else 0
    return inner._replace(
        server_init=lambda key: Server(inner.server_init(key), tuple(link.memory(parts.like) for link in links)),
        client_update=client_update,
        server_update=server_update,
        collect=Arriving(
            () if reduces else parts.collect, across if reduces else (), (across,) * classes, (adding,) * classes, stacking, adding
        ),
        predict={name: reading(predict) for name, predict in inner.predict.items()},
        client_init=client_init,
        broadcast=lambda server, client_id: Sent(received(inner.broadcast(server.inner, client_id))[0], client_id, server.memory),
        prepare=inner.prepare and prepare,
        personalise=inner.personalise and personalise,
        newcomer=newcomer if callable(inner.newcomer) else inner.newcomer,
    )


class Parts:
    """The parts of a method's uplink: taken apart, and put together again.

    Attributes:
      like: shapes of what links may change.
      collect: the method's, with leaves that take (part, whether the client counts).
    """

    def __init__(self, collect: PyTree, like: PyTree, name: str, links: Sequence[Link]):
        is_reduce = lambda x: isinstance(x, Reduce)
        self._reduces, self._structure = jax.tree.flatten(collect, is_leaf=is_reduce)
        paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(collect, is_leaf=is_reduce)]
        self._kinds = [reduce.carries for reduce in self._reduces]
        who = f"{links[0].kind} {links[0].name!r}" if links else "aggregation.not_finite='leave_out'"
        if not self._reduces:
            raise ValueError(f"{who} needs clients that send something; {name}'s send nothing")
        for path, kind in zip(paths, self._kinds, strict=True):
            if not kind and links:
                part = f"part {path} of what {name}'s clients send" if path else f"what {name}'s clients send"
                raise ValueError(f"{who} is for deltas and class means; {part} is neither: the server takes it client by client")
        weighed = [r.weigh for r in self._reduces if r.carries == "delta"]
        if len(set(weighed)) > 1 and links:
            raise ValueError(f"{who} needs one weighing of clients; {name} weighs the parts of its uplink differently")
        self._weigh, self._name = weighed[0] if weighed else None, name
        self.like = self.carried(like)
        self.collect = self._structure.unflatten([_counting(reduce) for reduce in self._reduces])

    def weighs_alike(self, link: Link) -> None:
        """Raises ValueError if the method weighs clients."""
        if self._weigh not in (None, aggregators.uniform):
            raise ValueError(
                f"{link.kind} {link.name!r} needs clients that count alike; {self._name} weighs them by their numbers of examples, "
                "so that nothing bounds what one of them adds; set method.weights='uniform', if the method has it"
            )

    def carried(self, uplink: PyTree) -> Carried:
        """What of an uplink links may change."""
        parts = self._structure.flatten_up_to(uplink)
        of = lambda kind: tuple(part for part, one in zip(parts, self._kinds, strict=True) if one == kind)
        return Carried(of("delta"), of("class means"))

    def put(self, uplink: PyTree, value: Carried) -> PyTree:
        """The uplink with `value` in place of what was `carried`."""
        new = {"delta": iter(value.deltas), "class means": iter(value.classes)}
        parts = zip(self._structure.flatten_up_to(uplink), self._kinds, strict=True)
        return self._structure.unflatten([next(new[kind]) if kind else part for part, kind in parts])

    def each(self, uplink: PyTree, counts: Array) -> PyTree:
        """Every part with whether the client counts: what the leaves of `collect` take."""
        return self._structure.unflatten([(part, counts) for part in self._structure.flatten_up_to(uplink)])

    def weights(self, value: Carried, client: Cohort) -> tuple[Array | None, tuple[Array, ...]]:
        """What the method weighs a client's deltas by, and each class of its class means."""
        weight = None if self._weigh is None else self._weigh(client).astype(jnp.float32)
        reduces = [r for r in self._reduces if r.carries == "class means"]
        lifted = [reduce.lift(part, client)[1] for reduce, part in zip(reduces, value.classes, strict=True)]
        return weight, tuple(jnp.where(client.examples > 0, w, 0).astype(jnp.float32) for w in lifted)

    def vectors(self, value: Carried) -> tuple[Array | None, tuple[Array, ...]]:
        """All deltas as one vector [D], and of each part of class means its rows [K, D]."""
        deltas = vector(value.deltas) if value.deltas else None
        return deltas, tuple(values.reshape(len(values), -1).astype(jnp.float32) for values, _ in value.classes)

    def classes(self, n: int) -> int:
        """K of the n-th part of class means."""
        return self.like.classes[n][1].shape[0]

    def reduced(self, deltas: Array | None, classes: Sequence[Array], weights: Sequence[Array]) -> PyTree:
        """What the method's server sees, of reduced vectors and of the holders' weights [K] of each part of class means."""
        of_deltas = () if deltas is None else of_vector(deltas, self.like.deltas)
        of_classes = tuple(
            (jnp.where((w > 0)[:, None], rows, 0).reshape(values.shape).astype(values.dtype), w.astype(values.dtype))
            for rows, w, (values, _) in zip(classes, weights, self.like.classes, strict=True)
        )
        new = {"delta": iter(of_deltas), "class means": iter(of_classes)}
        return self._structure.unflatten([next(new[kind]) for kind in self._kinds])


def _counting(reduce: Reduce) -> Reduce:
    """The Reduce for (part, whether the client counts): to it, one that does not is absent, and adds nothing to a sum."""

    def lift(part, client):
        value, counts = part
        made = reduce.lift(value, client._replace(examples=jnp.where(counts, client.examples, 0)))
        return jax.tree.map(lambda x: jnp.where(counts, x, 0), made) if reduce.join == "add" else made

    return reduce._replace(lift=lift)


def _floating(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _finite(tree: PyTree) -> Array:
    leaves = [x for x in jax.tree.leaves(tree) if _floating(x)]
    return jnp.all(jnp.stack([jnp.bool_(True), *(jnp.all(jnp.isfinite(x)) for x in leaves)]))


def _turned(new: PyTree, old: PyTree) -> Array:
    """Whether an element that was finite is not any more."""
    pairs = [(n, o) for n, o in zip(*map(jax.tree.leaves, (new, old)), strict=True) if _floating(n)]
    return jnp.any(jnp.stack([jnp.bool_(False), *(jnp.any(~jnp.isfinite(n) & jnp.isfinite(o)) for n, o in pairs)]))
