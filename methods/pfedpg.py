"""pFedPG: the server generates prompts for each client, and learns from how clients change them.

In plain words: The server keeps a generator that makes prompts for each client over a frozen
network. A client's trained prompts tell the generator in which direction to move.
Sent to clients: prompts of the client.

Yang, Wang, Wang. Efficient Model Personalization in Federated Learning via Client-Specific Prompt
Generation. ICCV 2023. https://arxiv.org/abs/2308.15367

  paper      here                    meaning
  P_b        "basis"                 prompt basis, [n, D]
  d_i        "clients"               descriptor of client i, a row of [N, D]
  G          generate_prompts(...)   P_i = P_b + attention of d_i over P_b (H heads), through a linear map
  P_i        sent                    prompts of client i, [n, D], inserted once, after the class token
  h_i        rest                    client i's head, never sent, and all that is fixed
  alpha      server_lr

  G <- G - alpha sum_i (dP_i/dG)^T (P_i - P~_i),   P~_i the prompts as trained by client i

A client trains its prompts and its head, and sends the prompts' delta. The rest of its network
stays as initialized or loaded. Right after local training it predicts with P~_i, later with newly
generated prompts.

Unseen clients are not supported: the server has no descriptor to generate their prompts from.

Departures: none known; there is no official code. Sizes follow FedHPL's parameter counts: eight
heads of 64, one descriptor per client (so all of its prompts are shifted alike), no biases but the
last. The basis starts as the network's own prompts, descriptors from N(0, 1).
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import PER_ROW, Algorithm, Array, ClientOutput, PyTree
from fedjax_core.nn.projection_head import apply_linear, init_linear
from fedjax_core.option_types import AtLeastOne, AtLeastZero, NonNegative, check_arguments
from fedjax_core.task import Task
from fedjax_core.training import aggregators, local_training
from fedjax_core.training.param_partition import drop_entry, put_entry

_STREAM = 0x7067  # of the generator's initialization


def init_generator(key: Array, basis: Array, clients: int, inner: int) -> PyTree:
    """Initializes G: (n + N) D + 4 D I + D numbers, I the inner width."""
    d = basis.shape[1]
    descriptors, q, k, v, out = jax.random.split(key, 5)
    maps = {
        "query": init_linear(q, d, inner, bias=False),
        "key": init_linear(k, d, inner, bias=False),
        "value": init_linear(v, d, inner, bias=False),
    }
    return maps | {"out": init_linear(out, inner, d), "basis": basis, "clients": jax.random.normal(descriptors, (clients, d))}


def generate_prompts(psi: PyTree, i: Array, heads: int) -> Array:
    """Returns P_i [n, D]."""
    basis = psi["basis"]
    split = lambda x: x.reshape(len(x), heads, -1)
    q = split(apply_linear(psi["query"], psi["clients"][i][None]))  # [1, H, I / H]
    k, v = split(apply_linear(psi["key"], basis)), split(apply_linear(psi["value"], basis))
    scores = jnp.einsum("qhe,khe->hqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    seen = jnp.einsum("hqk,khe->qhe", jax.nn.softmax(scores), v)
    return basis + apply_linear(psi["out"], seen.reshape(1, -1))


def pfedpg(
    task: Task,
    *,
    optimizer: local_training.Optimizer,
    heads: AtLeastOne = 8,
    inner: AtLeastOne = 512,
    server_lr: NonNegative = 1e-3,
    epochs: AtLeastZero = 5,
    batch: AtLeastOne = 64,
) -> Algorithm:
    """Builds pFedPG (Algorithm 1).

    Args:
      task: population, and a network whose `params` have "prompts" [n, D]; all of it but these and
        the head stays fixed.
      optimizer: local optimizer of prompts and head, whose state starts anew every round.
      heads: H.
      inner: I, divided among the heads.
      server_lr: alpha, by plain gradient steps; 0: the generator stays.
      epochs: local epochs.
      batch: B.

    Returns:
      The algorithm; a client keeps its head, and sends n * D numbers.

    Raises:
      ValueError: the network has no such prompts, or an argument is out of range.
    """
    model = task.model
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    shape = jax.tree.map(lambda leaf: leaf.shape, params.get("prompts"))
    if not (isinstance(shape, tuple) and len(shape) == 2):
        raise ValueError(f"params['prompts'] of {model.name} is {shape}; pfedpg needs prompts [n, D]: vit(prompts=10, deep=False)")
    check_arguments(pfedpg, heads=heads, inner=inner, server_lr=server_lr)
    if inner % heads:
        raise ValueError(f"heads={heads} must divide inner={inner}")
    loss, trained = local_training.supervised_loss(task), local_training.entries_filter("prompts", "head")
    train = local_training.fit(loss, optimizer(task.round_num), epochs=epochs, batch=batch, trainable=trained)

    def split_prompts(net):
        return net.params["prompts"], drop_entry(net, "prompts")

    def client_update(p_i, rest, data, key):
        trained_net = train(put_entry(rest, "prompts", p_i), data, key)
        p_new, rest = split_prompts(trained_net.net)
        return ClientOutput(rest, p_new - p_i, trained_net.sums, local=(p_new, rest))

    def server_update(psi, deltas, cohort, key):
        mask = (cohort.examples > 0)[:, None, None]
        ids = jnp.minimum(cohort.ids, task.population - 1)
        _, vjp = jax.vjp(lambda psi: jax.vmap(lambda i: generate_prompts(psi, i, heads))(ids), psi)
        (gradient,) = vjp(jnp.where(mask, -deltas, 0))
        return optax.tree.add_scale(psi, -server_lr, gradient), {}

    return Algorithm(
        server_init=lambda key: init_generator(
            jax.random.fold_in(key, _STREAM), split_prompts(model.init(key))[0], task.population, inner
        ),
        client_update=client_update,
        server_update=server_update,
        collect=aggregators.stack,
        predict={"personal": lambda p_i, rest, x: model.apply(put_entry(rest, "prompts", p_i), x)[0]},
        client_init=lambda key, server, client_id: split_prompts(model.init(key))[1],
        broadcast=lambda psi, client_id: generate_prompts(psi, client_id, heads),
        init_unseen="pFedPG generates prompts from learned descriptors of clients, and has none of an unseen client",
        targets=PER_ROW,
    )
