"""Few-shot episodes and prototypical networks: another task for methods that train by `local_training.fit` and need no linear head.

Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. NeurIPS 2017. https://arxiv.org/abs/1703.05175

  paper       here              meaning
  N_C         way               classes of an episode
  N_S, N_Q    shot, query       its support and query examples per class
  f_phi       model.features    embedding
  c_k         prototypes        mean embedding of the support of class k
  d           distances         squared Euclidean

A local step is one episode, drawn from the client's own rows; the test set has classes that nobody trains on, and is scored by
episodes that are always the same. Methods notice nothing: `Batch.x` is an `Episode`, `Batch.y` and `Batch.mask` are its queries',
and `prototypical(model)` gives the queries' logits over all K classes, those outside of the episode so low that cross-entropy is
that of the episode. Of plain examples it has features and no logits.

Departures: a client with fewer classes than `way` uses those it has, and a class with few rows gives its support all but one of
them, at most `shot`, and the rest to the queries; a class with a single row is only told apart from. Episodes of the paper are not
cut so.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, ClientData, Examples, Net, PyTree
from fedjax_core.task import Model
from fedjax_core.training import local_training

LOWEST = -1e9  # logit of a class that is not in the episode
_TEST_SEED = 0


class Episode(NamedTuple):
    """What a prototypical network sees at once, as the `x` of a `training.Batch`.

    Attributes:
      query: leaves [Q, ...], the examples to classify.
      support: leaves [way, shot, ...].
      classes: [way] class of each row of the support.
      held: [way, shot] which of the support are real; where a row has none, the episode has fewer classes.
    """

    query: PyTree
    support: PyTree
    classes: Array
    held: Array


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Episodes:
    """How episodes are drawn: `ClientData.draw` for training, `fixed` for the test.

    Attributes:
      way: classes of an episode.
      shot: support examples per class.
      query: query examples per class.
      tests: episodes that the test accuracy is a mean over.
    """

    way: int = 5
    shot: int = 5
    query: int = 15
    tests: int = 600

    def __post_init__(self):
        for name, least in (("way", 2), ("shot", 1), ("query", 1), ("tests", 1)):
            found = getattr(self, name)
            if not isinstance(found, int) or isinstance(found, bool) or found < least:
                raise ValueError(f"episodes: {name}={found!r} must be a whole number, at least {least}")

    def __call__(self, data: ClientData, key: Array) -> local_training.Batch:
        """One episode of a client's rows: `way` of its classes at random, all alike, and rows of each at random.

        The order of the classes is drawn from (key, class), that of the rows from (key, row's place), so padding is invisible.
        """
        of_class, of_row = jax.random.split(key)
        places = jnp.arange(data.index.shape[0])
        y = data.arrays.y[data.index]
        real = places < data.size

        def draws(key, numbers):
            return jax.vmap(lambda n: jax.random.bits(jax.random.fold_in(key, n), dtype=jnp.uint32))(numbers)

        order = jnp.lexsort((draws(of_row, places), y, draws(of_class, y), ~real))  # classes one after another, padding last
        rows, y, real = data.index[order], y[order], real[order]
        first = real & jnp.concatenate([jnp.ones(1, bool), y[1:] != y[:-1]])
        slot = jnp.where(real, jnp.cumsum(first) - 1, len(places))
        start, end = (jnp.searchsorted(slot, jnp.arange(self.way), side=side)[:, None] for side in ("left", "right"))
        number = end - start  # [way, 1]
        given = jnp.clip(number - 1, jnp.minimum(number, 1), self.shot)
        shots, queries = jnp.arange(self.shot)[None], given + jnp.arange(self.query)[None]

        def at(i):
            return rows[jnp.minimum(start + i, len(places) - 1)]

        return assemble(data.arrays, at(shots), at(queries), shots < given, queries < number)

    def fixed(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The test episodes of rows with classes y, always the same: [tests, way, shot] and [tests, way, query] row numbers.

        Raises:
          ValueError: fewer than `way` classes have shot + query rows.
        """
        each = self.shot + self.query
        of_class = [rows for rows in (np.flatnonzero(y == c) for c in np.unique(y)) if len(rows) >= each]
        if len(of_class) < self.way:
            raise ValueError(
                f"episodes: way={self.way}, but {len(of_class)} of the test set's {len(np.unique(y))} classes have the "
                f"{each} rows of shot={self.shot} and query={self.query}"
            )
        rng = np.random.default_rng(_TEST_SEED)
        chosen = [rng.choice(len(of_class), self.way, replace=False) for _ in range(self.tests)]
        rows = np.array([[rng.choice(of_class[c], each, replace=False) for c in classes] for classes in chosen], np.int32)
        return rows[..., : self.shot], rows[..., self.shot :]


def assemble(arrays: Examples, support: Array, query: Array, held: Array, asked: Array) -> local_training.Batch:
    """An episode of given rows.

    Args:
      arrays: where they lie.
      support: [way, shot] row numbers.
      query: [way, query] row numbers.
      held: [way, shot] which of the support are real.
      asked: [way, query] which of the queries are.
    """
    x, y = jax.tree.map(lambda a: a[query.reshape(-1)], arrays)
    episode = Episode(x, jax.tree.map(lambda a: a[support], arrays.x), arrays.y[support[:, 0]], held)
    return local_training.Batch(episode, y, asked.reshape(-1))


def prototypes(support: Array, held: Array) -> Array:
    """Mean embedding of each class: [way, shot, D], [way, shot] -> [way, D]; zeros where nothing is held."""
    total = jnp.sum(jnp.where(held[..., None], support, 0), 1)
    return total / jnp.maximum(jnp.sum(held, 1), 1)[:, None]  # Eq. 1


def distances(query: Array, prototypes: Array) -> Array:
    """Squared Euclidean distance of each query to each prototype: [Q, D], [way, D] -> [Q, way]."""
    return jnp.sum((query[:, None] - prototypes[None]) ** 2, -1)


def prototypical(model: Model, classes: int) -> Model:
    """The network as a prototypical one.

    Args:
      model: its features are the embedding. Its head stays among the parameters, where its shape tells D, and is neither read nor
        trained; build it with one output.
      classes: K.

    Returns:
      The Model: of an `Episode`, `apply` gives {"logits": [Q, K], "features": [Q, D]} of the queries, and `features` the latter; of
      plain examples, `apply` gives {"features"} alone. Normalisation sees support and queries together. There are no
      intermediates. `head` is a ValueError.
    """

    def embed(net, x, key, train, mask):
        """Features of the support [way, shot, D] and of the queries [Q, D], and stats."""
        rows, number = x.held.size, jax.tree.leaves(x.query)[0].shape[0]
        both = jax.tree.map(lambda s, q: jnp.concatenate([s.reshape(rows, *s.shape[2:]), q]), x.support, x.query)
        real = jnp.concatenate([x.held.reshape(rows), jnp.ones(number, bool) if mask is None else mask])
        z, stats = model.features(net, both, key, train=train, mask=real)
        return z[:rows].reshape(*x.held.shape, -1), z[rows:], stats

    def features(net, x, key=None, train=False, mask=None):
        if not isinstance(x, Episode):
            return model.features(net, x, key, train=train, mask=mask)
        _, query, stats = embed(net, x, key, train, mask)
        return query, stats

    def apply(net, x, key=None, train=False, mask=None, intermediates=False):
        hidden = {"intermediates": {}} if intermediates else {}
        if not isinstance(x, Episode):
            z, stats = model.features(net, x, key, train=train, mask=mask)
            return {"features": z} | hidden, stats
        support, query, stats = embed(net, x, key, train, mask)
        near = -distances(query, prototypes(support, x.held))  # Eq. 2
        where = jnp.where(jnp.any(x.held, 1), x.classes, classes)  # K, which nothing is written to: no such class here
        logits = jnp.full((len(query), classes), LOWEST, near.dtype).at[:, where].set(near, mode="drop")
        return {"logits": logits, "features": query} | hidden, stats

    def head(net: Net, features: Array) -> Array:
        raise ValueError(
            f"a prototypical {model.name} has no linear head; use a method that does without, or task='classification'"
        )

    return Model(
        model.init,
        apply,
        features,
        head,
        f"prototypical {model.name}",
        model_axes=model.model_axes,
        episodic=True,
        vocabulary=model.vocabulary,
    )
