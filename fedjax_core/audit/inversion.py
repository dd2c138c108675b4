"""Gradient inversion: the inputs behind what one client sends.

  "dlg"      Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019: inputs and labels whose update
             has the least squared distance to the observed one, by L-BFGS.
  "idlg"     Zhao, Mopuri, Bilen. iDLG: Improved Deep Leakage from Gradients. 2020: the same with
             labels that are read off the update of the head's bias.
  "cosine"   Geiping, Bauermeister, Droge, Moeller. Inverting Gradients. NeurIPS 2020: the cosine of
             the updates and the total variation of the images, by Adam on signs of gradients.

The attacker is the server: it knows the network, its weights before and after, the number of
examples and of local steps, and the learning rate. It takes local training for so many steps of
gradient descent on all examples, which for one epoch of one minibatch is exact, and otherwise an
approximation. It never has the client's data.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Array, Examples, Net, PyTree, find_nets, select_examples
from fedjax_core.audit.images import peak_signal_to_noise, structural_similarity
from fedjax_core.engine.client_state import stores
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.engine.streams import stream_key
from fedjax_core.option_types import AtLeastOne, NonNegative, Positive, check_arguments, one_of
from fedjax_core.task import Model

ATTACKS = ("dlg", "idlg", "cosine")


class UplinkAttack(NamedTuple):
    """An attack and its options.

    Attributes:
      name: one of `ATTACKS`.
      iterations: of the optimizer.
      rate: of Adam, of "cosine".
      variation: weight of the total variation, of "cosine".
      restarts: starts from other noise; the closest update is kept.
    """

    name: Annotated[str, one_of(*ATTACKS)] = "cosine"
    iterations: AtLeastOne = 1000
    rate: Positive = 0.1
    variation: NonNegative = 1e-4
    restarts: AtLeastOne = 1


class Observation(NamedTuple):
    """What the server sees of one client, and what it does not.

    Attributes:
      before: the network that the client got.
      delta: the trained parameters less those before, as the server receives them.
      examples: the client's, to compare with; images of bytes as floats in [0, 1].
      steps, lr: local steps and learning rate, which the server knows.
    """

    before: Net
    delta: PyTree
    examples: Examples
    steps: int
    lr: float


class Inversion(NamedTuple):
    """The result of an attack.

    Attributes:
      images: [B, ...] reconstructed inputs, in the order of the most similar originals.
      labels: [B].
      distance: of the reconstruction's update to the observed one, as the attack measures it.
      psnr, ssim: [B] similarity to the originals; of inputs that are no images ssim is NaN.
    """

    images: np.ndarray
    labels: np.ndarray
    distance: float
    psnr: np.ndarray
    ssim: np.ndarray


def observe_uplink(simulator: Simulator, state: State, client: int, examples: int, *, steps: int, lr: float) -> Observation:
    """Returns what a client would send next, if it had only its first examples.

    The uplink passes the run's attacks, compression and noise of clients. What a server does with
    uplinks (clipping, noise, robust rules) comes later and does not protect from it; uplinks of runs
    with these are not read.

    Raises:
      ValueError: the uplink has not exactly one difference of networks; the client has fewer
        examples.
    """
    spec, compiled = simulator.spec, simulator.compiled
    if not 0 <= client < spec.population:
        raise ValueError(f"audit: client={client} must be in [0, {spec.population})")
    index = np.asarray(spec.data.train_index[client])
    if len(index) < examples:
        raise ValueError(f"audit: client {client} has {len(index)} examples, not {examples}")

    g = next(g for g, group in enumerate(spec.groups) if client in group.clients)
    ids = np.array([client], np.int32)
    _, states, touched, initial = compiled.states.read(state, g, ids)

    @jax.jit
    def update(arrays, server, round_num, key, states, touched, initial):
        algorithm = spec.algorithm(g, arrays, round_num)
        sent = algorithm.broadcast(server, jnp.int32(client))
        if spec.is_offloaded:
            states = stores.init_untouched(spec, g, arrays, initial, key, jnp.asarray(ids), states, touched)
        own = jax.tree.map(lambda x: x[0], states)
        data = spec.client_data(arrays, client, jnp.int32(examples))
        draw = jax.random.fold_in(stream_key(key, "client", round_num), client)
        return sent, algorithm.client_update(sent, own, data, draw).uplink

    arrays = compiled.feed.for_client(client)
    sent, uplink = update(arrays, state.server, state.round, state.key, states, touched, initial)
    (before, *others), (delta, *more) = _require_nets(sent), _require_nets(uplink)
    if others or more:
        raise ValueError("audit: the inversion of uplinks is for methods that send one difference of networks, such as fedavg")
    own = select_examples(spec.data.train, index[:examples])
    x = own.x / np.float32(255) if own.x.dtype == np.uint8 else own.x
    return Observation(before, delta.params, own._replace(x=x), steps, lr)


def _require_nets(tree: PyTree) -> list[Net]:
    nets = find_nets(tree)
    if not nets:
        raise ValueError(
            "audit: the inversion reads a network that a client sends, and none is there: the method sends none, or the server's "
            "noise, robust rule or vote takes its place; use method 'fedavg' without them"
        )
    return nets


def infer_labels(delta: PyTree, number: int) -> np.ndarray:
    """Returns the likely labels [B] of one step, by the update of the head's bias.

    With one example it rises for the true class alone (iDLG). With more, a class is taken as long as
    its update is the highest, each time lowered by one example's share.
    """
    bias = np.asarray(delta["head"]["bias"], float).copy()
    share, labels = np.maximum(bias, 0).sum() / number, []
    for _ in range(number):
        labels.append(int(np.argmax(bias)))
        bias[labels[-1]] -= share
    return np.array(sorted(labels))


def simulate_update(model: Model, observed: Observation, x: Array, target: Array) -> PyTree:
    """Returns the update of local training on inputs x [B, ...] with targets [B, K]: `steps` steps of SGD on all of them."""

    def loss(params):
        logits = model.apply(Net(params, observed.before.stats), x, train=False)[0]["logits"]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * target, 1))

    def step(params, _):
        return optax.tree.add_scale(params, -observed.lr, jax.grad(loss)(params)), None

    trained = jax.lax.scan(step, observed.before.params, length=observed.steps)[0]
    return optax.tree.sub(trained, observed.before.params)


def measure_difference(model: Model, observed: Observation) -> float:
    """Returns the sine of the angle between the update that the attack simulates on the client's own examples and the observed one.

    Of an uplink that neither compression nor noise has changed it is about 0 if the attack simulates what the client does.
    """
    target = jax.nn.one_hot(observed.examples.y, observed.before.params["head"]["bias"].shape[0])
    simulated = jax.jit(functools.partial(simulate_update, model, observed))(jnp.asarray(observed.examples.x), target)
    a, b = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)
        for tree in (simulated, observed.delta)
    )
    a, b = (x / max(np.linalg.norm(x), 1e-20) for x in (a, b))
    return float(np.linalg.norm(a - (a @ b) * b)) if a @ b > 0 else 1.0


def invert_uplink(model: Model, observed: Observation, attack: UplinkAttack = UplinkAttack(), seed: int = 0) -> Inversion:  # noqa: B008
    """Attacks one client's uplink, and compares the result with the client's examples."""
    check_arguments(UplinkAttack, **attack._asdict())
    originals, number = np.asarray(observed.examples.x), len(observed.examples.y)
    classes = observed.before.params["head"]["bias"].shape[0]
    labels = None if attack.name == "dlg" else jnp.asarray(infer_labels(observed.delta, number))

    def distance(variables: dict[str, Array]) -> Array:
        target = jax.nn.softmax(variables["labels"]) if labels is None else jax.nn.one_hot(labels, classes)
        update = simulate_update(model, observed, variables["x"], target)
        if attack.name != "cosine":  # in gradients, so that the learning rate does not matter
            return optax.tree.norm(optax.tree.sub(update, observed.delta), squared=True) / observed.lr**2
        lengths = optax.tree.norm(update) * optax.tree.norm(observed.delta)
        cosine = 1 - optax.tree.vdot(update, observed.delta) / jnp.maximum(lengths, 1e-20)
        return jnp.asarray(cosine + attack.variation * total_variation(variables["x"]))

    def start(key: Array) -> dict[str, Array]:
        x_key, y_key = jax.random.split(key)
        x = originals.mean() + originals.std() * jax.random.normal(x_key, originals.shape)  # the usual scale of inputs is known
        return {"x": x} | ({"labels": jax.random.normal(y_key, (number, classes))} if labels is None else {})

    minimize = jax.jit(functools.partial(_minimize, distance, attack))
    keys = jax.random.split(jax.random.key(seed), attack.restarts)
    results = [minimize(start(key)) for key in keys]
    value, variables = min(((float(value), variables) for value, variables in results), key=lambda pair: _finite(pair[0]))
    images = np.clip(np.nan_to_num(np.asarray(variables["x"])), originals.min(), originals.max())
    found = np.asarray(jnp.argmax(variables["labels"], 1) if labels is None else labels)
    order = _match(originals, images)
    images, found = images[order], found[order]
    span = float(np.ptp(originals))
    psnr = [peak_signal_to_noise(a, b, span) for a, b in zip(originals, images, strict=True)]
    ssim = [structural_similarity(a, b, span) if a.ndim == 3 else np.nan for a, b in zip(originals, images, strict=True)]
    return Inversion(images, found, value, np.array(psnr), np.array(ssim))


def total_variation(x: Array) -> Array:
    """Returns the mean absolute difference of neighbouring pixels [B, H, W, C]; 0 for other inputs."""
    if x.ndim != 4:
        return jnp.zeros(())
    return jnp.mean(jnp.abs(jnp.diff(x, axis=1))) + jnp.mean(jnp.abs(jnp.diff(x, axis=2)))


def _minimize(loss: Callable, attack: UplinkAttack, variables: PyTree) -> tuple[Array, PyTree]:
    """Returns the least loss, and the variables that have it, by Adam on signs of gradients ("cosine") or by L-BFGS."""
    if attack.name == "cosine":
        rate = optax.piecewise_constant_schedule(
            attack.rate, {int(attack.iterations * part): 0.1 for part in (3 / 8, 5 / 8, 7 / 8)}
        )
        signs = optax.stateless(lambda grads, _: jax.tree.map(jnp.sign, grads))
        optimizer: Any = optax.with_extra_args_support(optax.chain(signs, optax.adam(rate)))
        value_and_grad: Callable = lambda variables, state: jax.value_and_grad(loss)(variables)
    else:
        optimizer, value_and_grad = optax.lbfgs(), optax.value_and_grad_from_state(loss)

    def step(carry, _):
        variables, state, best, best_value = carry
        value, grads = value_and_grad(variables, state=state)
        is_better = value < best_value
        best = optax.tree.where(is_better, variables, best)
        updates, state = optimizer.update(grads, state, variables, value=value, grad=grads, value_fn=loss)
        return (optax.apply_updates(variables, updates), state, best, jnp.where(is_better, value, best_value)), None

    start = variables, optimizer.init(variables), variables, jnp.asarray(jnp.inf)
    (_, _, best, value), _ = jax.lax.scan(step, start, length=attack.iterations)
    return value, best


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf


def _match(originals: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Returns for each original the index of its reconstruction, each used once."""
    from scipy.optimize import linear_sum_assignment

    a, b = originals.reshape(len(originals), -1), images.reshape(len(images), -1)
    return linear_sum_assignment(np.square(a[:, None] - b[None]).mean(-1))[1]
