"""Reference local training, in loops over epochs and batches, without the library.

Draws follow the documented rules: (seed, stream, round, client id) for sampling and for a client's
draws, (key, epoch, position of the example) for the order of its examples.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

INIT, COHORT, DROPOUT, CLIENT = 0, 2, 3, 4  # streams


@jax.jit
def _uniform(key, i):
    return jax.random.uniform(jax.random.fold_in(key, i))


@jax.jit
def _bits(key, i):
    return jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32)


def stream(seed, number, round=0):  # noqa: A002
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), round)


def client_key(seed, round, i):  # noqa: A002
    return jax.random.fold_in(stream(seed, CLIENT, round), i)


def cohort(seed, round, population, size, dropout=0.0):  # noqa: A002
    """Returns the ids of participating clients.

    `size` must be a large part of the population, which is then permuted.
    """
    if size == population:
        ids = range(population)
    else:
        assert size * size > population
        ids = np.asarray(jax.random.permutation(stream(seed, COHORT, round), population)[:size]).tolist()
    key = stream(seed, DROPOUT, round)
    return [i for i in ids if float(_uniform(key, i)) >= dropout]


def rows(data):
    """Returns each client's (x, y)."""
    return [(data.train.x[index], data.train.y[index]) for index in data.train_index]


def order(key, epoch, n):
    """Returns the order in which an epoch visits n examples."""
    shuffle, _ = jax.random.split(jax.random.fold_in(key, epoch))
    return permutation(shuffle, n)


def permutation(key, n):
    """Returns 0, ..., n - 1 in the order of one draw for each."""
    draws = [int(_bits(key, place)) for place in range(n)]
    return sorted(range(n), key=lambda place: (draws[place], place))


def cross_entropy(logits, y):
    """Returns the mean of -log softmax(logits)[y] over examples."""
    return jnp.mean(jnp.log(jnp.sum(jnp.exp(logits), 1)) - logits[jnp.arange(len(y)), y])


@functools.cache
def gradient(model, term):
    """Returns `gradient_of` cross-entropy + term."""
    net = type(jax.eval_shape(model.init, jax.random.key(0)))

    def value(params, stats, x, y, given):
        outputs, stats = model.apply(net(params, stats), x, train=True)
        ce = cross_entropy(outputs["logits"], y)
        return ce + term(outputs["logits"], y, given), (stats, outputs["logits"], ce)

    return jax.jit(jax.grad(value, has_aux=True))


@functools.cache
def gradient_of(whole):
    """Returns the gradient of a loss (params, stats, x, y, given) -> (value, auxiliary)."""
    return jax.jit(jax.grad(whole, has_aux=True))


@functools.cache
def with_term(model, term):
    """Returns the loss cross-entropy + term(params, outputs, x, y, given), for `train(whole=...)`.

    `outputs` are the model's.
    """
    net = type(jax.eval_shape(model.init, jax.random.key(0)))

    def whole(params, stats, x, y, given):
        outputs, stats = model.apply(net(params, stats), x, train=True)
        ce = cross_entropy(outputs["logits"], y)
        return ce + term(params, outputs, x, y, given), (stats, outputs["logits"], ce)

    return whole


