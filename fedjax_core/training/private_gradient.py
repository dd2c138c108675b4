"""DP-SGD inside local training: gradients clipped example by example, with noise of the client.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential Privacy.
CCS 2016, Algorithm 1.

  paper      here          meaning
  L, L / N   batch, q      expected size of a minibatch; probability that it has an example
  C          clip          largest norm of the gradient of one example
  sigma      noise         deviation of the noise on the sum of clipped gradients, over C

A minibatch is a Poisson sample: each example is in it independently of all others, with probability
q = min(1, batch / size). Nothing is cut off: however many examples are drawn, they are clipped in
micro-batches, whose number varies. The sum is divided by the expected size, q * size, which is
public. The gradients are clipped by `jax_privacy.clipping`, and summed over examples as a matrix
product: on CPUs that is many times as fast as the sum of `jax_privacy.clipping.clipped_fun`. `fit`
does all this where `ClientData.privacy` is set; methods need no change.
"""

import dataclasses
import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, ClientData, PyTree
from fedjax_core.task import count_parameters
from fedjax_core.training.aggregators import append_axes
from fedjax_core.training.batching import draw_bits, gather_batch, loop_over_micro_batches

CLIP_MARGIN = 1 - 1e-5  # norms are computed in float32: rounding must not exceed the clip
MICRO_BATCH, MICRO_NUMBERS = 16, 2**24  # examples at once, and the numbers that their gradients have
_FIT, _EXACT = "private_fit", "exact_sums"  # names of jitted functions, by which a program is checked
_FIT_NAME = re.compile(rf"{_FIT}_(\d+)_(\d+)$")


class PoissonSample(NamedTuple):
    """A minibatch of DP-SGD.

    Attributes:
      slots: [M] the drawn slots of `ClientData.index`, then anything.
      count: [] how many are drawn.
    """

    slots: Array
    count: Array


