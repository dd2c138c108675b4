"""What a method works on: a network as pure functions, and what surrounds it."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_core.algorithm import Array, Net, PyTree


class Model(NamedTuple):
    """A network as pure functions over a `Net`.

    `params` is a nested dict whose entry "head" holds the classifier; all other entries are the body.

    Attributes:
      init: key -> Net.
      apply: (net, x, key=None, train=False, mask=None) -> ({"logits": [B, K], "features": [B, D]}, stats). `mask` [B] says
        which rows are real; the others never enter batch statistics. In evaluation `stats` are the net's own, unchanged.
        With intermediates=True outputs gain "intermediates": hidden layers by name, {} where they have none.
      features: same arguments -> ([B, D], stats); the body alone.
      head: (net, features [B, D]) -> logits [B, K].
      name: what error messages and tables call it.
    """

    init: Callable[[Array], Net]
    apply: Callable[..., tuple[dict[str, PyTree], PyTree]]
    features: Callable[..., tuple[Array, PyTree]]
    head: Callable[[Net, Array], Array]
    name: str = "model"


def width(model: Model) -> int:
    """D, the number of a model's features: the rows of its head's kernel."""
    return jax.eval_shape(model.init, jax.random.key(0)).params["head"]["kernel"].shape[0]


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its classes, and the population that trains it.

    Attributes:
      network: frozen arrays -> Model.
      classes: K.
      population: N, the number of clients that exist (of all architectures).
      frozen: arrays that everyone holds and nobody trains, such as a pre-trained backbone; `()` if none.
      public: Examples that everybody holds (FedMD's public set); `()` if none.
      shape: of one example's x; None if it is not told (few methods ask).
      round: index of the current round, from 0; a traced scalar inside a round.

    `frozen` and `public` travel as arguments of the jitted round and are bound again inside it (`bind`): closed over, a large
    backbone would be printed into the compiled program as a constant.
    """

    network: Callable[[PyTree], Model]
    classes: int
    population: int
    frozen: PyTree = ()
    public: PyTree = ()
    shape: tuple[int, ...] | None = None
    round: Array | int = 0

    @property
    def model(self) -> Model:
        return self.network(self.frozen)

    @property
    def held(self) -> tuple[PyTree, PyTree]:
        """What `bind` takes back."""
        return self.frozen, self.public

    def bind(self, held: tuple[PyTree, PyTree], round: Array | int) -> "Task":  # noqa: A002
        """The same task over other (traced) arrays, at a given round."""
        return dataclasses.replace(self, frozen=held[0], public=held[1], round=round)


def of_model(model: Model, *, classes: int, population: int, public: PyTree = (), shape: tuple[int, ...] | None = None) -> Task:
    """A task whose network is trained whole.

    Args:
      model: the network.
      classes: K.
      population: N.
      public: Examples that everybody holds.
      shape: of one example's x.

    Returns:
      The task, with nothing frozen.
    """
    return Task(lambda frozen: model, classes, population, public=public, shape=shape)
