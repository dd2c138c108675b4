"""pFedGate: a personal gate weights the blocks of the shared network, and drops the least important.

In plain words: Each client learns a small gate that, for each batch, weights the blocks of a shared
network and leaves some of them out.
Sent to clients: model.

Chen, Yao, Gao, Ding, Li. Efficient Personalized Federated Learning via Sparse Model-Adaptation.
ICML 2023. https://arxiv.org/abs/2305.02776

  paper       here         meaning
  theta_g     theta        the shared network, the server's
  phi_i       gate         gating layer of client i, never sent: inputs [B, D_in] -> a [B, L], a number per block
  B           blocks       blocks per tensor; L in all
  s_i         sparsity     fraction of the parameters that the client can afford
  M_i         apply_mask   factors of the blocks:   M_l = t_l k_l,   theta_i = theta_g * M_i
  s, t        s, t         mean over the batch of sigmoid(a): a block's importance, and its weight
  k_l         kept         1 for the kept blocks: the first of every tensor, then by importance while they fit

The gate normalizes its inputs and outputs over the batch. Dense layers and all others have separate
budgets. k has no gradient, and the importance a straight-through one. Gate and network train
together, each with gradients clipped to norm `clip`.

Unseen clients start a gate of their own, after local training of it.

Departures: batch normalization before the gate, not the switchable one; one head gives importance
and weight, as in the authors' code; no diversity term, whose weight is 0 there. A client's model is
fixed by the gate's mean over its training examples, in evaluation mode, not by each test batch, so
a score does not depend on the batching. For a client without examples that mean is 1/2. The gate
reads inputs before augmentation. The mean is over the cohort.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.nn.layers import BatchNorm
from fedjax_core.option_types import AtLeastOne, AtLeastZero, Positive, PositiveFraction, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training

_STREAM = 0x67617465  # of the gates' initialization


def pfedgate(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    sparsity: PositiveFraction = 0.5,
    blocks: AtLeastOne = 5,
    clip: Positive = 10.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds pFedGate (Algorithm 1, with gate and network trained together).

    Args:
      task: networks and population; its `shape` must be set.
      optimizer: local optimizer of gate and network, whose state starts anew every round.
      sparsity: s, in (0, 1]; 1 keeps all blocks.
      blocks: maximum number per tensor.
      clip: largest norm of the network's gradient, and of the gate's.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its gate.

    Raises:
      ValueError: the task has no `shape`, or an argument is out of range.
    """
    if task.shape is None:
        raise ValueError("task.shape=None: pfedgate must know the shape of an example; pass make_task(..., shape=...)")
    check_arguments(pfedgate, sparsity=sparsity, blocks=blocks, clip=clip)
    model, shape = task.model, task.shape
    cut = cut_into_blocks(jax.eval_shape(model.init, jax.random.key(0)).params, blocks)
    least = min(max(1 / blocks, 0.1), sparsity)
    gate = nnx.split(nnx.eval_shape(lambda: Gate(shape, len(cut.size), rngs=nnx.Rngs(0))), nnx.Param, nnx.BatchStat)[0]

    def apply_gate(net, x, mask, train):
        """Returns sigmoid(a) [B, L] and the gate's statistics."""
        module = nnx.merge(gate, net.params, net.stats)
        a = module(x.astype(jnp.float32).reshape(len(x), *shape), batch=train, mask=mask)
        return jax.nn.sigmoid(a), nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    def apply_mask(theta, t):
        """Returns theta * M for mean gate values t [L]."""
        if sparsity == 1:
            return cut.apply(theta, t)
        s = jnp.maximum(t, least)
        kept = jax.lax.stop_gradient(select_blocks(s, cut, sparsity, least))
        return cut.apply(theta, t * kept * (1 + s - jax.lax.stop_gradient(s)))

    def loss(net, batch, key):
        values, gate_stats = apply_gate(Net(net.params["gate"], net.stats["gate"]), batch.x, batch.mask, True)
        t = jnp.sum(values * batch.mask[:, None], 0) / jnp.maximum(jnp.sum(batch.mask), 1)
        theta = Net(apply_mask(net.params["network"], t), net.stats["network"])
        outputs, stats = model.apply(theta, batch.x, key, train=True, mask=batch.mask)
        value, sums = local_training.loss_and_metrics(outputs, batch, local_training.label_loss(task))
        return value, local_training.Aux({"network": stats, "gate": gate_stats}, sums)

    clipped = optax.clip_by_global_norm(clip)
    clip_each = optax.partition({"network": clipped, "gate": clipped}, {"network": "network", "gate": "gate"})
    train = local_training.fit(loss, optax.chain(clip_each, optimizer(task.round_num)), epochs=epochs, batch=batch)

    def personalise(theta, gate_net, data, key):
        del key
        total, rows = local_training.sum_over_batches(
            lambda b: (jnp.sum(apply_gate(gate_net, b.x, b.mask, False)[0] * b.mask[:, None], 0), jnp.sum(b.mask)),
            data,
            batch=batch,
        )
        t = jnp.where(rows > 0, total / jnp.maximum(rows, 1), 0.5)
        return theta._replace(params=apply_mask(theta.params, t)), gate_net

    def client_update(theta, gate_net, data, key):
        start = Net({"network": theta.params, "gate": gate_net.params}, {"network": theta.stats, "gate": gate_net.stats})
        (params, stats), _, sums = train(start, data, key)
        new, gate_net = Net(params["network"], stats["network"]), Net(params["gate"], stats["gate"])
        return ClientOutput(gate_net, optax.tree.sub(new, theta), sums, local=personalise(new, gate_net, data, key))

    def client_init(key, server, client_id):
        rngs = nnx.Rngs(params=jax.random.fold_in(key, _STREAM))
        _, params, stats = nnx.split(Gate(shape, len(cut.size), rngs=rngs), nnx.Param, nnx.BatchStat)
        return Net(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    return Algorithm(
        server_init=model.init,
        client_update=client_update,
        server_update=lambda theta, delta, cohort, key: (optax.apply_updates(theta, delta), {}),
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"personal": lambda theta, gate_net, x: model.apply(theta, x)[0]},
        client_init=client_init,
        personalise=personalise,
        targets=PER_ROW,
    )


