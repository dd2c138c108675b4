"""Clients that never train: what they are scored with, that nothing of them is learnt, which methods cannot serve them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import heterofl
from fedjax_core import experiment
from fedjax_core.algorithm import Examples
from fedjax_core.data import hold_out as data_unseen
from fedjax_core.engine import client_loop, evaluation, unseen_clients
from fedjax_core.engine.simulation_spec import with_peer_groups
from fedjax_core.engine.simulator import Evaluation, Simulator, build_spec, one_group
from fedjax_core.reporting.summary import format_summary, summarize_records
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from fedjax_core.uplink import attacks
from methods.centralized import centralized
from methods.ditto import ditto
from methods.fedavg import fedavg
from methods.fedavg_ft import fedavg_ft
from methods.fedper import fedper
from tests import toy

RATE, NUMBER = 0.3, 3
SERVED_BY_NOTHING = {
    "local",
    "fedamp",
    "fedcac",
    "cfl",
    "fedfomo",
    "fedpac",
    "pfedpg",
    "fedhe",
    "fedhe_mixed",
    "fedmd",
    "fedproto",
    "fedtgp",
    "fedgh",
    "fedgen",
}


@functools.cache
def data():
    return data_unseen.hold_out_clients(toy.data(), NUMBER, 0)


def unseen():
    found = data().unseen
    assert found is not None
    return found


@functools.cache
def beside():
    """All eight clients as they were, and copies of some that never train."""
    return dataclasses.replace(toy.data(), unseen=data().unseen)


def simulate(method, **settings):
    """Minibatches are whole clients, so that a loop need not know how they are drawn."""
    task = dataclasses.replace(toy.task(statistics=False), population=data().clients)
    build = functools.partial(method, optimizer=local_training.sgd(RATE), batch=64)
    return Simulator(
        build_spec(
            one_group(build, task, data().clients), data(), cohort=4, plan=client_loop.Plan(1, 1), rounds_per_dispatch=2, **settings
        )
    )


def stepped(net, rows, rate, trained=lambda params: params):
    """Two steps of gradient descent on a client's rows, of the entries that are `trained`."""
    x, y = data().train.x[rows], data().train.y[rows]

    def risk(params):
        logits = toy.model(statistics=False).apply(net._replace(params=params), x)[0]["logits"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    params = net.params
    for _ in range(2):
        gradient = trained(jax.grad(risk)(params))
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
    return net._replace(params=params)


def accuracies(nets):
    """Of a network for each unseen client, on its own test rows."""
    found = []
    for net, rows in zip(nets, unseen().test_index, strict=True):
        logits = toy.model(statistics=False).apply(net, data().test.x[rows])[0]["logits"]
        found.append(np.mean(np.argmax(logits, 1) == data().test.y[rows]))
    return found


def statistics(found, model):
    return [found[f"test/{model}/unseen/accuracy/{name}"] for name in ("mean", "lowest", "highest")]


def wanted(each):
    return [np.mean(each), np.min(each), np.max(each)]


def test_scores_of_fedavg_and_of_its_fine_tuning_are_those_of_a_loop():
    sim = simulate(functools.partial(fedavg_ft, epochs=2, finetune_epochs=2, finetune_rate=0.5))
    state, _ = sim.run_rounds(sim.init(0), 2)
    w = jax.device_get(state.server.net)
    found, each = sim.evaluate(state)
    assert each is not None
    assert set(evaluation.list_test_scores(sim.spec)) == {name for name in found if name.startswith("test/")}
    np.testing.assert_allclose(statistics(found, "global"), wanted(accuracies([w] * NUMBER)), atol=1e-6)
    tuned = [stepped(w, rows, 0.5 * RATE) for rows in unseen().train_index]
    np.testing.assert_allclose(statistics(found, "personal"), wanted(accuracies(tuned)), atol=1e-6)
    assert accuracies(tuned) != accuracies([w] * NUMBER)
    assert each.ids.tolist() == list(range(sim.spec.population + NUMBER)), "unseen clients follow the population"
    assert each.rows[-NUMBER:].tolist() == [len(rows) for rows in unseen().test_index]
    np.testing.assert_allclose(each.scores["test/personal/unseen/accuracy"][-NUMBER:], accuracies(tuned), atol=1e-6)
    for scope, others in (("unseen", slice(sim.spec.population)), ("own", slice(sim.spec.population, None))):
        assert np.isnan(each.scores[f"test/global/{scope}/accuracy"][others]).all()
    for model in ("global", "personal"):
        gap = found[f"test/{model}/own/accuracy/mean"] - found[f"test/{model}/unseen/accuracy/mean"]
        assert found[f"test/{model}/gap/accuracy"] == pytest.approx(gap)

    summary = summarize_records([{"round": 2} | found])
    assert "best" not in summary["metrics"]["test/global/gap/accuracy"]
    (row,) = [line for line in format_summary(summary).splitlines() if line.startswith("test/global/gap/accuracy")]
    assert row.split()[-1] == "points"

    # other rows of theirs: their fine-tuned models are others, and nothing else is
    rows = np.concatenate(unseen().train_index)
    x, y = data().train.x.copy(), data().train.y.copy()
    x[rows], y[rows] = -x[rows], (y[rows] + 1) % toy.CLASSES
    sim.compiled.feed._on_device = sim.compiled.put(sim.spec.host_arrays._replace(train=Examples(x, y)))
    other, _ = sim.run_rounds(sim.init(0), 2)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(other), jax.device_get(state))
    changed = sim.evaluate(other).metrics
    assert {name for name in found if found[name] != changed[name]} <= {
        n for n in found if n.startswith("test/personal/unseen/")
    } | {"test/personal/gap/accuracy"}
    assert found["test/personal/unseen/loss/mean"] != changed["test/personal/unseen/loss/mean"]


