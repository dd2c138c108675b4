"""Scores that are no means, in every scope and under every plan; and what is refused before round 1."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from configs import fedavg as fedavg_config
from configs import fedavg_regression
from fedjax_core import experiment
from fedjax_core.data.hold_out import hold_out_clients, hold_out_validation
from fedjax_core.engine import check_own_scores, client_loop, evaluation
from fedjax_core.engine.simulator import Evaluation, Simulator, build_spec, one_group
from fedjax_core.task import make_task
from fedjax_core.training import local_training, losses
from fedjax_core.training.scores import AUROC, CalibrationError, MacroF1
from methods.fedavg import fedavg
from methods.fedper import fedper
from tests import toy


class FBeta:
    """F-beta of class 0: no mean, and written for one set of rows."""

    def __init__(self, beta: float = 1.0):
        self.beta = beta

    def __call__(self, outputs, x, y, mask):
        predicted = jnp.argmax(outputs["logits"], 1) == 0
        return {"hits": jnp.sum(mask & predicted & (y == 0)), "all": jnp.sum(mask & predicted), "are": jnp.sum(mask & (y == 0))}

    def finalize(self, sums):
        under = self.beta**2 * sums["are"] + sums["all"]
        return float((1 + self.beta**2) * sums["hits"] / under) if under else float("nan")


def certain(outputs, x, y, mask):
    """A mean, as all scores were."""
    sure = jnp.max(jax.nn.softmax(outputs["logits"]), 1) > 0.5
    return jnp.sum(jnp.where(mask, sure, 0), dtype=jnp.float32), jnp.sum(mask, dtype=jnp.float32)


SCORES = {"macro_f1": MacroF1(), "auroc": AUROC(64), "error": CalibrationError(), "f2": FBeta(2.0), "certain": certain}


def simulated(scores=SCORES, data=None, scopes=("global", "own", "post_local", "all"), batch=5, **settings) -> Simulator:
    of = toy.data() if data is None else data
    task = make_task(toy.model(), classes=toy.CLASSES, population=of.clients, shape=(toy.INPUTS,))
    task = dataclasses.replace(task, scores=scores)
    build = functools.partial(fedper, optimizer=local_training.sgd(0.1), epochs=1, batch=4)
    return Simulator(build_spec(one_group(build, task, of.clients), of, evaluation=Evaluation(scopes, batch=batch), **settings))


@functools.cache
def trained():
    """A simulation with unseen clients and validation rows, its state after a round, and what it is scored as."""
    sim = simulated(data=hold_out_validation(hold_out_clients(toy.data(), 2, 0), 0.25, 0), plan=client_loop.Plan(1, 1))
    state, records = sim.run_rounds(sim.init(0), 1, scored=True)
    return sim, state, records[0], *sim.evaluate(state)


def of_rows(logits, y) -> dict[str, float]:
    """The scores of rows, by scikit-learn; NaN where they are not defined."""
    if not len(y):
        return {"macro_f1": np.nan, "f2": np.nan}
    predicted, fold = logits.argmax(1), sklearn_metrics.fbeta_score
    hits = y == 0
    beta = fold(hits, predicted == 0, beta=2.0) if hits.any() or (predicted == 0).any() else np.nan
    return {"macro_f1": fold(y, predicted, beta=1.0, labels=np.unique(y), average="macro"), "f2": beta}


def test_clients_have_their_own_values_in_every_scope():
    sim, state, _, scores, by_client = trained()
    assert by_client is not None
    data = sim.spec.data
    places = {
        "test/personal/own": (data.test, data.test_index),
        "test/personal/all": (data.test, [np.arange(len(data.test.y))] * sim.spec.population),
        "validation/personal/own": (data.train, data.validation_index),
    }
    defined = 0
    for place, (examples, index) in places.items():
        values, sizes = {"macro_f1": [], "f2": []}, []
        for i in range(sim.spec.population):
            view, mine = sim.client_view(state, i), np.asarray(index[i])
            logits = np.asarray(view.predict("personal", view.holds["personal"], examples.x[mine])["logits"])
            for name, number in of_rows(logits, examples.y[mine]).items():
                values[name].append(number)
            sizes.append(len(mine))
        for name, wanted in values.items():
            np.testing.assert_allclose(by_client.scores[f"{place}/{name}"][: sim.spec.population], wanted, atol=1e-6)
            there, weights = ~np.isnan(wanted), np.asarray(sizes, float)
            defined += there.sum()
            mean = np.average(np.asarray(wanted)[there], weights=weights[there])
            assert scores[f"{place}/{name}/mean"] == pytest.approx(np.nanmean(wanted), abs=1e-6)
            assert scores[f"{place}/{name}/weighted"] == pytest.approx(mean, abs=1e-6)
            assert scores[f"{place}/{name}/lowest"] == pytest.approx(np.nanmin(wanted), abs=1e-6)
    assert defined > 4 * sim.spec.population


def test_every_scope_has_every_score():
    sim, _, record, scores, by_client = trained()
    assert by_client is not None
    for name in SCORES:
        assert f"test/personal/post_local/{name}/mean" in record
        assert f"test/personal/unseen/{name}/mean" in scores
        assert np.isfinite(by_client.scores[f"test/personal/unseen/{name}"][-2:]).all()
    assert set(scores) == {*evaluation.list_test_scores(sim.spec), *evaluation.list_validation_scores(sim.spec)}


@pytest.mark.parametrize(
    "settings",
    [
        {"plan": client_loop.Plan(2, 4), "batch": 64},
        {"plan": client_loop.Plan(3, 2), "hold": "host", "data_on": "host"},
    ],
    ids=["devices, one batch", "states and examples on the host"],
)
def test_plans_agree_and_padding_never_counts(settings):
    sim, _, record, scores, _ = trained()
    other = simulated(data=sim.spec.data, scopes=("own", "post_local"), **settings)
    state, records = other.run_rounds(other.init(0), 1, scored=True)
    assert records[0] == pytest.approx(record, abs=2e-5)
    found = other.evaluate(state).metrics
    assert found == pytest.approx({name: scores[name] for name in found}, abs=2e-5)
    assert "test/personal/own/macro_f1/weighted" in found


def test_means_are_what_they_are_alone():
    """To the bit: a score beside changes nothing of the others."""
    alone, both = ({}, SCORES)
    found = []
    for scores in (alone, both):
        sim = simulated(scores, scopes=("global", "own", "all"), plan=client_loop.Plan(1, 1))
        found.append(sim.evaluate(sim.init(0)).metrics)
    assert found[0].items() <= found[1].items()


def test_the_server_model_is_scored_by_the_whole_test_set():
    of = toy.data()
    sim = simulated(scopes=("global",), plan=client_loop.Plan(1, 1))
    assert "test/global/macro_f1" not in sim.evaluate(sim.init(0)).metrics  # FedPer has no server's model
    task = dataclasses.replace(make_task(toy.model(), classes=toy.CLASSES, population=of.clients), scores=SCORES)
    build = functools.partial(fedavg, optimizer=local_training.sgd(0.1), epochs=1, batch=4)
    found = []
    every: tuple[dict[str, Any], ...] = ({"plan": client_loop.Plan(1, 1)}, {"plan": client_loop.Plan(1, 8)}, {"data_on": "host"})
    for settings in every:
        sim = Simulator(build_spec(one_group(build, task, of.clients), of, evaluation=Evaluation(("global",), batch=5), **settings))
        state = sim.init(0)
        found.append(sim.evaluate(state).metrics)
        view = sim.client_view(state, 0)
        logits = np.asarray(view.predict("global", view.holds["global"], of.test.x)["logits"])
        for name, wanted in of_rows(logits, of.test.y).items():
            assert found[-1][f"test/global/{name}"] == pytest.approx(wanted, abs=1e-6)
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    assert found[2] == pytest.approx(found[0], abs=1e-6)


class Changed(FBeta):
    """With another part."""

    def __init__(self, call=None, finalize=None, vectorized: bool = False):
        super().__init__()
        self.vectorized = vectorized
        self.call, self.end = call, finalize

    def __call__(self, *rows):
        return super().__call__(*rows) if self.call is None else self.call(*rows)

    def finalize(self, sums):
        return super().finalize(sums) if self.end is None else self.end(sums)


def mean(values):
    """A score that is the mean of what `values` makes of logits, y and mask."""
    return lambda outputs, x, y, mask: (jnp.sum(jnp.where(mask, values(outputs["logits"], y), 0)), jnp.sum(mask))


WRONG = {
    "no pair": (lambda out, x, y, mask: jnp.mean(out["logits"]), TypeError, "must return .sum, weight"),
    "a pair of rows": (lambda out, x, y, mask: (out["logits"][:, 0], 1), TypeError, "needs a function `finalize`"),
    "padding in the sum": (
        lambda out, x, y, mask: (jnp.sum(jnp.argmax(out["logits"], 1) == y), jnp.sum(mask)),
        ValueError,
        "score 'x' of evaluation.scores counts examples outside of `mask`",
    ),
    "padding in the weight": (
        lambda out, x, y, mask: (jnp.sum(mask & (y == 0)), len(y)),
        ValueError,
        "counts examples outside of `mask`",
    ),
    "means of batches": (
        lambda out, x, y, mask: (jnp.sum(jnp.where(mask, y == 0, 0)) / jnp.sum(mask), 1.0),
        ValueError,
        "score 'x' of evaluation.scores does not add up over batches: of 6 examples it returns .*, of two halves of them in all ",
    ),
    "a largest value": (Changed(lambda out, x, y, mask: jnp.max(jnp.where(mask, y + 1, 0))), ValueError, "does not add up"),
    "nan": (mean(lambda z, y: jnp.log(z[:, 0])), ValueError, r"score 'x' of evaluation.scores is not finite .*: \[array\(nan"),
    "raises": (lambda out, x, y, mask: out["logit"], ValueError, "score 'x' of evaluation.scores: raised KeyError: 'logit'"),
    "shape": (mean(lambda z, y: z @ jnp.ones((7, 1))), ValueError, "score 'x' of evaluation.scores: raised TypeError: dot_general"),
    "sums of rows": (
        Changed(lambda out, x, y, mask: jnp.where(mask, y, 0)),
        ValueError,
        r"sums whose shapes depend on the number of examples: \[\[8\]\] of 8, \[\[6\]\] of 6",
    ),
    "truth values": (Changed(lambda out, x, y, mask: jnp.any(mask)), TypeError, r"which are added up, not an array bool\[\]"),
    "nothing": (
        Changed(lambda out, x, y, mask: None),
        TypeError,
        "must return numbers and arrays of numbers, not None without any",
    ),
    "padding in sums": (Changed(lambda out, x, y, mask: jnp.sum(out["logits"], 0)), ValueError, "examples outside of `mask`"),
    "finalize gives an array": (
        Changed(finalize=lambda sums: np.ones(3)),
        TypeError,
        "finalize must return a number, it returned array",
    ),
    "finalize gives none": (Changed(finalize=lambda sums: None), TypeError, "finalize must return a number, it returned None"),
    "finalize raises": (
        Changed(finalize=lambda sums: sums[9]),
        ValueError,
        "score 'x' of evaluation.scores: finalize raised KeyError: 9",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_is_wrong_is_said_before_round_1(name):
    score, error, message = WRONG[name]
    spec = plain_spec()
    group = spec.groups[0]._replace(task=dataclasses.replace(spec.groups[0].task, scores={"x": score}))
    with pytest.raises(error, match=message):
        check_own_scores.check_scores(dataclasses.replace(spec, groups=(group,)))


@functools.cache
def plain_spec():
    return simulated({}).spec


@pytest.mark.parametrize("wrong", ["", "mean", "divisor"])
def test_a_loss_that_counts_padding_is_refused(wrong):
    def loss(logits, y, mask):
        values = jnp.sum((logits - jax.nn.one_hot(y, toy.CLASSES)) ** 2, 1)
        if wrong == "mean":
            return jnp.mean(values)
        return jnp.sum(jnp.where(mask, values, 0)) / (len(y) if wrong else jnp.maximum(jnp.sum(mask), 1))

    of = toy.data()
    task = dataclasses.replace(make_task(toy.model(), classes=toy.CLASSES, population=of.clients), loss=loss)
    build = functools.partial(fedavg, optimizer=local_training.sgd(0.1), epochs=1, batch=4)
    with (
        pytest.raises(ValueError, match=r"loss 'loss' counts examples outside of `mask`.*given \[\d+, \d+\], \[\d+\]")
        if wrong
        else contextlib.nullcontext()
    ):
        build_spec(one_group(build, task, of.clients), of)


@pytest.mark.parametrize("is_sum", [False, True])
def test_a_loss_that_is_a_sum_is_warned_of(is_sum, caplog):
    def loss(logits, y, mask):
        values = losses.cross_entropy_per_example(logits, y)
        return jnp.sum(values * mask) if is_sum else losses.masked_mean(values, mask)

    spec = plain_spec()
    group = spec.groups[0]
    check_own_scores.check_losses(
        dataclasses.replace(spec, groups=[group._replace(task=dataclasses.replace(group.task, loss=loss))])
    )
    warned = [line for line in caplog.messages if line.startswith("loss 'loss' returns a sum over the minibatch")]
    assert len(warned) == is_sum


def test_a_regularizer_that_counts_padding_is_refused():
    check_own_scores.check_regularizer(lambda z, mask: losses.masked_mean(jnp.sum(z**2, 1), mask))
    with pytest.raises(ValueError, match="regularizer 'sparse' counts examples outside of `mask`"):
        check_own_scores.check_regularizer(functools.partial(sparse, weight=0.1))
    config = fedavg_config.get_config("smoke")
    config.regularizers = (f"{__name__}:sparse(weight=0.1)",)
    with pytest.raises(ValueError, match="regularizer 'sparse' counts"):
        experiment.build(config, shapes_only=True)


def sparse(features, mask, weight):
    return weight * jnp.mean(jnp.abs(features))


def test_finalize_of_several_clients_gives_a_number_for_each():
    score = Changed(finalize=lambda sums: np.float64(0.5), vectorized=True)
    with pytest.raises(TypeError, match=r"finalize must return \[E\] numbers of sums \[E, ...\], it returned .*0.5"):
        simulated({"x": score})


def test_a_score_that_is_not_finite_later_is_said(caplog):
    """Of real rows: what is drawn at random was."""
    score = mean(lambda z, y: jnp.where(jnp.arange(len(y)) > 6, jnp.inf, 1.0))
    sim = simulated({"x": score}, batch=64, scopes=("all",))
    assert np.isinf(sim.evaluate(sim.init(0)).metrics["test/personal/all/x/highest"])
    assert "round 0: scores test/personal/all/x/mean, " in caplog.text


def test_small_counts_are_added_up_in_more_bits():
    score = Changed(lambda out, x, y, mask: jnp.sum(mask, dtype=jnp.int8), lambda n: n)
    of = toy.data()
    sim = simulated({"x": score}, scopes=("all",), plan=client_loop.Plan(1, 1), data=of)
    assert sim.spec.score_bytes == (4,)
    assert sim.evaluate(sim.init(0)).metrics["test/personal/all/x/mean"] == len(of.test.y)


@pytest.mark.parametrize("module", [fedavg_config, fedavg_regression])
def test_a_mean_is_added_up_in_float32_in_every_scope(module):
    """Added up in bfloat16, tenths of single rows soon lose their digits."""

    def tenth(outputs, x, y, mask):
        return jnp.sum(jnp.where(mask, 0.1, 0)).astype(jnp.bfloat16), jnp.sum(mask)

    made = module.get_config("smoke")
    made.evaluation.update(batch=1, scopes=("global", "own"))
    made.data.clients, made.cohort.size, made.cohort.fraction = 2, 2, None
    sim = experiment.build(made, scores=tenth)
    found = sim.evaluate(sim.init(0)).metrics
    for name in ("test/global/tenth", *(f"test/global/own/tenth/{statistic}" for statistic in ("lowest", "weighted", "highest"))):
        assert found[name] == pytest.approx(float(jnp.bfloat16(0.1)), rel=1e-6)
