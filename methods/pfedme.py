"""pFedMe: clients solve a regularized problem near the server's model, and move it towards their solutions.

In plain words: Each client solves for a personal model near its copy of the server's, and moves the
copy towards the solution. The copies are averaged.
Sent to clients: model or adapter.

T. Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
https://arxiv.org/abs/2006.08848
On adapters: Yang et al. Federated Adapter on Foundation Models. 2025, appendix C.2.
https://arxiv.org/abs/2505.01075

  paper       here             meaning
  w           server.net       server model (whatever a network trains, such as an adapter)
  w_i         w_i              local model, w at the start of a round
  theta_i     theta            personal model: approximate minimum of CE on a minibatch + lambda / 2 |theta - w_i|^2
  lambda      lam              pull of theta to w_i, and of w_i to theta
  K           inner_steps      steps of `optimizer` (eta_p) on each minibatch for theta
  eta         outer_lr         w_i <- w_i - eta lambda (w_i - theta), after each minibatch
  R           epochs           passes over the local data; R is the number of their minibatches
  beta        beta             w <- (1 - beta) w + beta mean of w_i

Plain steps need eta_p lambda < 2 and eta lambda <= 1. `variant`: "default", the paper; "released",
FedOA's code for it: the first round is FedIT's; then theta is a persistent personal model, trained
alone for `epochs` of `optimizer` from the client's own draw, and w_i takes a single step, w - 2 eta
lambda (w - theta). There eta is the optimizer's rate, 3e-4, and lambda 0.5, which the variant does
not set; inner_steps and warm are not read.

Unseen clients solve for a theta of their own: local training around the server's model.

Departures: within a round, theta and the inner optimizer's state continue from minibatch to
minibatch (warm=False: theta starts at w_i). The paper's code adds weight decay 0.001 to inner
steps, here an option of the optimizer. Clients are evaluated with theta, as in the paper (its code
evaluates w_i, and weights clients by examples). Only sampled clients train. Batch statistics are
theta's; with beta above 1 the server's move no further than their mean.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core import registry
from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, Net, PyTree
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, Positive, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import local_training
from fedjax_core.training.param_partition import record_training
from methods.ditto import own_init_key
from methods.fedavg import fedavg
from methods.fedoa import compute_features, feature_distance

VARIANTS = ("default", "released")


class Carried(NamedTuple):
    """State that is carried between minibatches, beside w_i.

    Attributes:
      stats: batch statistics.
      theta: like the params.
      state: of the inner optimizer.
      done: [] inner steps so far.
    """

    stats: PyTree
    theta: PyTree
    state: PyTree
    done: Array


def pfedme(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    lam: NonNegative = 15.0,
    inner_steps: AtLeastOne = 5,
    outer_lr: Positive = 0.005,
    beta: NonNegative = 1.0,
    warm: bool = True,
    epochs: AtLeastZero = 1,
    batch: AtLeastOne = 20,
    weights: str = "uniform",
    measure: bool = False,
    variant: str = "default",
) -> Algorithm:
    """Builds pFedMe (Algorithm 1).

    Args:
      optimizer: of the inner steps, whose state starts anew every round.
      lam: lambda; 0 leaves the server's model as it is, but with "released".
      inner_steps: K, of "default".
      outer_lr: eta.
      beta: of the server; 0 leaves its model as it is.
      warm: whether theta goes on from minibatch to minibatch, with "default".
      epochs: local epochs.
      batch: B.
      weights: "uniform" or "samples".
      measure: whether the mean distance of theta's and w's features after training is computed,
        metric "feature_distance".
      variant: "default" or "released".

    Returns:
      The algorithm; a client keeps theta, with which it is scored, and sends the delta of w_i.
    """
    registry.check_choice("variant", variant, VARIANTS)
    check_arguments(pfedme, lam=lam, inner_steps=inner_steps, outer_lr=outer_lr, beta=beta)
    model, released = task.model, variant == "released"
    ce, inner = local_training.supervised_loss(task), optax.with_extra_args_support(optimizer(task.round_num))
    base = fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights, review=_towards(beta))

    def envelope(data):
        """Returns lambda / 2 |w_i - theta|^2, whose gradient is the Moreau envelope's, and solves for theta."""
        total = local_training.planned_epochs(data, epochs, batch) * local_training.num_steps(data, batch) * inner_steps

        def loss(net, batch, key):
            w_i, (stats, theta, state, done) = jax.lax.stop_gradient(net.params), net.stats

            def step(k, carry):
                theta, stats, state, _ = carry
                gradient = jax.grad(lambda theta: ce(Net(theta, stats), batch, jax.random.fold_in(key, k)), has_aux=True)
                grads, aux = gradient(theta)
                grads = local_training.sharpen(lambda top: gradient(top)[0], theta, grads, state)
                grads = jax.tree.map(lambda g, t, w: g + lam * (t - w), grads, theta, w_i)
                updates, state = inner.update(
                    grads, state, theta, progress=(done + k) / total, rate=local_training.client_rate(data)
                )
                return optax.apply_updates(theta, updates), aux.stats, state, aux.sums

            sums = jax.eval_shape(lambda: ce(Net(theta, stats), batch, key)[1].sums)
            carry = theta if warm else w_i, stats, state, optax.tree.zeros_like(sums)
            theta, stats, state, sums = jax.lax.fori_loop(0, inner_steps, step, carry)
            value = lam / 2 * optax.tree.norm(optax.tree.sub(net.params, theta), squared=True)
            return value, local_training.Aux(Carried(stats, theta, state, done + inner_steps), sums)

        return loss

    def moreau_update(w, theta, data, key):
        """Returns (theta, delta of w_i, metrics)."""
        initial = Net(w.params, Carried(w.stats, w.params, inner.init(w.params), jnp.int32(0)))
        outer = local_training.sgd(outer_lr)(task.round_num)
        (w_i, carried), _, sums = local_training.fit(envelope(data), outer, epochs=epochs, batch=batch)(initial, data, key)
        record_training(theta.params, carried.theta)
        delta = Net(optax.tree.sub(w_i, w.params), optax.tree.sub(carried.stats, w.stats))
        return Net(carried.theta, carried.stats), delta, sums

    def released_update(w, theta, data, key):
        """Returns the same by the released code: trains theta alone, then steps w once."""

        def first():
            out = base.client_update(w, (), data, key)
            return theta, out.uplink, out.metrics

        def later():
            trained = local_training.fit(ce, optimizer(task.round_num), epochs=epochs, batch=batch)(theta, data, key)
            towards = optax.tree.sub(trained.net, w)
            delta = Net(optax.tree.scale(2 * outer_lr * lam, towards.params), towards.stats)
            return trained.net, delta, trained.sums

        return jax.lax.cond(task.round_num == 0, first, later)

    def client_update(w, theta, data, key):
        theta, delta, sums = (released_update if released else moreau_update)(w, theta, data, key)
        phi = lambda net: compute_features(model, net, data, batch)
        more = {"feature_distance": feature_distance(phi(theta), phi(w), data)} if measure else {}
        return ClientOutput(theta, delta, sums | more, local=(optax.tree.add(w, delta), theta))

    def client_init(key, server, client_id):
        return model.init(own_init_key(key, client_id) if released else key)

    return base._replace(
        client_update=client_update,
        predict=base.predict | {"personal": lambda w, theta, x: model.apply(theta, x)[0]},
        client_init=client_init,
        init_unseen=lambda w, theta: w,
        targets=PER_ROW if measure else base.targets,
    )


def _towards(beta: float) -> optax.GradientTransformation:
    """Scales the mean delta by beta; statistics by at most 1, since extrapolated variances may be negative."""
    scaled = lambda delta: Net(optax.tree.scale(beta, delta.params), optax.tree.scale(jnp.minimum(beta, 1.0), delta.stats))
    return optax.stateless(lambda delta, net: scaled(delta))