def test_scores_of_fedper_are_those_of_a_loop():
    """An unseen client's head begins as everybody's, is trained with the body, and predicts over the body that was sent."""
    sim = simulate(functools.partial(fedper, epochs=2), evaluation=Evaluation(updates=2))
    begun = sim.init(0)
    head = jax.tree.map(lambda leaf: np.asarray(leaf[0]), begun.clients[0]).params["head"]
    state, _ = sim.run_rounds(begun, 2)
    body = jax.device_get(state.server)
    nets = []
    for rows in unseen().train_index:
        net = body._replace(params=body.params | {"head": head})
        for _ in range(2):
            net = body._replace(params=body.params | {"head": stepped(net, rows, RATE).params["head"]})
        nets.append(net)
    np.testing.assert_allclose(statistics(sim.evaluate(state).metrics, "personal"), wanted(accuracies(nets)), atol=1e-6)


def test_an_unseen_client_is_no_attacker_whoever_of_the_population_is():
    """An update of an attacker that sends NaN is left out, and would leave its head as it began."""
    found = []
    for who in (0, 1):
        transforms = [attacks.make_attack("not_finite", attacks.not_finite(), [who])]
        sim = simulate(functools.partial(fedper, epochs=1), transforms=transforms, leave_out=True)
        found.append(evaluation.score_unseen(sim.compiled, sim.init(0)))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_without_scores_of_seen_clients_there_is_no_gap_and_no_name_of_one():
    sim = simulate(functools.partial(fedavg, epochs=1), evaluation=Evaluation(("global", "unseen")))
    names = set(sim.evaluate(sim.init(0)).metrics)
    assert set(evaluation.list_test_scores(sim.spec)) == names
    assert "test/global/unseen/accuracy/mean" in names
    assert not [name for name in names if "gap" in name]


def test_a_pooled_method_has_no_gap():
    """Its own score is the mean over seen clients by their test examples, as FedAvg's is for the same network."""
    found, names = {}, {}
    for method in (fedavg, centralized):
        sim = simulate(functools.partial(method, epochs=1))
        found[method.__name__] = sim.evaluate(sim.init(0)).metrics
        names[method.__name__] = {name for name in found[method.__name__] if name.startswith("test/")}
        assert set(evaluation.list_test_scores(sim.spec)) == names[method.__name__]
    assert names["fedavg"] - names["centralized"] == {"test/global/gap/accuracy"}
    for score in ("own/accuracy/weighted", "unseen/accuracy/mean", "accuracy"):
        assert found["centralized"][f"test/global/{score}"] == pytest.approx(found["fedavg"][f"test/global/{score}"], abs=1e-6)


def test_two_architectures_on_two_devices_with_states_on_the_host_agree_with_one_after_another():
    """Of three unseen clients the first and the last have the first network."""
    found = []
    for settings in ({}, {"plan": (2, 2), "hold": "host"}):
        sim = toy.simulate("fedhpl_mixed", data=beside(), **settings)
        found.append(evaluation.score_unseen(sim.compiled, sim.init(0)))
        assert [unseen_clients.unseen_members(sim.spec, g, NUMBER).tolist() for g in (0, 1)] == [[0, 2], [1]]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found)
    assert found[0]["personal"]["accuracy"][1].tolist() == [len(rows) for rows in unseen().test_index]