class Gate(nnx.Module):
    """Batch normalization (by channel, or of a vector by entry), a linear layer to the blocks, batch normalization."""

    def __init__(self, shape: tuple[int, ...], blocks: int, *, rngs: nnx.Rngs):
        self.first, self.last = BatchNorm(shape[-1]), BatchNorm(blocks)
        self.dense = nnx.Linear(int(np.prod(shape)), blocks, rngs=rngs)

    def __call__(self, x: Array, *, batch: bool, mask: Array | None) -> Array:
        """Maps [B, ...] to [B, L]."""
        x = self.first(x, batch=batch, mask=mask)
        return self.last(self.dense(x.reshape(len(x), -1)), batch=batch, mask=mask)


class Layout(NamedTuple):
    """Partition of parameters into L blocks of consecutive entries, tensor by tensor.

    Attributes:
      size: [L] entries of each block.
      first: [L] whether it is the first of its tensor.
      dense: [L] whether its layer has a kernel of two axes.
      pieces: per tensor, the number of blocks and the length of all but the last.
    """

    size: np.ndarray
    first: np.ndarray
    dense: np.ndarray
    pieces: list[tuple[int, int]]

    def apply(self, params: PyTree, weight: Array) -> PyTree:
        """Multiplies every block by its weight [L]."""
        leaves, structure = jax.tree.flatten(params)
        ends = np.cumsum([number for number, _ in self.pieces])
        parts = [
            jnp.repeat(weight[end - number : end], length)[: leaf.size].reshape(leaf.shape) * leaf
            for leaf, end, (number, length) in zip(leaves, ends, self.pieces, strict=True)
        ]
        return jax.tree.unflatten(structure, parts)


def cut_into_blocks(params: PyTree, blocks: int) -> Layout:
    """Cuts each tensor into at most min(blocks, size) pieces of equal length, rounded up."""
    named = jax.tree_util.tree_leaves_with_path(params)
    kernels = {path[:-1]: leaf for path, leaf in named if path[-1].key == "kernel"}
    size, first, dense, pieces = [], [], [], []
    for path, leaf in named:
        length = -(-leaf.size // min(blocks, leaf.size))
        number = -(-leaf.size // length)
        pieces.append((number, length))
        size += [length] * (number - 1) + [leaf.size - length * (number - 1)]
        first += [True] + [False] * (number - 1)
        dense += [path[:-1] in kernels and kernels[path[:-1]].ndim == 2] * number
    return Layout(np.array(size), np.array(first), np.array(dense), pieces)


def select_blocks(importance: Array, cut: Layout, sparsity: float, least: float) -> Array:
    """Returns the kept blocks as a 0-1 vector [L].

    The first block of every tensor is kept; then, within each group, those that fit its budget, by
    importance rounded to tenths (ties in stored order).
    """
    groups = cut.dense.astype(int)
    rest = np.where(cut.first, 0, cut.size)
    budget = np.round((sparsity - least) * np.array([rest[groups == g].sum() for g in (0, 1)])).astype(np.int32)
    order = jnp.argsort(jnp.where(cut.first, -jnp.inf, -jnp.round(10 * importance)), stable=True)
    size, group = jnp.asarray(rest, jnp.int32), jnp.asarray(groups)

    def visit(room, block):
        fits = size[block] <= room[group[block]]
        return room.at[group[block]].add(jnp.where(fits, -size[block], 0)), fits

    fits = jax.lax.scan(visit, jnp.asarray(budget), order)[1]
    return jnp.zeros(len(rest)).at[order].set(fits.astype(jnp.float32))
