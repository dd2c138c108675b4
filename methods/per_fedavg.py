"""Per-FedAvg: the server learns a model from which one gradient step on a client's data works well.

In plain words: FedAvg for a model that is good after each client has adapted it with one step on
its own data, not before. Clients adapt it before evaluation.
Sent to clients: model.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948

  paper              here          meaning
  w                  server.net    the initial model, which all clients adapt
  F_i(w)             -             f_i(w - alpha grad f_i(w)), what client i minimizes
  alpha              alpha         step size of the adaptation
  beta               optimizer     local learning rate
  D, D', D''         minibatches   three independent ones in each local step; D' is that of FedAvg
  delta              delta         step of the difference

  u = grad f(w - alpha grad f(w; D); D')
  none (FO)        w <- w - beta u
  difference (HF)  w <- w - beta (u - alpha d),
                   d = (grad f(w + delta u; D'') - grad f(w - delta u; D'')) / (2 delta)
  exact            w <- w - beta (u - alpha Hessian f(w; D'') u)

Unseen clients adapt the server's model, as all clients do.

Departures: D and D'' are drawn with replacement, and D' in shuffled epochs. A client adapts with
the gradient over all of its examples, `adapt_steps` times. Batch statistics are those of D'. The
released code of pFedMe, which compares this method, adapts to test examples.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Algorithm, ClientOutput, Net
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments, one_of
from fedjax_core.task import Task
from fedjax_core.training import local_training
from methods.fedavg import fedavg

_INNER, _HESSIAN = 0x64, 0x6464  # keys of D and D''


def per_fedavg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    alpha: NonNegative = 0.01,
    hessian: Annotated[str, one_of("none", "difference", "exact")] = "none",
    delta: Positive = 1e-3,
    adapt_steps: AtLeastZero = 1,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 64,
    weights: str = "uniform",
) -> Algorithm:
    """Builds Per-FedAvg (Algorithm 1).

    Args:
      task: network and population.
      optimizer: local optimizer, whose state starts anew every round.
      alpha: step size of the adaptation; 0 is FedAvg.
      hessian: the second-order term: left out ("none"), by a "difference" of gradients, or "exact".
      delta: of "difference".
      adapt_steps: steps of adaptation before a client's model is scored.
      epochs: local epochs, one step for each minibatch D'.
      batch: B, of each of the three.
      weights: "uniform" or "samples".

    Returns:
      The algorithm; nothing is kept by a client.
    """
    check_arguments(per_fedavg, alpha=alpha, hessian=hessian, delta=delta, adapt_steps=adapt_steps)
    supervised = local_training.supervised_loss(task)

    def meta_loss(data):
        """Returns a loss whose gradient is the direction of a local step."""

        def draw(key, like):
            if data.draw is not None:
                return data.draw(data, key)
            slots = jax.random.randint(key, like.mask.shape, 0, jnp.maximum(data.size, 1))
            own = local_training.own_batch_size(data, batch)
            mask = jnp.ones(like.mask.shape, bool) if isinstance(own, int) else jnp.arange(len(like.mask)) < own
            return local_training.gather_batch(data.arrays, data.index[slots], mask)

        def loss(net, batch, key):
            w = jax.lax.stop_gradient(net.params)

            def gradient(params, batch, key):
                return jax.grad(lambda params: supervised(Net(params, net.stats), batch, key), has_aux=True)(params)

            inner_key, hessian_key = jax.random.fold_in(key, _INNER), jax.random.fold_in(key, _HESSIAN)
            inner, _ = gradient(w, draw(inner_key, batch), inner_key)
            u, aux = gradient(optax.tree.add_scale(w, -alpha, inner), batch, key)
            direction = u
            if hessian != "none":
                again = draw(hessian_key, batch)
                at = lambda params: gradient(params, again, hessian_key)[0]
                if hessian == "exact":
                    curved = jax.jvp(at, (w,), (u,))[1]
                else:
                    ahead, behind = (at(optax.tree.add_scale(w, step, u)) for step in (delta, -delta))
                    curved = optax.tree.scale(1 / (2 * delta), optax.tree.sub(ahead, behind))
                direction = optax.tree.add_scale(u, -alpha, curved)
            return jnp.asarray(optax.tree.vdot(net.params, direction)), aux

        return loss

    def client_update(w, client, data, key):
        w_i, _, sums = local_training.fit(meta_loss(data), optimizer(task.round_num), epochs=epochs, batch=batch)(w, data, key)
        return ClientOutput(client, optax.tree.sub(w_i, w), sums, local=(w_i, client))

    adapt = local_training.full_batch_step(supervised, optax.sgd(alpha), batch=batch)

    def personalise(w, client, data, key):
        step = lambda n, net: adapt(net, data, jax.random.fold_in(key, n)).net
        return jax.lax.fori_loop(0, adapt_steps, step, w), client

    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)
    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": base.predict["global"]},
        personalise=personalise if adapt_steps else None,
    )
