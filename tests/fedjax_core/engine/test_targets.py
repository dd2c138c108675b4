"""Targets other than classes: which methods train on them, what is scored of them, and one case against a naive loop."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import PER_ROW, TARGETS, Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.data.hold_out import hold_out_clients, hold_out_validation
from fedjax_core.engine import client_loop, dispatch, evaluation
from fedjax_core.engine.simulator import Evaluation, Simulator, build_spec, one_group
from fedjax_core.nn import build
from fedjax_core.task import make_task
from fedjax_core.training import local_training, metrics
from methods.fedavg import fedavg
from tests import toy

ANY = """
    afl apfl centralized cfl dfedavg ditto fedala fedamp fedavg fedavg_ft fedbabu fedbn fedacg fedcac fedcm feddc feddyn
    fedex_lora fedexp fedfomo fedit fedlora fednova fedopt fedper fedprox fedrep fedsa_lora fedsam fedspeed ffa_lora flexlora
    flora hetlora hierfavg ifca lg_fedavg local mime_lite per_fedavg qfedavg scaffold
"""
ROWS = "dbe fedavg_linear fedcp fedsdr moon perada pfedgate pfedpg pfedpt"


@functools.cache
def data(kind: str) -> federated_data.FederatedData:
    """The small federation with other targets."""
    plain, rng = toy.data(), np.random.default_rng(3)

    def targets(y):
        hot = np.eye(toy.CLASSES)[y]
        if kind == "labels":
            return (hot + np.roll(hot, 1, 1) > 0).astype(bool)
        return (hot + rng.normal(size=hot.shape) * 0.1).astype(np.float32)

    both = [Examples(part.x, targets(part.y)) for part in (plain.train, plain.test)]
    dataset = sources.Dataset("toy", *both, plain.class_names)
    return federated_data.from_index(dataset, plain.train_index, plain.test_index)


def declared(name: str) -> tuple[str, ...]:
    case = toy.CASES[name]
    return case.method(case.task(), optimizer=local_training.sgd(0.1)).targets


def test_methods_declare_what_they_train_on():
    said = {name: declared(name) for name in toy.CASES}
    for name, targets in said.items():
        function = inspect.unwrap(toy.CASES[name].method.func).__name__
        wanted = tuple(TARGETS) if function in ANY.split() else PER_ROW if function in ROWS.split() else ("classes",)
        if function not in ("pfedme", "perada"):  # theirs depend on options
            assert targets == wanted, name
    assert {inspect.unwrap(toy.CASES[name].method.func).__name__ for name in said} >= {*ANY.split(), *ROWS.split()}


@pytest.mark.parametrize("name", list(toy.CASES))
def test_a_method_trains_on_numbers_or_is_refused_by_name(name):
    """That it traces is what the constructor sees to."""
    case = toy.CASES[name]
    if case.mixed:
        return  # one network is enough
    if "numbers" in declared(name):
        assert case.simulate(data=data("numbers")).spec.targets == "numbers"
        return
    with pytest.raises(ValueError, match=rf"^{case.method.func.__name__} needs classes, the data have numbers: real numbers"):
        case.simulate(data=data("numbers"))


def simulated(kind, method=None, data_=None, **settings):
    build_ = method or functools.partial(fedavg, optimizer=local_training.sgd(0.1), epochs=2, batch=4)
    of = data(kind) if data_ is None else data_
    task = make_task(toy.model(), classes=toy.CLASSES, population=of.clients, shape=(toy.INPUTS,))
    return Simulator(build_spec(one_group(build_, task, of.clients), of, **settings))


def test_clients_are_scored_in_blocks_where_labels_make_much_of_each(monkeypatch):
    sim = simulated("labels", evaluation=Evaluation(("own",)), plan=client_loop.Plan(1, 1))
    state, sizes, program = sim.init(0), [], sim.compiled.programs.score_clients[0]
    whole = sim.client_scores(state)

    def spied(held, state, initial, ids, *rest):
        sizes.append(len(ids))
        return program(held, state, initial, ids, *rest)

    sim.compiled = dataclasses.replace(sim.compiled, programs=sim.compiled.programs._replace(score_clients=[spied]))
    monkeypatch.setattr(evaluation, "INTERVAL_SECONDS", float("inf"))
    monkeypatch.setattr(dispatch, "BLOCK_BYTES", 6 * 3 * 2 * metrics.LOGIT_BINS * 4 * toy.CLASSES)  # a predictor, three scopes
    jax.tree.map(np.testing.assert_array_equal, sim.client_scores(state), whole)
    assert sizes == [6] * -(-sim.spec.population // 6)


def test_clients_are_scored_in_blocks_where_their_states_are_large(monkeypatch):
    """Never are all of them on the devices a second time."""
    sim = toy.simulate("fedper", mixed=False, evaluation=Evaluation(("own",)))
    state, read, sizes = sim.init(0), sim.compiled.states.read, []
    state, _ = sim.run_rounds(state, 2)
    whole, (block,) = sim.client_scores(state), evaluation.client_blocks(sim.compiled, 0)
    assert len(block) == sim.spec.population

    def spied(state, g, ids):
        sizes.append(len(ids))
        return read(state, g, ids)

    monkeypatch.setattr(sim.compiled.states, "read", spied)
    for number in (3, 0.5):
        state_bytes = number * metrics.nbytes(sim.spec.shapes.groups[0].client)
        sums_bytes = number * evaluation.sums_bytes(sim.spec, 0)
        monkeypatch.setattr(dispatch, "BLOCK_BYTES", int(state_bytes + sums_bytes))
        jax.tree.map(np.testing.assert_array_equal, sim.client_scores(state), whole)
    assert sizes == [3] * 3 + [1] * 8
    assert state_bytes > sums_bytes


def test_fedavg_on_numbers_is_a_naive_loop():
    """Full batches, one epoch, all clients: w - sum_k n_k / n lr grad MSE_k, by hand."""
    method = functools.partial(fedavg, optimizer=local_training.sgd(0.1), epochs=1, batch=16)
    of = data("numbers")
    task = make_task(toy.model(statistics=False), classes=toy.CLASSES, population=8, shape=(toy.INPUTS,))
    sim = Simulator(build_spec(one_group(method, task, 8), of, evaluation=Evaluation(("global",))))
    state = sim.init(0)
    w = {name: {k: np.asarray(v, np.float64) for k, v in entry.items()} for name, entry in state.server.net.params.items()}
    for _ in range(2):
        sums = jax.tree.map(np.zeros_like, w)
        for rows in of.train_index:
            x, y = of.train.x[rows].astype(np.float64), of.train.y[rows].astype(np.float64)
            z = np.tanh(x @ w["body"]["kernel"] + w["body"]["bias"])
            error = 2 * (z @ w["head"]["kernel"] + w["head"]["bias"] - y) / y.size
            back = (error @ w["head"]["kernel"].T) * (1 - z**2)
            gradient = {
                "head": {"kernel": z.T @ error, "bias": error.sum(0)},
                "body": {"kernel": x.T @ back, "bias": back.sum(0)},
            }
            number = len(rows)
            sums = jax.tree.map(lambda s, g, n=number: s + n * g, sums, gradient)
        w = jax.tree.map(lambda v, s: v - 0.1 * s / sum(map(len, of.train_index)), w, sums)
    state, _ = sim.run_rounds(state, 2)
    for name, entry in w.items():
        for leaf, value in entry.items():
            np.testing.assert_allclose(state.server.net.params[name][leaf], value, atol=2e-6)
    f = np.tanh(of.test.x @ w["body"]["kernel"] + w["body"]["bias"]) @ w["head"]["kernel"] + w["head"]["bias"]
    assert sim.evaluate(state).metrics["test/global/mean_squared_error"] == pytest.approx(((f - of.test.y) ** 2).mean(), rel=1e-4)


def test_all_scopes_have_the_scores_of_labels():
    of = hold_out_clients(data("labels"), 2, 0)
    sim = simulated("labels", data_=of, evaluation=Evaluation(("global", "own", "post_local", "all")))
    state, records = sim.run_rounds(sim.init(0), 1, scored=True)
    scores, by_client = sim.evaluate(state)
    assert "train/accuracy" not in records[0]
    assert "test/global/post_local/average_precision/mean" in records[0]
    for name in ("global/average_precision", "global/micro_average_precision", "global/own/average_precision/mean"):
        assert 0 < scores[f"test/{name}"] <= 1
    assert "test/global/unseen/average_precision/mean" in scores
    assert "test/global/gap/average_precision" in scores
    assert by_client is not None
    assert by_client.scores["test/global/own/average_precision"].shape == (8,)  # six and two unseen


def test_labels_that_stream_have_the_same_scores():
    made = [simulated("labels", data_on=place, evaluation=Evaluation(batch=8)) for place in ("device", "host")]
    here, streamed = (sim.evaluate(sim.init(0)).metrics for sim in made)
    assert here == pytest.approx(streamed, abs=1e-6)
    assert 0 < here["test/global/average_precision"] <= 1


def test_validation_rows_are_scored_and_can_be_selected_by():
    of = federated_data.from_index(
        sources.Dataset("toy", data("numbers").train, data("numbers").test, tuple("abc")), [np.arange(20), np.arange(20, 42)]
    )
    sim = simulated("numbers", data_=hold_out_validation(of, 0.25, 0))
    scores = sim.evaluate(sim.init(0)).metrics
    assert {
        name
        for name in evaluation.list_validation_scores(sim.spec)
        if name.startswith("validation/global/") and name.count("/") == 2
    } == {
        "validation/global/r2",
        "validation/global/mean_squared_error",
        "validation/global/loss",
    }
    assert set(evaluation.list_validation_scores(sim.spec)) <= set(scores)


@pytest.mark.parametrize("name", ["lstm(embedding=4, width=5, project=3)", "causal(width=8, layers=1, heads=2, hidden=8)"])
def test_next_tokens_are_learnt(name):
    """A text that repeats four letters is told nearly always; rows may be of any length."""
    from fedjax_core import registry

    place, options = registry.parse_spec(name)
    text = np.tile(np.arange(4), 60)[: 24 * 9].reshape(24, 9)
    text[::5, 6:] = -1
    dataset = sources.from_arrays(text, None, text[:4], None, tuple("abcd"), targets="tokens")
    of = federated_data.federate(dataset, {"name": "iid"}, 2, 0)
    model = build(place, 4, (8,), None, None, **options)
    method = functools.partial(fedavg, optimizer=local_training.adam(0.03), epochs=5, batch=4)
    sim = Simulator(build_spec(one_group(method, make_task(model, classes=4, population=2, shape=(8,)), 2), of))
    state, records = sim.run_rounds(sim.init(0), 6)
    scores = sim.evaluate(state).metrics
    assert scores["test/global/accuracy"] > 0.9
    assert scores["test/global/perplexity"] == pytest.approx(np.exp(scores["test/global/loss"]), rel=1e-5)
    assert records[-1]["train/loss"] < records[0]["train/loss"]


def test_a_later_token_changes_nothing_before_it():
    for name, options in (("lstm", {"width": 5}), ("causal", {"width": 8, "layers": 2, "heads": 2, "hidden": 8})):
        model = build(name, 7, (6,), None, None, **options)
        net = model.init(jax.random.key(0))
        x = jnp.array([[1, 2, 3, 4, 5, 6]])
        a, b = (model.apply(net, tokens)[0]["logits"] for tokens in (x, x.at[0, 4].set(0)))
        np.testing.assert_array_equal(a[:, :4], b[:, :4])
        assert np.abs(np.asarray(a[:, 4:] - b[:, 4:])).max() > 1e-6


def test_a_network_that_gives_something_else_is_refused():
    text = np.tile(np.arange(4), 5).reshape(4, 5)
    dataset = sources.from_arrays(text, None, text, None, targets="tokens")
    of = federated_data.federate(dataset, {"name": "iid"}, 2, 0)
    task = make_task(build("mlp", 4, (4,), widths=(3,)), classes=4, population=2)
    with pytest.raises(ValueError, match=r"network 'mlp' gives \[4\] for a row, tokens need \[4, 4\]; 'lstm' and 'causal'"):
        Simulator(build_spec(one_group(functools.partial(fedavg, optimizer=local_training.sgd(0.1)), task, 2), of))
    with pytest.raises(ValueError, match="model 'lstm' reads token ids"):
        build("lstm", 4, (8, 8, 1))


@pytest.mark.parametrize("name", ["lstm", "causal"])
def test_a_network_of_next_tokens_is_refused_for_classes(name):
    text = np.tile(np.arange(3, dtype=np.int32), (4, 2))
    of = federated_data.federate(sources.from_arrays(text, [0, 1, 2, 0], text, [0, 1, 2, 0]), {"name": "iid"}, 2, 0)
    task = make_task(build(name, 3, (6,), None, None), classes=3, population=2)
    with pytest.raises(
        ValueError, match=rf"network '{name}' gives \[6, 3\] for a row, the next token of each place; classes need \[3\]"
    ):
        Simulator(build_spec(one_group(functools.partial(fedavg, optimizer=local_training.sgd(0.1)), task, 2), of))
