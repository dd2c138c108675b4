"""FedMD: clients of any architecture agree on the logits of public examples.

In plain words: All hold a common public set. Clients send their outputs on it, and learn to imitate
the mean of all outputs before they train on their own data.
Sent to clients: consensus on public examples.

Li, Wang. FedMD: Heterogenous Federated Learning via Model Distillation. 2019.
https://arxiv.org/abs/1910.03581

  paper      here               meaning
  D_0        task.public        public labeled set, shared by all
  D_k        data               private set of client k
  f_k        w_k                client k's model, never sent; outputs for private, then public classes
  f~(x_0)    server.logits      consensus: mean logits of public examples
  d_j        server.rows        indices of these: `align` examples, drawn anew every round

  before:    every model trains on the public set, then on its private one
  a round:   digest, towards the consensus (mean absolute difference of logits); revisit, on the private
             set; send logits

Unseen clients are not supported, since networks are never sent.

Departures: a round digests the logits that the last round's cohort sent after training, so the
first round digests nothing; in the paper the same logits are sent at the start of the round. Both
initial trainings have fixed numbers of epochs; the authors stop early. The draw of public examples
is stratified by class. Logits are sent of public examples as they are; with config.augment they are
digested from augmented ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, ClientData, ClientOutput, ClientSettings, Examples
from fedjax_core.option_types import AtLeastOne, AtLeastZero, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training, losses

DIGEST, REVISIT = 0x646967, 0x726576  # keys of the digest, and of the initial private training


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      logits: [A, O] the consensus.
      rows: [A] indices of its public examples.
      known: [] bool, whether any client sent logits.
      asked: [A] indices of the public examples whose logits clients send next.
    """

    logits: Array
    rows: Array
    known: Array
    asked: Array


def draw_stratified(key: Array, y: Array, number: int) -> Array:
    """Draws `number` indices of labels `y` [P] without replacement, stratified by class."""
    by_class = jnp.lexsort((jax.random.uniform(key, y.shape), y))  # shuffled within classes
    ordered = y[by_class]
    first, last = jnp.searchsorted(ordered, ordered, side="left"), jnp.searchsorted(ordered, ordered, side="right")
    place = (jnp.arange(len(y)) - first + 0.5) / (last - first)  # rank within the class, in (0, 1)
    return by_class[jnp.argsort(place, stable=True)[:number]]


def fedmd(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    align: int | None = None,
    digest_epochs: AtLeastZero = 1,
    digest_batch: AtLeastOne = 256,
    epochs: AtLeastZero = 4,
    batch: AtLeastOne = 64,
    public_epochs: AtLeastZero = 20,
    private_epochs: AtLeastZero = 25,
) -> Algorithm:
    """Builds FedMD (Algorithm 1).

    Args:
      task: network with more outputs than classes, population and public set; groups may differ in
        architecture.
      optimizer: local optimizer, whose state starts anew for every training.
      align: A, public examples a round; None: all.
      digest_epochs: over them.
      digest_batch: their minibatches.
      epochs: over the private set.
      batch: B.
      public_epochs: over the public set, before the first round.
      private_epochs: over the private set, after that.

    Returns:
      The algorithm; a client keeps its model and sends A * (O + 1) numbers, O the network's
      outputs.

    Raises:
      ValueError: there is no public set or no output for its classes, or an argument is out of
        range.
    """
    if not isinstance(task.public, Examples):
        raise ValueError("task.public=(): fedmd needs a public labelled set; name one by config.public, such as public='mnist'")
    model, public = task.model, task.public
    outputs = jax.eval_shape(model.init, jax.random.key(0)).params["head"]["kernel"].shape[1]
    least = task.classes + 1 + (int(public.y.max()) if isinstance(public.y, np.ndarray) else 0)  # traced labels are not known
    if outputs < least:
        raise ValueError(f"the network has {outputs} outputs; fedmd needs {least}, for private and public classes")
    total = len(public.y)
    number = total if align is None else align
    if not 1 <= number <= total:
        raise ValueError(f"align={align} must be between 1 and the {total} public examples")
    settings = {"digest_epochs": digest_epochs, "digest_batch": digest_batch}
    check_arguments(fedmd, **settings, public_epochs=public_epochs, private_epochs=private_epochs)

    def fit(loss, epochs, batch=batch, round_num=task.round_num):
        return local_training.fit(loss, optimizer(round_num), epochs=epochs, batch=batch)

    def digest_loss(net, rows, key):
        out, stats = model.apply(net, rows.x, key, train=True, mask=rows.mask)
        return losses.absolute_error(out["logits"], rows.y, rows.mask), local_training.Aux(stats, ())

    ce = local_training.supervised_loss(task)

    def rate_of(data):  # for public examples, of the client's settings its learning rate alone
        return None if data.settings is None else ClientSettings(rate=data.settings.rate)

    def prepare(sent, w_k, data, key):
        classes = public.y + task.classes
        labelled = ClientData(Examples(public.x, classes), jnp.arange(total), jnp.int32(total), settings=rate_of(data))
        w_k = fit(ce, public_epochs, round_num=0)(w_k, labelled, key).net
        return fit(ce, private_epochs, round_num=0)(w_k, data, jax.random.fold_in(key, REVISIT)).net

    def client_update(sent, w_k, data, key):
        aligned = Examples(jax.tree.map(lambda x: x[sent.rows], public.x), sent.logits)
        aligned = ClientData(aligned, jnp.arange(number), jnp.where(sent.known, number, 0), settings=rate_of(data))
        digested = fit(digest_loss, digest_epochs, digest_batch)(w_k, aligned, jax.random.fold_in(key, DIGEST))
        revisited = fit(ce, epochs)(digested.net, data, key)
        asked = ClientData(public, sent.asked, jnp.int32(number))
        logits = lambda rows: model.apply(revisited.net, rows.x, mask=rows.mask)[0]["logits"]
        uplink = local_training.map_examples(logits, asked, batch=digest_batch), jnp.ones(number)
        return ClientOutput(revisited.net, uplink, revisited.sums)

    def draw_public(key):
        return jnp.arange(total) if align is None else draw_stratified(key, public.y, number)

    def server_init(key):
        nothing = jnp.zeros((number, outputs))
        return Server(nothing, jnp.arange(number), jnp.bool(False), draw_public(jax.random.fold_in(key, DIGEST)))

    def server_update(server, collected, cohort, key):
        mean, holders = collected
        any_client = jnp.any(holders > 0)
        logits, rows = jnp.where(any_client, mean, server.logits), jnp.where(any_client, server.asked, server.rows)
        return Server(logits, rows, server.known | any_client, draw_public(key)), {}

    return Algorithm(
        server_init,
        client_update,
        server_update,
        collect=aggregators.class_mean(),
        predict={"personal": lambda sent, w_k, x: model.apply(w_k, x)[0]},
        client_init=lambda key, server, client_id: model.init(key),
        prepare=prepare,
        init_unseen="FedMD's networks are never sent, so an unseen client would have to train one alone",
    )
