"""FedHPL: clients of any architecture tune prompts and heads, and distil each other's correct logits.

In plain words: Clients hold frozen pre-trained networks and train prompts and a head. They exchange
mean logits of each class, of correctly classified examples only, and learn to imitate them.
Sent to clients: mean logits of each class, weighted for the client.

Ma, Cheng, Wang, Zhong, Xu, Wang. FedHPL: Efficient Heterogeneous Federated Learning with Prompt
Tuning and Logit Distillation. 2024. https://arxiv.org/abs/2405.17267

  paper            here                      meaning
  P_k, theta_k     w_k.params                prompts and head of client k; the rest is frozen (`config.train`)
  d_k              task.feature_sizes[k]     number of its features
  p_bar_kc, n_kc   mean, n                   mean and number of its correct logits of class c (Eq. 10)
  beta_kj          beta                      min(d_k / d_j, d_j / d_k) (Eq. 7); weighting="uniform": 1
  p~_kc            server.teacher            global logits of class c, for each width [R, K, K] (Eq. 8)
  gamma, T         gamma, temperature        of L_k = CE + gamma KL(softmax(p~_ky / T) || softmax(p / T)),
                                             without T^2 (Eq. 2, 9)
  |D_jc|           denominator="uploaded"    n_jc, as in the text; "local": client j's examples of class c,
                                             as printed in Eq. 8
  +P, +H           average=("prompts",) ...  entries that are also averaged among clients of one width

A correct logit is one that the trained client predicts correctly, in evaluation mode. The teacher
is made of the uplinks of the last round; for an example whose class no client sent, the KL term is
0. compress=False sends every correct logit with its label instead of means, with the same result;
the metric `logits_sent` counts them, K + 1 numbers each.

Unseen clients start prompts and a head of their own, after local training with the global logits.

Departures: with partial participation, a round's teacher is made of its cohort (in the paper all
clients take part); an empty round leaves it unchanged. The paper does not weight +P and +H: here as
in FedAvg, and only among entries of equal shapes.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from fedjax_core.algorithm import Algorithm, Array, ClientOutput, Cohort, PyTree, Reduce
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import PeerGroup, Task
from fedjax_core.training import aggregators, local_training, losses


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      teacher: [R, K, K] global logits of each class, by the receiver's width.
      known: [K] mask of classes sent in the last round.
      shared: averages of sent entries, by entry, width and shape; and whether any client ever sent
        it.
    """

    teacher: Array
    known: Array
    shared: tuple[tuple[PyTree, Array], ...]


class Sent(NamedTuple):
    """The broadcast to a client.

    Attributes:
      teacher: [K, K] global logits of each class, for this client's width.
      known: [K] bool.
      shared: averages of this client's entries, in the order of `average`.
    """

    teacher: Array
    known: Array
    shared: tuple[tuple[PyTree, Array], ...]


def mean_by_shape(shapes: Sequence[PyTree], shape_index: Sequence[int], weight_fn: Callable[[Cohort], Array]) -> Reduce:
    """Returns means over the clients whose parts have equal shapes, where architectures differ.

    For uplinks that are tuples of trees, the i-th of which has shapes `shapes[shape_index[i]]`; `shapes`
    has those of all groups. `finalize` gives (mean, weight) for each of `shapes`; both zero where
    no client came.
    """

    def map_part(part, client):
        w = weight_fn(client)
        total = [(optax.tree.zeros_like(shape), jnp.zeros_like(w)) for shape in shapes]
        for slot, tree in zip(shape_index, part, strict=True):
            total[slot] = aggregators.multiply_by_weight(tree, w), w
        return tuple(total)

    def finalize(total):
        return tuple((aggregators.divide_by_weight(form, w), w) for form, w in total)

    return Reduce(map_part, "add", finalize)


def weighted_logits(beta: ArrayLike) -> Reduce:
    """Returns the global logits for each kind of receiver (Eq. 8), as a running sum.

        logits_rc = sum_j beta_rj n_jc mean_jc / (1 + sum_j beta_rj m_jc)

    For uplinks (mean [K, K] the mean logits of each class, n [K] how many they are of), m being n;
    or (mean, n, m) with m [K].

    Args:
      beta: [R, N], the weight of client j for receivers of kind r.

    Returns:
      A Reduce whose `finalize` gives (logits [R, K, K], counts [K] sum_j n_jc); zero for a class that
      no client sent.
    """
    table = jnp.asarray(beta, jnp.float32)

    def map_part(part, client):
        mean, n, *m = part
        w = table[:, client.ids]
        total = jnp.where(n[:, None] > 0, n[:, None] * mean, 0)
        return w[:, None, None] * total[None], w[:, None] * (m[0] if m else n)[None], n

    return Reduce(map_part, "add", lambda total: (total[0] / (1 + total[1])[..., None], total[2]))


