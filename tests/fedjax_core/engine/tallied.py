"""A method that tells what reached whom, and simulations of it."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, ClientOutput
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop
from fedjax_core.engine.simulator import Group, Simulator, build_spec
from fedjax_core.training import aggregators, local_training
from tests import toy

SGD = local_training.sgd(0.1, momentum=0.5)

N = toy.CLIENTS


def with_test_rows(test_index):
    whole = toy.data()
    dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
    return federated_data.from_index(dataset, whole.train_index, test_index)


def simulate(build, groups=None, data=None, **settings):
    settings = {"cohort": 5, "rounds_per_dispatch": 2, "plan": client_loop.Plan(1, 1)} | settings
    return Simulator(build_spec(toy.groups(build) if groups is None else groups, toy.data() if data is None else data, **settings))


def tally(task, **changes):
    """A method without a network that writes down what reaches whom. One state per client: [rounds seen, last thing sent]."""

    def client_update(sent, client, data, key):
        mine = {"rounds": client["rounds"] + 1, "sent": sent["mine"], "draw": jax.random.uniform(key)}
        return ClientOutput(mine, {"id": sent["mine"]}, {"size": (data.size.astype(jnp.float32), jnp.float32(1))})

    def server_update(server, collected, cohort, key):
        there = (cohort.examples > 0).astype(jnp.float32)
        seen = server["seen"].at[cohort.ids].add(there, mode="drop")
        return {"seen": seen, "last": server["last"].at[cohort.ids].set(collected["id"] * there, mode="drop")}, {}

    algorithm = Algorithm(
        server_init=lambda key: {"seen": jnp.zeros(N), "last": jnp.zeros(N)},
        client_update=client_update,
        server_update=server_update,
        collect={"id": aggregators.stack},
        predict={"personal": lambda sent, client, x: {"logits": jnp.tile(client["rounds"], (len(x), task.classes))}},
        client_init=lambda key, server, i: {"rounds": jnp.zeros(()), "sent": -jnp.ones(()), "draw": jnp.zeros(())},
        broadcast=lambda server, i: {"mine": i.astype(jnp.float32) * 10 + server["seen"][i]},
    )
    return algorithm._replace(**changes)


def two_groups(build, first=(0, 1, 2, 5), second=(3, 4, 6, 7)):
    return [Group(name, build, toy.task(), np.array(ids)) for name, ids in (("ones", first), ("others", second))]


def of_client(sim, state, i):
    """Client i's state."""
    for group, rows in zip(sim.spec.bound_groups, state.clients, strict=True):
        if i in group.clients:
            return jax.tree.map(lambda x, group=group: np.asarray(x)[list(group.clients).index(i)], rows)
    raise AssertionError
