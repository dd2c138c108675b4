"""FedRoD: a generic head is trained with a balanced loss and shared; a personal head adds to it locally.

In plain words: Two heads on one body: a generic one, trained with a loss that balances classes and
averaged, and a personal one, trained with the usual loss.
Sent to clients: model.

Chen, Chao. On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR
2022. https://arxiv.org/abs/2107.00778

  paper        here            meaning
  theta, psi   w.params        feature extractor and generic head, the server's
  phi_m        h_m             personal head of client m, never sent; initialized to zero
  gamma        gamma           exponent of the class counts in the balanced loss
  N_{m,c}      counts          training examples of class c at client m

Generic: CE(o_G + gamma log N_m, y) trains theta and psi. Personal: CE(o_G + h_m(z), y) trains h_m
alone, with stop-gradients on o_G and z. Both gradients are taken at the same point, so the shared
part does not depend on the personal one.

Unseen clients use the server's model ("global"), and add a personal head to it after local
training.

Departures: linear personal heads; no hypernetwork. Ports start personal heads as copies of the
generic one, not from zero. A class without local examples counts as the smallest positive number,
not as zero. Gradient clipping (`config.optimizer.clip`) uses the norm of both parts together.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training


def fedrod(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    gamma: NonNegative = 1.0,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "samples",
) -> Algorithm:
    """Builds FedRoD (linear).

    Args:
      optimizer: local optimizer of all parts, whose state starts anew every round.
      gamma: 0 is plain cross-entropy for the generic part, which is then FedAvg.
      epochs: local epochs.
      batch: B.
      weights: "samples" or "uniform".

    Returns:
      The algorithm; a client keeps its personal head, {"kernel", "bias"} as the network's own.
    """
    check_arguments(fedrod, gamma=gamma)
    model = task.model

    def personal(h_m, z):
        return model.head(Net({"head": h_m}), z)

    def client_update(w, h_m, data, key):
        counts = local_training.class_counts(data, classes=task.classes, batch=batch)
        prior = gamma * jnp.log(jnp.maximum(counts, aggregators.TINY))

        def loss(net, batch, key):
            outputs, stats = model.apply(Net(net.params["shared"], net.stats), batch.x, key, train=True, mask=batch.mask)
            o_g, z = outputs["logits"], outputs["features"]
            generic = local_training.label_loss(task)(o_g + prior[None], batch.y, batch.mask)
            o_p = jax.lax.stop_gradient(o_g) + personal(net.params["personal"], jax.lax.stop_gradient(z))
            own = local_training.label_loss(task)(o_p, batch.y, batch.mask)
            return generic + own, local_training.Aux(stats, local_training.loss_metrics(own, o_p, batch))

        train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch)
        (params, stats), _, sums = train(Net({"shared": w.params, "personal": h_m}, w.stats), data, key)
        new = Net(params["shared"], stats)
        return ClientOutput(params["personal"], optax.tree.sub(new, w), sums, local=(new, params["personal"]))

    def predict(w, h_m, x):
        outputs = model.apply(w, x)[0]
        return outputs | {"logits": outputs["logits"] + personal(h_m, outputs["features"])}

    return Algorithm(
        server_init=model.init,
        client_update=client_update,
        server_update=lambda w, delta, cohort, key: (optax.apply_updates(w, delta), {}),
        collect=aggregators.mean(aggregators.make_weight_fn(weights)),
        predict={"personal": predict, "global": lambda w, h_m, x: model.apply(w, x)[0]},
        client_init=lambda key, w, client_id: optax.tree.zeros_like(w.params["head"]),
    )
