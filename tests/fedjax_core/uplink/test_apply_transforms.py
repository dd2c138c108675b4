"""Uplinks that pass transforms: what changes nothing, who is left out, who is refused."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_core.algorithm import Algorithm, ClientData, ClientOutput, Cohort, Net
from fedjax_core.engine import divergence
from fedjax_core.training import aggregators
from fedjax_core.uplink import (
    TransformOutput,
    UplinkTransform,
    VectorReduce,
    compression,
    dp_mechanisms,
    order_transforms,
    robust_aggregation,
    unwrap,
    wrap_method,
)
from fedjax_core.uplink.layout import clamp_variances
from tests import toy

SAME = UplinkTransform("attack", "same", send=lambda value, context, client_state: TransformOutput(value))
STREAMED = UplinkTransform("rule", "streamed", reduce=VectorReduce())
VOTES = compression.parse_compressor("sign(majority=True)")
CRAFTED = UplinkTransform("attack", "crafted", attack_stack=lambda rows, mask, ids, key: rows)


def _stacked(combined, memory, key):
    rows, weights = combined
    return weights @ rows / jnp.maximum(jnp.sum(weights), 1e-30), memory, {"stacked": (jnp.sum(weights > 0), 1)}


STACKED = UplinkTransform("rule", "stacked", reduce=VectorReduce(lambda row, weight, context: (row, weight), "stack", _stacked))


def round_of(name, transforms=(), **settings):
    """(the method's server state, record, simulation) after one round."""
    sim = toy.simulate(name, transforms=transforms, **settings)
    state, (record,) = sim.run_rounds(sim.init(0), 1)
    return unwrap(jax.device_get(state.server)), record, sim


@pytest.mark.parametrize(
    ("name", "transforms"),  # of two deltas; of a delta and class means
    [("scaffold", [SAME, CRAFTED, STACKED]), ("fednh", [CRAFTED, STREAMED])],
)
def test_transforms_that_change_nothing_leave_rounds_as_they_were(name, transforms):
    plain, _, expected = toy.reference(name)
    sim = toy.simulate(name, transforms=transforms, leave_out=True)
    state, (*_, record) = sim.run_rounds(sim.init(0), 2)
    chex.assert_trees_all_close(unwrap(jax.device_get(state.server)), expected.server, atol=1e-6, rtol=1e-5)
    assert record["server/left_out"] == 0
    assert record.get("server/stacked", 5) == 5
    assert (sim.spec.shapes.down, sim.spec.shapes.up) == (plain.spec.shapes.down, plain.spec.shapes.up), (
        "what wraps a method is not sent"
    )


def sends(what, who=3):
    """A transform by which one client sends `what` in every place."""
    at = lambda context: jnp.where(context.id == who, what, 0.0)
    return UplinkTransform(
        "attack", "one", send=lambda value, context, client_state: TransformOutput(jax.tree.map(lambda x: x + at(context), value))
    )


def mean_of_others(gone):
    """A rule that gives one client no weight."""
    weigh = lambda w, context: jnp.where(context.id == gone, 0, w)
    add = lambda row, w, context: (weigh(w, context) * row, weigh(w, context))
    return UplinkTransform("rule", "of the others", reduce=VectorReduce(add))


def test_who_sends_what_is_not_finite_is_left_out_and_counted():
    gone = cohort("fedavg")[0]
    found, record, _ = round_of("fedavg", [sends(jnp.nan, gone), STREAMED], leave_out=True)
    assert (record["server/left_out"], record["cohort"]) == (1, 5)
    expected, _, _ = round_of("fedavg", [mean_of_others(gone)])
    chex.assert_trees_all_close(found, expected, atol=1e-6)


def test_the_methods_server_does_not_count_who_is_left_out():
    """SCAFFOLD's control variate moves by the share of clients that count, here four of the five of the cohort."""
    gone = cohort("scaffold")[0]
    found, record, _ = round_of("scaffold", [sends(jnp.nan, gone), STREAMED], leave_out=True)
    assert (record["server/left_out"], record["cohort"]) == (1, 5)
    expected, _, _ = round_of("scaffold", [mean_of_others(gone)])
    chex.assert_trees_all_close(found.net, expected.net, atol=1e-6)
    chex.assert_trees_all_close(found.c, jax.tree.map(lambda c: 4 / 5 * c, expected.c), atol=1e-6)


@pytest.mark.parametrize(
    "transforms",
    [
        [],
        [compression.parse_compressor("sign(majority=True)")],
        [dp_mechanisms.adaptive(1.0, 1.0, 5, 5)],
    ],
    ids=lambda transforms: transforms[0].name if transforms else "none",
)
def test_without_leaving_out_the_run_ends_and_says_who(transforms):
    """Also where a vote or a clip makes a number of what is not finite."""
    gone = cohort("fedavg")[0]
    with pytest.raises(divergence.Diverged, match=f"uplink of client {gone} is not finite"):
        round_of("fedavg_uniform", [sends(jnp.inf, gone), *transforms], statistics=False)


def test_whose_vote_has_no_number_is_left_out():
    gone = cohort("fedavg")[0]
    found, record, _ = round_of("fedavg", [sends(jnp.nan, gone), VOTES], leave_out=True)
    assert record["server/left_out"] == 1
    without = lambda row, weight, context: VOTES.reduce.map(row, jnp.where(context.id == gone, 0, weight), context)
    expected, _, _ = round_of("fedavg", [SAME, VOTES._replace(reduce=VOTES.reduce._replace(map=without))])
    chex.assert_trees_all_equal(found, expected)


def test_a_transform_keeps_something_with_clients_and_at_the_server():
    def send(value, context, client_state):
        return TransformOutput(value, client_state + 1, {"before": (client_state, jnp.float32(1))}, jnp.zeros(3, jnp.uint8))

    def finalize(combined, memory, key):
        total, weight = combined
        return total / weight, memory + 1, {"memory": (memory, 1)}

    transforms = [
        UplinkTransform("compression", "counted", send=send, init_client_state=lambda shapes: jnp.float32(0)),
        UplinkTransform("rule", "counted", reduce=VectorReduce(finalize=finalize), init_memory=lambda shapes: jnp.float32(0)),
    ]
    sim = toy.simulate("fedavg", transforms=transforms, cohort=8)
    state, records = sim.run_rounds(sim.init(0), 3)
    assert [r["server/before"] for r in records] == [r["server/memory"] for r in records] == [0, 1, 2]
    assert sim.spec.shapes.up == 3
    held = sim.client_view(state, 0).holds["global"]
    np.testing.assert_array_equal(held[0].params["head"]["bias"], unwrap(state.server).net.params["head"]["bias"])
    assert sim.evaluate(state).metrics["test/global/accuracy"] > 0.3


def one_part(collect, made):
    """A method whose clients send `made`, and whose server is what it gets."""
    return Algorithm(
        server_init=lambda key: jnp.zeros(0),
        client_update=lambda sent, client, data, key: ClientOutput(client, made, {}),
        server_update=lambda server, collected, cohort, key: (collected, {}),
        collect=collect,
        predict={},
    )


def updated(algorithm, sizes):
    """What the clients of a wrapped method send, all at once: client i has sizes[i] rows."""
    server = algorithm.server_init(jax.random.key(0))
    state = algorithm.client_init(jax.random.key(0), server, 0)

    def one(i, size):
        data = ClientData((), jnp.arange(3), size)
        return algorithm.client_update(algorithm.broadcast(server, i), state, data, jax.random.key(i)).uplink

    return server, jax.vmap(one)(jnp.arange(len(sizes)), jnp.array(sizes))


def test_rows_that_are_not_there_are_zeros():
    """Also where noise or what compression has left is added in place of an absent client's delta."""
    told = lambda value, context, client_state: TransformOutput(jax.tree.map(lambda x: x + 3.0, value))
    transforms = [UplinkTransform("local privacy", "noise", send=told), robust_aggregation.parse_rule("median")]
    made = wrap_method(one_part(aggregators.mean(), jnp.ones(2)), transforms, jax.ShapeDtypeStruct((2,), jnp.float32))
    rows, weights = updated(made, [5, 0])[1].deltas
    np.testing.assert_array_equal(rows, [[4, 4], [0, 0]])
    np.testing.assert_array_equal(weights, [5, 0])


def test_attackers_draw_anew_for_every_class():
    craft = lambda rows, mask, ids, key: rows + jax.random.normal(key)
    values = jnp.zeros((4, 1)), jnp.ones(4)
    made = wrap_method(
        one_part(aggregators.class_mean(), values),
        [UplinkTransform("attack", "noise", attack_stack=craft)],
        jax.eval_shape(lambda: values),
    )
    server, sent = updated(made, [5, 2])
    sent = sent._replace(class_weights=jax.tree.map(lambda x: jnp.sum(x, 0), sent.class_weights))
    after, _ = made.server_update(server, sent, Cohort(jnp.arange(2), jnp.array([5, 2])), jax.random.key(0))
    assert len(np.unique(after.inner[0])) == 4


def test_a_running_variance_is_not_below_zero_behind_transforms():
    """Of a server that takes what an attacker sends as its network; what else it holds stays as it is."""
    net = Net({"var": jnp.full(2, -1.0)}, {"norm": {"mean": jnp.full(2, -2.0), "var": jnp.full(2, -3.0)}})
    made = wrap_method(one_part(aggregators.mean(), net), [SAME], jax.eval_shape(lambda: net))
    server, sent = updated(made, [1])
    sent = sent._replace(uplink=jax.tree.map(lambda x: x[0], sent.uplink[0]))
    after, _ = made.server_update(server, sent, Cohort(jnp.arange(1), jnp.ones(1)), jax.random.key(0))
    expected = net._replace(stats={"norm": {"mean": net.stats["norm"]["mean"], "var": jnp.zeros(2)}})
    chex.assert_trees_all_equal(after.inner, expected)


def test_momentum_of_a_variance_may_be_below_zero_behind_transforms():
    momentum = optax.trace(0.9).init(Net({}, {"norm": {"var": jnp.zeros(2)}}))
    moved = jax.tree.map(lambda x: x - 1, momentum)
    chex.assert_trees_all_equal(clamp_variances((momentum, (moved,))), (momentum, (moved,)))


@pytest.mark.parametrize("name", ["afl", "fedamp", "fedskc"])
def test_what_changes_no_uplink_is_for_servers_that_read_clients_one_by_one(name):
    """The rule "mean" only leaves out who is not finite; what is sent may be compressed."""
    _, _, expected = toy.reference(name)
    sim = toy.simulate(name, transforms=[robust_aggregation.parse_rule("mean")], leave_out=True)
    state, (*_, record) = sim.run_rounds(sim.init(0), 2)
    chex.assert_trees_all_close(unwrap(jax.device_get(state.server)), expected.server, atol=1e-6, rtol=1e-5)
    assert record["server/left_out"] == 0
    _, record, compressed = round_of(name, [compression.compress_broadcast("bfloat16")])
    assert np.isfinite(record["train/loss"])
    assert compressed.spec.shapes.down < sim.spec.shapes.down


@functools.cache
def cohort(name):
    """Clients of the first round."""
    sim = toy.simulate(name)
    state = sim.init(0)
    return sorted(
        np.asarray(sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, state.key, state.round)[0][0].ids).tolist()
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedamp", "attack 'same' supports deltas and class means; the uplink of fedamp is neither"),
        ("dbe", r"part \[1\] of the uplink of dbe is neither: the method combines it in a way of its own"),
        ("fedskc", r"part \[0\] of the uplink of fedskc is neither: the method combines it in a way of its own"),
        *(
            (name, rf"attack 'same' changes .*; part \[1\] of the uplink of {name} is a number")
            for name in ("fednova", "qfedavg", "fedexp")
        ),
        ("local", "needs an uplink; clients of local send nothing"),
        ("centralized", "attack 'same': a pooled method has no clients that send something"),
    ],
)
def test_what_transforms_are_not_for_is_refused_by_name(name, says):
    with pytest.raises(ValueError, match=says):
        toy.simulate(name, transforms=[SAME])


def test_transforms_have_one_order_and_one_reduction():
    noise = UplinkTransform("privacy", "gaussian", reduce=VectorReduce())
    assert [transform.name for transform in order_transforms([STREAMED, SAME])] == ["same", "streamed"]
    with pytest.raises(ValueError, match="rule 'streamed' and privacy 'gaussian' each replace the mean of uplinks"):
        order_transforms([noise, STREAMED])


def test_a_round_in_which_nobody_counts_has_diverged():
    """Else its server would take steps of noise in every round to come."""
    everybody = UplinkTransform(
        "attack", "all", send=lambda value, context, client_state: TransformOutput(jax.tree.map(lambda x: x * jnp.nan, value))
    )
    with pytest.raises(divergence.Diverged, match=r"^round 1: all 5 clients of the cohort .* nobody is left"):
        round_of("fedavg_uniform", [everybody, dp_mechanisms.gaussian(1.0, 1.0, 5, 5)], statistics=False, leave_out=True)
