"""How many examples a network is scored on at once: chosen by what clients have and by the device.

A batch of b examples, real ones or padding, costs as much as b + c examples: c stands for reading
the weights and starting kernels. The batch is the one under which all lists of examples cost least.
On CPUs more than 64 examples at once gain little. A convolution uses its weights at every pixel: it
gains nothing past a few examples, and loses where its activations leave the cache. Numbers are of
two cores of a server; `tests/benchmarks/evaluation.py` measures what they come to.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding.mesh import Plan
from fedjax_core.engine.simulation_spec import Evaluation, ScoreBatches


class BatchCost(NamedTuple):
    """The cost of batches on a kind of device.

    Attributes:
      max_batch: examples of a batch at most.
      overhead: examples that a batch costs beside its own.
    """

    max_batch: int
    overhead: int


COSTS = {"cpu": BatchCost(max_batch=64, overhead=4)}
CONVOLUTION_COSTS = {"cpu": BatchCost(max_batch=16, overhead=1)}
ACCELERATOR = BatchCost(max_batch=256, overhead=256)  # 256 was the fixed size before: no more memory is needed


def has_convolution(weights: PyTree) -> bool:
    """Returns whether some weight is the kernel of a convolution over images: [height, width, in, out]."""
    return any(leaf.ndim == 4 for leaf in jax.tree.leaves(weights))


def choose_batches(evaluation: Evaluation, host: DeviceArrays, plan: Plan, platform: str, convolves: bool) -> ScoreBatches:
    """Returns the examples at once of each kind of score; `evaluation.batch` if it is given.

    Args:
      plan: clients that are scored at once on a device share the cost of a batch.
      platform: of the devices, such as "cpu".
      convolves: whether the networks have convolutions over images.
    """
    if evaluation.batch is not None:
        return ScoreBatches(*[evaluation.batch] * len(ScoreBatches._fields))
    cost = (CONVOLUTION_COSTS if convolves else COSTS).get(platform, ACCELERATOR)
    test = np.array([len(host.test.y)])
    of_clients = cost._replace(overhead=-(-cost.overhead // plan.chunk))
    return ScoreBatches(
        test=choose_batch(test, cost, plan.client_shards),
        validation_rows=choose_batch(np.array([len(host.validation_rows)]), cost, plan.client_shards),
        all=choose_batch(test, of_clients),
        own=choose_batch(host.test_size, of_clients),
        validation=choose_batch(host.validation_size, of_clients),
        unseen=choose_batch(host.unseen_test_size, of_clients),
    )


def choose_batch(sizes: np.ndarray, cost: BatchCost, shards: int = 1) -> int:
    """Returns the examples at once under which lists of `sizes` [n] examples cost least.

    The batches of each list are spread over `shards` devices.

    >>> choose_batch(np.array([50, 50, 50]), BatchCost(max_batch=64, overhead=4))
    50
    >>> choose_batch(np.array([5] * 90 + [640] * 10), BatchCost(max_batch=64, overhead=4))
    16
    """
    sizes, numbers = np.unique(np.asarray(sizes, np.int64), return_counts=True)
    batches = np.arange(1, min(cost.max_batch, max(1, int(sizes.max(initial=1)))) + 1)
    steps = np.ceil(np.ceil(sizes[:, None] / batches) / shards)
    costs = numbers @ steps * (batches + cost.overhead)
    return int(batches[len(batches) - 1 - np.argmin(costs[::-1])])  # of equal costs the fewest batches
