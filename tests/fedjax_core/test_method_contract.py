"""A method that sends weights in place of differences is refused, or found by the contract."""

import functools

import jax.numpy as jnp
import optax
import pytest

from fedjax_core.testing import Case, method_contract
from methods.fedavg import fedavg
from tests import toy


def sends_weights(task, *, keeps_if_empty=False, **options):
    """FedAvg in which clients send their networks, and the server takes their mean."""
    inner = fedavg(task, **options)

    def client_update(sent, client, data, key):
        out = inner.client_update(sent, client, data, key)
        return out._replace(uplink=optax.tree.add(out.uplink, sent))

    def server_update(server, mean, cohort, key):
        net = optax.tree.where(jnp.any(cohort.examples > 0), mean, server.net) if keeps_if_empty else mean
        return server._replace(net=net), {}

    return inner._replace(client_update=client_update, server_update=server_update)


def test_a_server_that_takes_weights_for_differences_is_refused():
    with pytest.raises(ValueError, match=r"^sends_weights: server_update takes the mean of the uplinks .*; send optax.tree.sub"):
        Case(functools.partial(sends_weights, batch=toy.BATCH)).simulate()


@pytest.mark.parametrize("changes_collect", [False, True])
def test_the_contract_finds_weights_in_place_of_differences(changes_collect):
    """Holds for a server that keeps its network in an empty round, and for one that says that it receives no differences."""

    def method(task, **options):
        made = sends_weights(task, keeps_if_empty=not changes_collect, **options)
        return made._replace(collect=made.collect._replace(payload="")) if changes_collect else made

    what = "a round without clients" if changes_collect else "differences of 0"
    with pytest.raises(AssertionError, match=f"{what} changed a network of the server"):
        method_contract.check_no_difference_keeps_the_models(Case(functools.partial(method, batch=toy.BATCH)))


def test_a_boolean_in_a_clients_state_keeps_the_contract():
    def method(task, **options):
        inner = fedavg(task, **options)

        def client_update(sent, has_trained, data, key):
            return inner.client_update(sent, (), data, key)._replace(state=jnp.ones_like(has_trained), local=None)

        return inner._replace(client_update=client_update, client_init=lambda key, server, client: jnp.zeros((), bool))

    method_contract.check_absent_client_changes_nothing(Case(functools.partial(method, batch=toy.BATCH)))