class PrivateFit(NamedTuple):
    """One private training in a program: its epochs, and the expected examples of a minibatch."""

    epochs: int
    batch: int


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ExamplePrivacy:
    """Clip and noise of every local step, `ClientData.privacy`.

    Attributes:
      clip: C; may be infinite without noise.
      noise: sigma; 0: none.
    """

    clip: float
    noise: float

    def draw(self, data: ClientData, key: Array, batch: int) -> PoissonSample:
        """Draws a minibatch of `batch` expected examples."""
        slots = jnp.arange(data.index.shape[0])
        rate = batch / jnp.maximum(data.size, 1).astype(jnp.float32)
        is_drawn = (rate >= 1) | (draw_bits(key, slots) < (jnp.minimum(rate, 0.99999) * 2.0**32).astype(jnp.uint32))
        is_drawn &= slots < data.size
        return PoissonSample(jnp.nonzero(is_drawn, size=len(slots), fill_value=0)[0], jnp.sum(is_drawn))

    def make_gradient(self, gradient: Callable, data: ClientData, batch: int) -> Callable:
        """Returns `gradient` with clipped examples and noise.

        Args:
          gradient: (params, stats, Batch, key) -> (gradient of the mean loss, Aux).
          batch: expected examples of a minibatch.

        Returns:
          (params, stats, PoissonSample, key) -> (private gradient, Aux). The sums of `Aux` are exact.
        """
        clip_pytree = _import_clipping().clip_pytree

        def example_gradient(params, stats, example, key):
            grads, aux = gradient(params, stats, jax.tree.map(lambda x: x[None], example), key)
            # bfloat16 has too few digits for norms, sums and noise
            return jax.tree.map(lambda g: g.astype(jnp.promote_types(g.dtype, jnp.float32)), grads), aux

        def clip_example(params, stats, example, key):
            grads, aux = example_gradient(params, stats, example, key)
            return clip_pytree(grads, CLIP_MARGIN * self.clip)[0], aux

        def sum_clipped(params, stats, examples, key, is_drawn):
            keys = jax.random.split(key, len(is_drawn))
            clipped, aux = jax.vmap(clip_example, (None, None, 0, 0))(params, stats, examples, keys)
            total = lambda g: jnp.tensordot(is_drawn.astype(g.dtype), g, 1, precision="highest")
            return jax.tree.map(total, clipped), aux

        def private_gradient(params, stats, sample, key):
            size = micro_batch_size(count_parameters(params), batch)
            capacity = len(sample.slots)

            def add(i, carry):
                positions = i * size + jnp.arange(size)
                is_drawn = positions < sample.count
                slots = sample.slots[jnp.minimum(positions, capacity - 1)]
                examples = gather_batch(data.arrays, data.index[slots], is_drawn)
                keys = jax.random.fold_in(key, i + 1)
                grads, aux = sum_clipped(params, stats, examples, keys, is_drawn)
                masked = lambda x: jnp.where(append_axes(is_drawn, x), x, 0).sum(0, dtype=x.dtype)
                return jax.tree.map(jnp.add, carry, (grads, jax.tree.map(masked, aux.sums)))

            first = jax.tree.map(lambda a: a[0], gather_batch(data.arrays, data.index[:1], jnp.ones(1, bool)))
            shapes = jax.eval_shape(example_gradient, params, stats, first, key)
            zeros = optax.tree.zeros_like((shapes[0], shapes[1].sums))
            total, sums = loop_over_micro_batches(-(-sample.count // size), -(-batch // size), add, zeros)
            if self.noise:
                draws = optax.tree.random_like(jax.random.fold_in(key, 0), total, jax.random.normal)
                total = optax.tree.add_scale(total, self.noise * self.clip, draws)
            expected = jnp.clip(data.size, 1, batch)
            mean = jax.tree.map(lambda g, w: (g / expected.astype(g.dtype)).astype(w.dtype), total, params)
            return mean, shapes[1]._replace(stats=stats, sums=sums)

        return private_gradient


def micro_batch_size(parameters: int, batch: int) -> int:
    """Returns how many examples' gradients are in memory at once.

    >>> [micro_batch_size(*sizes) for sizes in ((1000, 64), (1000, 8), (10**7, 64))]
    [16, 8, 1]
    """
    return max(1, min(MICRO_BATCH, batch, MICRO_NUMBERS // max(parameters, 1)))


def check_training(data: ClientData, stats: PyTree, **given: Any) -> None:
    """Raises ValueError for a training that has no bound for one example.

    Args:
      stats: running statistics of the network.
      given: arguments of `fit` beside the loss that read examples; None or `()` if not given.
    """
    if jax.tree.leaves(stats):
        raise ValueError(
            "privacy.level='example': running statistics of a training, of batch normalisation or of the method itself (dbe, "
            "pfedme), mix examples and have no noise; use a network without batch normalisation, such as norm='group', or "
            "another method"
        )
    if data.draw is not None:
        raise ValueError(
            "privacy.level='example' draws its minibatches; task='episodes(...)' draws its own, with several examples each"
        )
    for name, value in given.items():
        if value is not None and jax.tree.leaves(value):
            raise ValueError(f"privacy.level='example': the method's local training reads examples by `{name}`, without noise")


def check_optimizer(ascent: Any) -> None:
    """Raises ValueError for sharpness-aware steps."""
    if ascent is not None:
        raise ValueError(
            "privacy.level='example': sharpness-aware steps take two gradients of each minibatch, and one is accounted for"
        )


def mark_fit(train: Callable, epochs: int, batch: int) -> Callable:
    """Returns a private training as a function that `find_fit` recognises in a program.

    The jitted function's last two inputs are the index and the number of examples that it trains
    on, its last output a number: `engine/information_flow.py` reads from them which examples these
    are, and that no `vmap` trains several networks.
    """

    def marked(net, data, key, index, size):
        trained = train(net, data._replace(index=index, size=size), key)
        results = jax.tree.leaves((trained.net.params, trained.optimizer_state))
        return trained, optax.tree.sum([leaf for leaf in results if jnp.issubdtype(leaf.dtype, jnp.inexact)])

    marked.__name__ = f"{_FIT}_{epochs}_{batch}"
    run = jax.jit(marked)
    return lambda net, data, key: run(net, data, key, data.index, data.size)[0]


def mark_exact(sums: PyTree) -> PyTree:
    """Returns sums over examples that have no noise; `is_exact` recognises them in a program."""

    def exact_sums(sums):
        return sums

    return jax.jit(exact_sums)(sums)


def find_fit(name: str) -> PrivateFit | None:
    """Returns the private training that a jitted function of this name is; None: it is none.

    >>> find_fit("private_fit_5_64"), find_fit("fit")
    (PrivateFit(epochs=5, batch=64), None)
    """
    match = _FIT_NAME.match(name)
    return None if match is None else PrivateFit(*map(int, match.groups()))


def is_exact(name: str) -> bool:
    """Returns whether a jitted function of this name is `mark_exact`'s."""
    return name == _EXACT


def _import_clipping() -> Any:
    try:
        return importlib.import_module("jax_privacy.clipping")
    except ImportError:
        raise ValueError("privacy.level='example' needs jax-privacy: pip install 'fedjax-core[privacy]', or jax-privacy") from None