def fedhpl(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    gamma: NonNegative = 1.0,
    temperature: Positive = 4.5,
    weighting: Literal["dims", "uniform"] = "dims",
    denominator: Literal["uploaded", "local"] = "uploaded",
    logits: Literal["correct", "all"] = "correct",
    compress: bool = True,
    average: Sequence[str] = (),
    weights: str = "samples",
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds FedHPL (Algorithm 1).

    Args:
      task: networks and population; groups may differ in architecture.
      gamma: weight of the distillation term; 0 is local training.
      temperature: T.
      weighting: "dims", or "uniform" for the plain average.
      denominator: "uploaded" or "local".
      logits: "correct", or "all" to send the wrong ones too.
      compress: whether means are sent, K (K + 1) numbers, or each logit.
      average: entries of the networks' params that are averaged too: "prompts" (+P), "head" (+H); as they are, so
        not adapters of ranks by client.
      weights: of that average, "samples" or "uniform".
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its network.

    Raises:
      ValueError: an argument is out of range, or a network has no entry to be averaged.
    """
    check_arguments(fedhpl, gamma=gamma, temperature=temperature, weighting=weighting, denominator=denominator, logits=logits)
    model, classes = task.model, task.classes
    d = task.feature_sizes
    widths, width_index = np.unique(d, return_inverse=True)
    beta = np.minimum(widths[:, None] / d, d / widths[:, None]) if weighting == "dims" else np.ones((len(widths), len(d)))  # Eq. 7
    entry_shapes = [[_form(entry, peers) for entry in average] for peers in task.peers]
    shapes = dict(form for of_group in entry_shapes for form in of_group)
    shape_index = [list(shapes).index(name) for name, _ in entry_shapes[task.group]]
    averaged = mean_by_shape(list(shapes.values()), shape_index, aggregators.make_weight_fn(weights))

    def start_from(sent, w_k):
        """Returns the client's network with the averages that it received."""
        shared = zip(average, sent.shared, strict=True)
        new = {e: jax.tree.map(lambda a, b, mask=mask: jnp.where(mask, a, b), mean, w_k.params[e]) for e, (mean, mask) in shared}
        return w_k._replace(params=w_k.params | new)

    def client_update(sent, w_k, data, key):
        def loss(net, batch, key):
            outputs, stats = model.apply(net, batch.x, key, train=True, mask=batch.mask)
            p = outputs["logits"]
            ce = local_training.label_loss(task)(p, batch.y, batch.mask)
            kl_rows = losses.distillation_per_example(p, sent.teacher[batch.y], temperature)
            kl = losses.masked_mean(jnp.where(sent.known[batch.y], kl_rows, 0), batch.mask)  # Eq. 9
            examples = jnp.sum(batch.mask, dtype=jnp.float32)
            sums = local_training.loss_metrics(ce, p, batch) | {"distillation": (kl * examples, examples)}
            return ce + gamma * kl, local_training.Aux(stats, sums)  # Eq. 2

        trained = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)(start_from(sent, w_k), data, key)

        def predict(batch):
            p = model.apply(trained.net, batch.x, mask=batch.mask)[0]["logits"]
            return p, (jnp.argmax(p, -1) == batch.y) | (logits == "all")

        def by_class(batch):
            p, chosen = predict(batch)
            sums = lambda rows: local_training.class_sums(p, batch.y, rows, classes)
            return *sums(batch.mask & chosen), sums(batch.mask)[1]

        if compress:
            total, n, examples = local_training.sum_over_batches(by_class, data, batch=batch)
            knowledge = local_training.divide_class_sums(total, n)  # Eq. 10
        else:
            p, chosen, y = local_training.map_examples(lambda batch: (*predict(batch), batch.y), data, batch=batch)
            mask = jnp.arange(len(y)) < data.size
            n, examples = (jnp.sum(jax.nn.one_hot(y, classes) * rows[:, None], 0) for rows in (mask & chosen, mask))
            knowledge = (p, jnp.where(mask & chosen, y, classes))
        uplink = knowledge + ((examples,) if denominator == "local" else ())
        sums = trained.sums | {"logits_sent": (jnp.sum(n), jnp.float32(1))}
        entries = tuple(trained.net.params[entry] for entry in average)
        local_sent = sent._replace(shared=tuple((entry, jnp.bool(True)) for entry in entries))  # not the averages that it received
        return ClientOutput(trained.net, (uplink, entries), sums, local=(local_sent, trained.net))

    weighted = weighted_logits(beta)

    def map_part(part, client):
        if not compress:  # [M, K], and labels [M], where K is none
            p, y, *m = part
            part = *local_training.divide_class_sums(*local_training.class_sums(p, y, y < classes, classes)), *m
        return weighted.map(part, client)

    def server_init(key):
        empty = tuple((optax.tree.zeros_like(shape), jnp.bool(False)) for shape in shapes.values())
        return Server(jnp.zeros((len(widths), classes, classes)), jnp.zeros(classes, bool), empty)

    def server_update(server, collected, cohort, key):
        (teacher, counts), means = collected
        new = Server(teacher, counts > 0, server.shared)
        shared = tuple(
            (jax.tree.map(lambda a, b, w=w: jnp.where(w > 0, a, b), mean, before), is_known | (w > 0))
            for (mean, w), (before, is_known) in zip(means, server.shared, strict=True)
        )
        any_client = jnp.any(cohort.examples > 0)
        return optax.tree.where(any_client, new, server)._replace(shared=shared), {}

    def broadcast(server, client_id):
        row = jnp.asarray(width_index)[client_id]
        return Sent(server.teacher[row], server.known, tuple(server.shared[slot] for slot in shape_index))

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=(weighted._replace(map=map_part), averaged),
        predict={"personal": lambda sent, w_k, x: model.apply(start_from(sent, w_k), x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
        broadcast=broadcast,
    )


def _form(entry: str, peers: PeerGroup) -> tuple[tuple, PyTree]:
    """Returns the key of clients among which an entry is averaged (entry, width, shapes), and its shapes."""
    params = peers.shapes.params
    if entry not in params:
        raise ValueError(f"average={entry!r} is not an entry of what {peers.model.name} trains, which is {', '.join(params)}")
    leaves, structure = jax.tree.flatten(params[entry])
    return (entry, peers.feature_size, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)), params[entry]