def test_unseen_clients_have_networks_in_the_order_of_models_like_all_others():
    """A network that is named twice has twice as many of them, as it has of the population."""
    made = heterofl.get_config("smoke")
    wide, narrow = "mlp(widths=(8,))", "mlp(widths=(4,))"
    made.models, made.plan.devices = (narrow, wide, narrow, narrow), 1
    made.data.update(examples=200, clients=16, partition="iid", unseen_clients=7)
    spec = experiment.build(made).spec
    assert [np.asarray(group.clients).tolist() for group in spec.groups] == [[0, 2, 3, 4, 6, 7, 8], [1, 5]]
    assert [unseen_clients.unseen_members(spec, g, 7).tolist() for g in (0, 1)] == [[0, 2, 3, 4, 6], [1, 5]]


@pytest.mark.parametrize("name", toy.METHODS)
def test_every_method_has_models_for_an_unseen_client_or_says_why_not(name):
    """Programs are traced only."""
    case, refused = toy.CASES[name], name in SERVED_BY_NOTHING
    build = functools.partial(case.method, optimizer=local_training.sgd(0.1))
    reason = unseen_clients.find_skip_reason(with_peer_groups(toy.groups(build, case.mixed, task=case.task)))
    assert bool(reason) == refused
    if refused:
        with pytest.raises(ValueError, match=r"evaluation.scopes has 'unseen', but (Local |CFL |\w*Fed\w+)"):
            unseen_clients.add_unseen_scope(Evaluation(("own", "unseen")), reason, True)
        return
    sim = toy.simulate(name, data=beside(), evaluation=Evaluation(("global",)))
    assert "unseen" in sim.spec.evaluation.scopes
    traced(sim)


def traced(sim):
    state = jax.eval_shape(sim.compiled.programs.init_state, sim.spec.host_arrays, jax.random.key_data(jax.random.key(0)))
    of = jax.ShapeDtypeStruct((sim.spec.plan.chunk * sim.spec.plan.devices,), jnp.int32)
    for program in sim.compiled.programs.score_unseen:
        found = jax.eval_shape(program, sim.spec.host_arrays, state.server, state.round, state.key, of, (state.round, state.round))
        assert found
        assert all({"accuracy", "loss"} <= set(scores) for scores in found.values())


def test_statistics_that_stay_with_clients_are_a_unseen_client_s_own():
    build = with_local_statistics(functools.partial(fedavg, optimizer=local_training.sgd(RATE), batch=64))
    sim = Simulator(build_spec(one_group(build, toy.task(), toy.CLIENTS), beside(), plan=client_loop.Plan(1, 1)))
    state = sim.init(0)
    for place, rows in enumerate(unseen().train_index):
        held = sim.compiled.device_arrays
        algorithm = sim.spec.algorithm(0, held, state.round)
        client = unseen_clients.ClientData(held.train, held.unseen_index[place], held.unseen_size[place])
        _, (_, (_, stats)) = unseen_clients.make_unseen_holdings(
            sim.spec, 0, algorithm, state.server, state.key, state.round, jnp.int32(place), client
        )
        np.testing.assert_allclose(stats["mean"], 0.1 * data().train.x[rows].mean(0), atol=1e-6)


def test_what_an_unseen_client_begins_with_has_its_own_statistics_too():
    build = with_local_statistics(functools.partial(ditto, optimizer=local_training.sgd(RATE), batch=64))
    traced(Simulator(build_spec(one_group(build, toy.task(), toy.CLIENTS), beside(), plan=client_loop.Plan(1, 1))))


def test_without_unseen_clients_all_is_as_it_was():
    sim = toy.reference("fedavg")[0]
    arrays = sim.spec.host_arrays
    assert (arrays.unseen_index, arrays.unseen_size, arrays.unseen_test_index, arrays.unseen_test_size) == ((), (), (), ())
    assert sim.spec.evaluation == Evaluation()
    assert not sim.spec.unseen_skip_reason
    with pytest.raises(ValueError, match=r"no client is unseen; set data.unseen_clients, such as 0.2"):
        toy.simulate("fedavg", evaluation=Evaluation(("unseen",)))
