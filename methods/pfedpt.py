"""pFedPT: every client learns a frame of pixels around its images; the network that sees them is shared.

In plain words: Each client learns a frame of pixels around its images, which tells the shared
network whose data it sees.
Sent to clients: model.

Li, Wu, Sun, Shen, Wu, Tao. Visual Prompt Based Personalized Federated Learning. TMLR 2024.
https://arxiv.org/abs/2303.08678

  paper     here         meaning
  w         w            network, the server's
  delta_i   p_i          prompt of client i, never sent: a number per pixel and channel of a frame of width `pad`
  x + p     prompted     the prompt is added to the pixels, it does not replace them

In a round the prompt first trains for `prompt_epochs` with the network frozen, then the network for
`epochs` with the prompt frozen.

Prompts are in the units of the authors' code, where images are (x - 0.5) / 0.5 with x in [0, 1]: p
/ 2 is added to x before the network normalizes it. They are drawn by each client from N(0, 1),
which is a strong frame. The frame is added after augmentation.

Unseen clients start a prompt of their own, after local training.

Departures: batch statistics move in both phases. The prompt's momentum starts anew in every round,
as for all local optimizers here; the authors' code keeps it. That code also gives all clients one
draw of the first prompt, here each has its own. For inputs without channels (vectors) the frame is
their first and last entries.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import PER_ROW, Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training

SCALE = 0.5  # pixels in [0, 1] per unit of a prompt
PROMPT = 0x707274  # key of the prompt phase, and of the initial prompts


def pfedpt(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    pad: AtLeastZero = 2,
    prompt_epochs: AtLeastZero = 5,
    prompt_lr: Positive = 1.0,
    prompt_momentum: BelowOne = 0.5,
    epochs: AtLeastZero = 5,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds pFedPT (Algorithm 1).

    Args:
      task: network and population; its `shape` must be set.
      optimizer: local optimizer of the network, whose state starts anew every round.
      pad: width of the frame; 0 is FedAvg, but for batch statistics, which move in both phases.
      prompt_epochs: of the first phase.
      prompt_lr: learning rate of the prompt, by plain SGD.
      prompt_momentum: its momentum.
      epochs: of the second phase.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its prompt.

    Raises:
      ValueError: the task has no `shape`, or an argument is out of range.
    """
    if task.shape is None:
        raise ValueError("task.shape=None: pfedpt must know the shape of an example to frame it; pass make_task(..., shape=...)")
    check_arguments(pfedpt, prompt_epochs=prompt_epochs, prompt_lr=prompt_lr, prompt_momentum=prompt_momentum)
    model, place = task.model, frame_indices(task.shape, pad)
    empty = np.zeros(task.shape, np.float32)
    network, view = model.unaugmented or (model, lambda x, key, train: x)

    def prompted(w, p_i, x, key=None, train=False, mask=None):
        x = view(x, key, train)
        x = x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x
        x = x + jnp.asarray(empty).at[place].set(SCALE * p_i)[None]
        return network.apply(w, x, key, train=train, mask=mask)

    def loss(net, batch, key):
        w, p_i = Net(net.params["network"], net.stats), net.params["prompt"]
        outputs, stats = prompted(w, p_i, batch.x, key, train=True, mask=batch.mask)
        value, sums = local_training.loss_and_metrics(outputs, batch, local_training.label_loss(task))
        return value, local_training.Aux(stats, sums)

    def phase(name, optimizer, epochs):
        return local_training.fit(
            loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=local_training.entries_filter(name)
        )

    first = phase("prompt", local_training.sgd(prompt_lr, momentum=prompt_momentum), prompt_epochs)
    second = phase("network", optimizer, epochs)

    def client_update(w, p_i, data, key):
        both = Net({"network": w.params, "prompt": p_i}, w.stats)
        both, _, sums = first(both, data, jax.random.fold_in(key, PROMPT))
        both, _, more = second(both, data, key)
        new, p_i = Net(both.params["network"], both.stats), both.params["prompt"]
        return ClientOutput(p_i, optax.tree.sub(new, w), optax.tree.add(sums, more), local=(new, p_i))

    def client_init(key, server, client_id):
        return jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, PROMPT), client_id), (len(place[0]),))

    return Algorithm(
        server_init=model.init,
        client_update=client_update,
        server_update=lambda w, delta, cohort, key: (optax.apply_updates(w, delta), {}),
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"personal": lambda w, p_i, x: prompted(w, p_i, x)[0]},
        client_init=client_init,
        targets=PER_ROW,
    )


def frame_indices(shape: tuple[int, ...], pad: int) -> tuple[np.ndarray, ...]:
    """Returns the indices of the frame, an array per axis: 4 pad (H - pad) C entries of an [H, H, C] image.

    Raises:
      ValueError: pad is negative, or more than half of a side.
    """
    sides = shape[:-1] if len(shape) > 1 else shape
    if not 0 <= 2 * pad <= min(sides):
        raise ValueError(f"pad={pad} must be at least 0 and at most half of a side of {shape}")
    inside = np.zeros(shape, bool)
    inside[tuple(slice(pad, side - pad) for side in sides)] = True
    return np.nonzero(~inside)
