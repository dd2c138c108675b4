"""What a link of the chain between clients and server is."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree

ORDER = ("local privacy", "attack", "compression", "rule", "privacy")  # kinds of links, as a message meets them


class Carried(NamedTuple):
    """What of an uplink links may change.

    Attributes:
      deltas: the parts of which the server takes the mean, each a tree.
      classes: the parts of which it takes the mean of each class, each (values [K, ...], counts [K]).
    """

    deltas: tuple[PyTree, ...]
    classes: tuple[tuple[Array, Array], ...]


class Sender(NamedTuple):
    """What a link knows of the client whose uplink it has.

    Attributes:
      id: [] of the client.
      examples: [] its number of training examples; 0 if it is absent.
      key: for this client, round and link alone.
      memory: the link's, as the server had it when the round began.
    """

    id: Array
    examples: Array
    key: Array
    memory: PyTree


class Passed(NamedTuple):
    """What a link makes of an uplink.

    Attributes:
      value: as the server will have it.
      state: what the link keeps with the client.
      notes: dict of (sum, weight) pairs, merged over the cohort; they stand in the record as "server/<name>".
      wire: the arrays that travel in its place, if they are packed.
    """

    value: Carried
    state: PyTree = ()
    notes: dict[str, tuple[Array, Array]] = {}  # noqa: RUF012 - nobody writes into it
    wire: PyTree = None


def _weighed(value: Array, weight: Array, sender: Sender) -> tuple[Array, Array]:
    del sender
    return jnp.where(weight > 0, weight * value, 0), weight


def _mean(joined: tuple[Array, Array], memory: PyTree, key: Array) -> tuple[Array, PyTree, dict]:
    del key
    total, weight = joined
    return total / jnp.maximum(weight, jnp.finfo(total.dtype).tiny), memory, {}


class Reduction(NamedTuple):
    """How the vectors of a cohort become one. A vector [D] is all deltas of an uplink behind one another, as float32; of class
    means it is one class's values, and the reduction is mapped over the classes, with the holders of each and without a memory.

    Attributes:
      lift: (vector [D], weight [], Sender) -> one client's contribution; the weight is the method's own, 0 of a client that is
        absent or left out, whose vector is zeros.
      join: "add": contributions are summed inside the client loop, or "stack": [C, ...] of them.
      combine: (joined, memory, key) -> (vector [D], memory, record of pairs), once a round. The memory is `()` for class means.
      divides: whether `combine`, of (vectors [C, D], weights [C]), may have a part of the coordinates on each of several devices:
        its sums over them are then `sharded_aggregation.total`, the arrays of its memory [D], and zeros behind the last
        coordinate change nothing.
    """

    lift: Callable[[Array, Array, Sender], PyTree] = _weighed
    join: str = "add"
    combine: Callable[[PyTree, PyTree, Array], tuple[Array, PyTree, dict]] = _mean
    divides: bool = False


class Link(NamedTuple):
    """See the package's docstring.

    Attributes:
      kind: one of `ORDER`.
      name: what messages call it, such as "krum".
      send: (value, Sender, what the link keeps with the client) -> Passed.
      craft: (rows [C, D], there [C] which of them count, ids [C], key) -> rows: what the server is made to receive.
      reduction: in place of the weighted mean.
      down: what is sent to a client -> (as the client has it, the arrays that travel).
      memory: the shapes of one client's `Carried` -> what the server keeps, before round 1.
      state: likewise, what each client keeps.
      check: (name of the method, Carried shapes) -> None; raises ValueError for a method that the link is not for.
      alike: whether a method must count clients alike, so that the weight of one has a bound; one that weighs them is refused.
      counted: how many clients the method's server is told took part, in place of the round's own number.
    """

    kind: str
    name: str
    send: Callable[[Carried, Sender, PyTree], Passed] | None = None
    craft: Callable[[Array, Array, Array, Array], Array] | None = None
    reduction: Reduction | None = None
    down: Callable[[PyTree], tuple[PyTree, PyTree]] | None = None
    memory: Callable[[Carried], PyTree] = lambda like: ()
    state: Callable[[Carried], PyTree] = lambda like: ()
    check: Callable[[str, Carried], Any] = lambda method, like: None
    alike: bool = False
    counted: int | None = None


def order(links: Sequence[Link]) -> tuple[Link, ...]:
    """The links as a message meets them; those of one kind stay as they are.

    Raises:
      ValueError: two of them have a reduction.
    """
    ordered = tuple(sorted(links, key=lambda link: ORDER.index(link.kind)))
    reducing = [link for link in ordered if link.reduction is not None]
    if len(reducing) > 1:
        names = " and ".join(f"{link.kind} {link.name!r}" for link in reducing[:2])
        raise ValueError(f"{names} each say how uplinks become one; choose one of them")
    return ordered
