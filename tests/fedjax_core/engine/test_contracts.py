"""What a method returns in place of what it must is refused in one line, before anything is trained wrongly."""

import functools
from typing import Any

import jax.numpy as jnp
import pytest

from fedjax_core.algorithm import Reduce, builder_name
from fedjax_core.engine.simulator import Simulator, build_spec, one_group
from fedjax_core.testing import toy_federation
from fedjax_core.training import aggregators, local_training
from methods.fedavg import fedavg
from tests import toy


def simulate(change, task=None) -> Simulator:
    """FedAvg with functions replaced: `change` takes its Algorithm, and returns {field: in its place}."""

    def mine(task):
        inner = fedavg(task, optimizer=local_training.sgd(0.1))
        return inner._replace(**change(inner))

    return Simulator(build_spec(one_group(mine, task or toy.task(), toy.CLIENTS), toy.data()))


def after(function, change):
    """A function whose result is changed."""
    return lambda *arguments: change(function(*arguments))


def refused(error, message, change, task=None):
    with pytest.raises(error, match=message):
        simulate(change, task)


def test_a_builder_returns_an_algorithm():
    def mine(task) -> Any:
        fedavg(task, optimizer=local_training.sgd(0.1))

    with pytest.raises(TypeError, match=r"^mine must return a fedjax_core.algorithm.Algorithm, it returned None$"):
        Simulator(build_spec(one_group(functools.partial(mine), toy.task(), toy.CLIENTS), toy.data()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tuple, "client_update must return a fedjax_core.algorithm.ClientOutput, it returned a tuple"),
        (lambda out: out._replace(metrics=()), r"must be \{name: \(sum, weight\)\}, each of the two one number, not a tuple"),
        (lambda out: out._replace(metrics={"loss": jnp.zeros(())}), "each of the two one number; 'loss' is an array float32"),
        (lambda out: out._replace(metrics={"loss": (jnp.zeros(3), 1.0)}), r"'loss' has an array of shape \[3\]"),
        (lambda out: out._replace(metrics={"loss": ("much", 1.0)}), "'loss' has no number"),
    ],
)
def test_a_client_update_returns_a_client_output(change, message):
    refused(TypeError, message, lambda inner: {"client_update": after(inner.client_update, change)})


def test_each_part_of_the_uplink_has_its_reduce():
    refused(
        TypeError,
        "a Reduce for each part of the uplink, it has a str".replace("a Reduce", ".*Reduce"),
        lambda _: {"collect": "mean"},
    )
    for field, value in (("payload", "deltas"), ("combine", "sum")):
        message = rf"collect: Reduce.{field}='{value}' is not one of "
        refused(ValueError, message, lambda _, field=field, value=value: {"collect": aggregators.mean()._replace(**{field: value})})
    two = {"collect": (aggregators.mean(), Reduce())}
    refused(ValueError, r"collect must have the uplink's structure.* against ", lambda _: two)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda result: result[0], TypeError, r"server_update must return \(state, metrics\).*; it returned a "),
        (lambda result: tuple(jnp.zeros(2)), TypeError, "the metrics must be .*, not an array float32"),
        (lambda result: (*result, 0), TypeError, "it returned a tuple of 3"),
        (lambda result: None, TypeError, r"server_update must return \(state, metrics\).*; it returned None"),
        (lambda result: (result[0], {"norm": 1.0}), TypeError, "server_update: the metrics must be .*; 'norm' is a float"),
        (
            lambda result: ((result[0], 0), {}),
            ValueError,
            "server_update must return the server's state as server_init made it: at ",
        ),
    ],
)
def test_a_server_update_returns_the_state_as_it_was_made(change, error, message):
    sim = simulate(lambda inner: {"server_update": after(inner.server_update, change)})
    for number in (1, 3):
        with pytest.raises(error, match=message):
            sim.run_rounds(sim.init(0), number)


def test_a_server_update_may_say_nothing():
    sim = simulate(lambda inner: {"server_update": after(inner.server_update, lambda result: (result[0], None))})
    _, records = sim.run_rounds(sim.init(0), 2)
    assert not [name for name in records[0] if name.startswith("server/")]


def test_prepare_returns_the_clients_state():
    sim = simulate(lambda inner: {"prepare": lambda sent, client, data, key: jnp.zeros(2)})
    with pytest.raises(ValueError, match=r"prepare must return the client's state .*: at .*nothing against float32\[2\]"):
        sim.init(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: outputs["logits"], r'predict\[\'global\'\] must return \{"logits": \[B, K\], ...\}, it returned an array'),
        (lambda outputs: {"features": outputs["features"]}, "it returned only 'features'"),
    ],
)
def test_a_predictor_returns_logits(change, message):
    refused(TypeError, message, lambda inner: {"predict": {"global": after(inner.predict["global"], change)}})


def test_the_servers_model_reads_no_client():
    kept = {"client_init": lambda key, server, i: {"bias": jnp.zeros(())}}
    change = lambda outputs, client: outputs | {"logits": outputs["logits"] + client["bias"]}
    reads = lambda inner: {"global": lambda sent, client, x: change(inner.predict["global"](sent, client, x), client)}
    message = r"group .*: predict\['global'\] must not read `client`: .* another name \(TypeError: tuple indices"
    refused(ValueError, message, lambda inner: kept | {"predict": reads(inner)})
    simulate(lambda inner: kept | {"predict": {"personal": reads(inner)["global"]}})


@pytest.mark.parametrize(
    ("personalise", "error", "message"),
    [
        (
            lambda sent, client, data, key: sent.params,
            TypeError,
            r"personalise must return \(sent, client\), .*; it returned a dict",
        ),
        (lambda sent, client, data, key: (sent.params["head"], client), AttributeError, "no attribute 'stats'"),
    ],
)
def test_personalise_returns_a_pair_that_predictors_read(personalise, error, message):
    change = lambda inner: {"personalise": personalise, "predict": {"personal": lambda w, c, x: inner.predict["global"](w, c, x)}}
    refused(error, message, change)


def test_a_metric_does_not_take_the_place_of_the_number_of_examples():
    more = lambda out: out._replace(metrics=out.metrics | {"examples": (1.0, 1.0)})
    refused(ValueError, "a metric cannot be named 'examples'", lambda inner: {"client_update": after(inner.client_update, more)})


def test_a_metric_is_named_without_the_prefix_of_its_record():
    more = lambda out: out._replace(metrics=out.metrics | {"train/norm": (1.0, 1.0)})
    message = "client_update: metric 'train/norm' is recorded as 'train/train/norm'; name it 'norm'"
    refused(ValueError, message, lambda inner: {"client_update": after(inner.client_update, more)})
    more = lambda result: (result[0], {"server/norm": (1.0, 1.0)})
    sim = simulate(lambda inner: {"server_update": after(inner.server_update, more)})
    with pytest.raises(ValueError, match="server_update: metric 'server/norm' is recorded as 'server/server/norm'; name it 'norm'"):
        sim.run_rounds(sim.init(0), 1)


@pytest.mark.parametrize("outputs", [2, 7])
def test_a_network_has_one_output_for_each_class(outputs):
    wide = toy.task().wrap_model(lambda model: toy_federation.model(outputs=outputs))
    message = rf"gives logits of shape \[2, {outputs}\] for 2 examples, the data's {toy.CLASSES} classes need \[2, {toy.CLASSES}\]"
    refused(ValueError, message, lambda inner: {}, wide)


def test_the_method_is_named_through_what_wraps_it():
    assert builder_name(functools.partial(functools.partial(fedavg, epochs=2), batch=3)) == "fedavg"
    assert builder_name(3) == "the method"
