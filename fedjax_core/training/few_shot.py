"""Few-shot episodes and prototypical networks, for methods that train by `fit` and need no linear head.

Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. NeurIPS 2017.
https://arxiv.org/abs/1703.05175

  paper       here               meaning
  N_C         way                classes of an episode
  N_S, N_Q    shot, query        its support and query examples per class
  f_phi       model.features     embedding
  c_k         class_prototypes   mean embedding of the support of class k
  d           squared_distances  squared Euclidean

A local step is one episode, drawn from the client's own examples. The test set has classes that no
client trains on, and is evaluated on fixed episodes. Methods need no change: `Batch.x` is an
`Episode`, `Batch.y` and `Batch.mask` are those of its queries, and `prototypical_model(model)` gives the
queries' logits over all K classes. Logits of classes outside of the episode are so low that the
cross-entropy is that of the episode. For plain examples the model has features and no logits.

Departures: a client with fewer classes than `way` uses those it has. A class with few examples
gives all but one, and at most `shot`, to the support, and the rest to the queries; a class with one
example is a negative only. The paper does not cut episodes.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, ClientData, Examples, Net, PyTree
from fedjax_core.task import Model
from fedjax_core.training import local_training, losses
from fedjax_core.training.batching import draw_bits

ABSENT_LOGIT = -1e9  # logit of a class that is not in the episode
_TEST_SEED = 0


class Episode(NamedTuple):
    """Input of a prototypical network: the `x` of a `Batch`.

    Attributes:
      query: leaves [Q, ...], the examples to classify.
      support: leaves [way, shot, ...].
      classes: [way], the class of each row of the support.
      support_mask: [way, shot], mask of the support; an empty row means that the episode has fewer
        classes.
    """

    query: PyTree
    support: PyTree
    classes: Array
    support_mask: Array


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class EpisodeSampler:
    """Sampler of episodes: `ClientData.draw` in training, `draw_test_episodes` for tests.

    Attributes:
      way: classes of an episode.
      shot: support examples per class.
      query: query examples per class.
      tests: number of test episodes.
    """

    way: int = 5
    shot: int = 5
    query: int = 15
    tests: int = 600

    def __post_init__(self):
        for name, least in (("way", 2), ("shot", 1), ("query", 1), ("tests", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"episodes: {name}={value!r} must be an int of at least {least}")

    def __call__(self, data: ClientData, key: Array) -> local_training.Batch:
        """Draws an episode of one client: `way` of its classes, uniformly, and examples of each.

        Classes are ordered by draws from (key, class), examples by draws from (key, slot), so that
        padding has no effect.
        """
        class_key, example_key = jax.random.split(key)
        slots = jnp.arange(data.index.shape[0])
        y = data.arrays.y[data.index]
        mask = slots < data.size
        order = jnp.lexsort((draw_bits(example_key, slots), y, draw_bits(class_key, y), ~mask))  # by class, padding last
        index, y, mask = data.index[order], y[order], mask[order]
        is_first = mask & jnp.concatenate([jnp.ones(1, bool), y[1:] != y[:-1]])
        way_index = jnp.where(mask, jnp.cumsum(is_first) - 1, len(slots))
        start, end = (jnp.searchsorted(way_index, jnp.arange(self.way), side=side)[:, None] for side in ("left", "right"))
        number = end - start  # [way, 1]
        support = jnp.clip(number - 1, jnp.minimum(number, 1), self.shot)  # [way, 1] examples of the support
        shots, queries = jnp.arange(self.shot)[None], support + jnp.arange(self.query)[None]

        def gather(i):
            return index[jnp.minimum(start + i, len(slots) - 1)]

        return make_episode_batch(data.arrays, gather(shots), gather(queries), shots < support, queries < number)

    def draw_test_episodes(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws the test episodes of examples with classes `y`, with a fixed seed.

        Returns:
          Example indices of the support, [tests, way, shot], and of the queries, [tests, way,
          query].

        Raises:
          ValueError: fewer than `way` classes have shot + query examples.
        """
        size = self.shot + self.query
        classes = [index for index in (np.flatnonzero(y == c) for c in np.unique(y)) if len(index) >= size]
        if len(classes) < self.way:
            raise ValueError(
                f"episodes: way={self.way}, but {len(classes)} of the test set's {len(np.unique(y))} classes have the "
                f"{size} examples of shot={self.shot} and query={self.query}"
            )
        rng = np.random.default_rng(_TEST_SEED)
        ways = [rng.choice(len(classes), self.way, replace=False) for _ in range(self.tests)]
        index = np.array([[rng.choice(classes[c], size, replace=False) for c in way] for way in ways], np.int32)
        return index[..., : self.shot], index[..., self.shot :]


def make_episode_batch(
    arrays: Examples, support: Array, query: Array, support_mask: Array, query_mask: Array
) -> local_training.Batch:
    """Gathers an episode by indices of its support [way, shot] and its queries [way, query], with masks of these shapes."""
    x, y = jax.tree.map(lambda a: a[query.reshape(-1)], arrays)
    episode = Episode(x, jax.tree.map(lambda a: a[support], arrays.x), arrays.y[support[:, 0]], support_mask)
    return local_training.Batch(episode, y, query_mask.reshape(-1))


def class_prototypes(support: Array, mask: Array) -> Array:
    """Returns mean embeddings, [way, shot, D], [way, shot] -> [way, D]; zeros for an empty class."""
    total = jnp.sum(jnp.where(mask[..., None], support, 0), 1)
    return total / jnp.maximum(jnp.sum(mask, 1), 1)[:, None]  # Eq. 1


def prototypical_model(model: Model, classes: int) -> Model:
    """Makes a prototypical network of a model.

    Args:
      model: its features are the embedding. Its head stays in the parameters, since its shape gives
        D, but is neither used nor trained; build it with one output.

    Returns:
      A Model. For an `Episode`, `apply` gives {"logits": [Q, K], "features": [Q, D]} of the queries
      and `features` the latter; for plain examples `apply` gives {"features"} only. Normalization
      sees support and queries together. There are no intermediates, and `head` raises ValueError.
    """

    def embed(net, x, key, train, mask):
        """Returns features of the support [way, shot, D] and of the queries [Q, D], and stats."""
        n, queries = x.support_mask.size, jax.tree.leaves(x.query)[0].shape[0]
        both = jax.tree.map(lambda s, q: jnp.concatenate([s.reshape(n, *s.shape[2:]), q]), x.support, x.query)
        mask = jnp.concatenate([x.support_mask.reshape(n), jnp.ones(queries, bool) if mask is None else mask])
        z, stats = model.features(net, both, key, train=train, mask=mask)
        return z[:n].reshape(*x.support_mask.shape, -1), z[n:], stats

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
        episode_logits = -losses.squared_distances(query, class_prototypes(support, x.support_mask))  # Eq. 2
        columns = jnp.where(jnp.any(x.support_mask, 1), x.classes, classes)  # K, which is dropped, for an empty class
        logits = jnp.full((len(query), classes), ABSENT_LOGIT, episode_logits.dtype)
        logits = logits.at[:, columns].set(episode_logits, mode="drop")
        return {"logits": logits, "features": query} | hidden, stats

    def head(net: Net, features: Array) -> Array:
        raise ValueError(f"a prototypical {model.name} has no linear head; use a method that needs none, or task='classification'")

    return Model(
        model.init,
        apply,
        features,
        head,
        f"prototypical {model.name}",
        model_axes=model.model_axes,
        is_episodic=True,
        vocabulary=model.vocabulary,
    )