def direction(z):
    """Returns z / |z|; zeros for zeros."""
    square = jnp.sum(z**2)
    return jnp.where(square > 0, z / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def nothing(logits, y, given):
    del logits, y, given
    return 0.0


class Trained(NamedTuple):
    """The result of a training.

    `gradients`: the raw gradient of each step; `seen`: (label, logits) of every example in every
    epoch; `loss`: mean cross-entropy.
    """

    params: dict
    stats: dict
    gradients: list
    seen: list
    loss: float


def train(
    model,
    params,
    stats,
    x,
    y,
    key,
    *,
    epochs,
    batch,
    lr,
    momentum=0.0,
    drift=None,
    term=nothing,
    given=(),
    chosen=None,
    first=0,
    whole=None,
) -> Trained:
    """Runs stochastic gradient descent from `params`.

    Args:
      model: an object with `init` and `apply`; the same object for all calls, since its gradient is
        compiled once.
      params: initial parameters.
      stats: initial batch statistics.
      x: [n, ...].
      y: [n].
      key: key of the order of examples.
      epochs: passes over all examples.
      batch: examples per step; the last step of an epoch may have fewer.
      lr: learning rate.
      momentum: momentum of the velocity, which starts at zero.
      drift: added to every gradient before the momentum.
      term: (logits, y, given) -> term beside the cross-entropy; a function of a module.
      given: argument of `term`.
      chosen: names of the trained entries of `params`; None: all.
      first: index of the first epoch, for a training that continues.
      whole: the loss, instead of model and term; a function of a module; see `gradient_of`.
    """
    find = gradient(model, term) if whole is None else gradient_of(whole)
    params, drift = arrays(params), arrays(drift)
    velocity = jax.tree.map(np.zeros_like, params)
    gradients, seen, loss = [], [], 0.0
    for epoch in range(first, first + epochs):
        places = order(key, epoch, len(y))
        for start in range(0, len(places), batch):
            now = np.array(places[start : start + batch])
            g, (stats, logits, ce) = arrays(find(params, stats, x[now], y[now], given))
            gradients.append(g)
            seen += [(int(label), np.asarray(row)) for label, row in zip(y[now], logits, strict=True)]
            loss += float(ce) * len(now)
            step = g if drift is None else jax.tree.map(np.add, g, drift)
            velocity = jax.tree.map(lambda v, s: _as(v, momentum * v + s), velocity, step)
            moved = jax.tree.map(lambda p, v: _as(p, p - lr * v), params, velocity)
            params = {name: moved[name] if chosen is None or name in chosen else params[name] for name in params}
    return Trained(params, stats, gradients, seen, loss / max(1, len(seen)))


@functools.cache
def taught(model, temperature):
    """Gradient and new statistics of KL(softmax(teacher / temperature) | softmax(student / temperature))."""
    net = type(jax.eval_shape(model.init, jax.random.key(0)))

    def value(params, stats, x, teacher):
        outputs, new = model.apply(net(params, stats), x, train=True)
        p, q = jax.nn.softmax(teacher / temperature), jax.nn.log_softmax(outputs["logits"] / temperature)
        return jnp.mean(jnp.sum(p * (jnp.log(p) - q), 1)), new

    return jax.jit(jax.grad(value, has_aux=True))


def distil(model, params, stats, x, teacher, key, temperature=1.0):
    """Two epochs of Adam towards a teacher's logits, with a rate from 0.01 that falls like a cosine, in minibatches of four of
    eight examples."""
    m, v, step, total = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), 0, 4
    for epoch in range(2):
        places = order(key, epoch, len(x))
        for start in (0, 4):
            now = np.array(places[start : start + 4])
            g, stats = taught(model, temperature)(params, stats, x[now], teacher[now])
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            rate = 0.01 * (1 + np.cos(np.pi * step / total)) / 2
            step += 1
            a, b = 1 - 0.9**step, 1 - 0.999**step
            params = jax.tree.map(lambda p, m, v, rate=rate, a=a, b=b: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, m, v)
    return params, stats


def arrays(tree):
    """Returns the tree with NumPy arrays, on which arithmetic compiles nothing."""
    return jax.tree.map(np.asarray, tree)


def _as(like, x):
    """Returns x in the dtype of `like`; NumPy scalars would make it float64."""
    assert np.issubdtype(like.dtype, np.inexact) or like.dtype == "bfloat16", like.dtype
    return np.asarray(x, like.dtype)


def mean(trees, weights):
    """Returns sum_i weights_i trees_i / sum_i weights_i."""
    weights = [np.asarray(w) for w in weights]
    return jax.tree.map(
        lambda *xs: _as(xs[0], sum(w * x for x, w in zip(xs, weights, strict=True)) / sum(weights)), *map(arrays, trees)
    )


def minus(a, b):
    return jax.tree.map(np.subtract, arrays(a), arrays(b))


def plus(a, b, scale=1.0):
    """Returns a + scale * b."""
    return jax.tree.map(lambda x, y: _as(x, x + scale * y), arrays(a), arrays(b))


def arrivals(seconds, candidates, places, buffer, steps, max_staleness=None, server_seconds=0.0):
    """Returns a tuple for each server step of an asynchronous schedule.

    It has the clients in the order of their arrival, the version that each downloaded, the time,
    and how many stale updates were dropped since the step before.

    Args:
      seconds: of each client's round.
      candidates: iterator over client ids, in the order in which they are sampled.
      places: clients that train at once.
      buffer: updates of a step.
    """
    training, waiting, log, time, version, dispatches, dropped = {}, {}, [], 0.0, 0, 0, 0
    while len(log) < steps:
        while len(training) < places and len(training) + len(waiting) < len(seconds):
            client = next(i for i in candidates if i not in training and i not in waiting)
            training[client] = time + seconds[client], dispatches, version
            dispatches += 1
        time = max(time, min(end for end, _, _ in training.values()))
        for client in sorted((i for i in training if training[i][0] <= time), key=lambda i: training[i][:2]):
            _, _, download = training.pop(client)
            if max_staleness is not None and version - download > max_staleness:
                dropped += 1
                continue
            waiting[client] = download
            if len(waiting) == buffer:
                time += server_seconds
                log.append((list(waiting), list(waiting.values()), time, dropped))
                version, waiting, dropped = version + 1, {}, 0
    return log[:steps]
