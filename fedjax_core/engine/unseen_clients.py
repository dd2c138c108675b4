"""Unseen clients: whether a method has models for them, and how good these are. Nothing of them reaches the server."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, ClientData, PyTree
from fedjax_core.engine import client_loop, evaluation_step
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.federation import Evaluation, Federation, Group, Held, key
from fedjax_core.uplink.wrapped_method import Sent


def reason(groups: tuple[Group, ...]) -> str:
    """Why a method has no models for unseen clients; "" if it has."""
    found = [group.build(group.task).newcomer for group in groups]
    return next((why for why in found if isinstance(why, str)), "")


def scored(evaluation: Evaluation, why: str, there: bool) -> Evaluation:
    """With the scope "unseen" if clients are unseen and the method has models for them, whether asked for or not.

    Raises:
      ValueError: it is asked for, and there are no such clients or the method has no models for them: `why`.
    """
    asked = "unseen" in evaluation.scopes
    if asked and not there:
        raise ValueError("evaluation.scopes has 'unseen', but no client is unseen; set data.unseen_clients, such as 0.2")
    if asked and why:
        raise ValueError(f"evaluation.scopes has 'unseen', but {why}")
    if asked or not there or why:
        return evaluation
    return evaluation._replace(scopes=(*evaluation.scopes, "unseen"))


def members(fed: Federation, g: int, number: int) -> np.ndarray:
    """Which of the unseen clients, of `number`, have group g's network: they take turns."""
    return np.arange(g, number, len(fed.groups), dtype=np.int32)


def of_unseen(
    fed: Federation,
    g: int,
    held: Held,
    server: PyTree,
    round: Array,  # noqa: A002
    of_run: Array,
    places: Array,
    bounds: tuple[Array, Array],
):
    """Scores of the unseen clients at `places` [E], who have group g's network, on their own test rows.

    Zeros for clients that are not in the chunks that `bounds` says (`client_loop.map_part`).

    Returns:
      {predictor: {"accuracy", "loss"}: pairs [E]}; places beyond the last client are empty.
    """
    number = len(held.unseen_size)

    def one(shared, place):
        held, server, round, of_run = shared  # noqa: A001
        algorithm = fed.algorithm(g, held, round)
        there, place = place < number, jnp.minimum(place, number - 1)
        data = ClientData(held.train, held.unseen_index[place], jnp.where(there, held.unseen_size[place], 0), fed.episodes)
        plain, personal = holdings(fed, g, algorithm, server, of_run, round, place, data)
        size = jnp.where(there, held.unseen_test_size[place], 0)
        models = evaluation_step.predictors(algorithm, plain, personal)
        return (), evaluation_step.of_rows(fed, g, models, held.test, held.unseen_test_index[place], size, fed.batches.unseen)

    shared = held, server, round, of_run
    plan, lies = fed.plan_of(g), cohort_buffer.lies(shared)
    return client_loop.map_part(one, shared, places, (), bounds, plan=plan, on=fed.mesh, lies=lies)[1]


def holdings(
    fed: Federation,
    g: int,
    algorithm: Algorithm,
    server: PyTree,
    of_run: Array,
    round: Array,  # noqa: A002
    place: Array,
    data: ClientData,
):
    """(sent, client state) of a newcomer as it arrives, and after the method's own steps: local updates that send nothing, where
    clients keep something that a model of theirs reads; then `personalise`.

    Its id is beyond the population's, for draws of its own. It is sent what a client with its network is, as itself: no attacker.
    """
    i = fed.population + place
    sent = algorithm.broadcast(server, jnp.int32(fed.groups[g].clients[0]))
    if isinstance(sent, Sent):
        sent = sent._replace(id=i)
    client = algorithm.client_init(key(of_run, "init", 0), server, i)
    plain = sent, client
    if callable(algorithm.newcomer):
        client = algorithm.newcomer(sent, client)
    if set(algorithm.predict) == {"global"}:
        return plain, plain
    if jax.tree.leaves(client):
        draw = jax.random.fold_in(key(of_run, "newcomer", round), i)

        def update(n, client):
            return algorithm.client_update(sent, client, data, jax.random.fold_in(draw, n)).state

        client = jax.lax.fori_loop(0, fed.evaluation.updates, update, client)
    if algorithm.personalise is None:
        return plain, (sent, client)
    return plain, algorithm.personalise(sent, client, data, jax.random.fold_in(key(of_run, "personalise", round), i))


def gaps(found: dict[str, float], models: list[str], score: str = "accuracy") -> dict[str, float]:
    """The participation gap of each model that seen and unseen clients were scored with, by a score."""
    pairs = {name: [found.get(f"test/{name}/{scope}/{score}/mean") for scope in ("own", "unseen")] for name in models}
    return {f"test/{name}/gap/{score}": own - new for name, (own, new) in pairs.items() if own is not None and new is not None}
