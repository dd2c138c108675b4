"""Runs with privacy: epsilon so far in every record, in the summary, and right after resuming."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.experiment import run_experiment
from fedjax_core.privacy import Participation, Release, budget, compute_epsilon
from fedjax_core.storage.json_files import read_json, read_jsonl, write_json
from fedjax_core.uplink import dp_matrix_mechanism

needs_library = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed")


def private(rounds=2, **given):
    config = fedavg.get_config("smoke")
    config.rounds, config.evaluation.every, config.data.examples = rounds, 5, 60
    config.method.update(epochs=1, weights="uniform")
    config.normalise = "unit"
    config.cohort.update(size=4, fraction=0.2, sampling="poisson")
    config.privacy.update({"mechanism": "gaussian", "clip": 0.5, "noise": 1.1, "delta": 1e-5, "accountant": "rdp"} | given)
    return config


@needs_library
def test_a_run_tells_its_epsilon(tmp_path: Path, monkeypatch):
    heard: list[str] = []
    release = Release("gaussian", "poisson", 4, 20)
    spent = [compute_epsilon(release, 1.1, done, 1e-5, "rdp") for done in range(4)]
    for rounds in (2, 3):
        experiment.execute(private(rounds), str(tmp_path / "run"), progress=False, console=heard.append)
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [record["privacy/epsilon"] for record in records] == pytest.approx(spent[1:])
    told = read_json(tmp_path / "run" / "summary.json")["facts"]["privacy"]
    assert (told["epsilon"], told["noise_multiplier"]) == (pytest.approx(spent[3]), 1.1)
    resumed = heard[next(i for i, line in enumerate(heard) if line.startswith("resuming")) :]
    assert any(line.startswith(f"privacy  epsilon {spent[2]:.4g} at delta 1e-05 after round 2") for line in resumed)
    with pytest.raises(ValueError, match="privacy"):
        experiment.execute(private(3, noise=1.2), str(tmp_path / "run"), progress=False)
    for name in ("compute_epsilon", "calibrate_noise"):
        monkeypatch.setattr(budget, name, lambda *given: pytest.fail("a run is read without an accountant"))
    assert experiment.load(str(tmp_path / "run"))[1].spec.sampler.size == 4
    calibrated = budget.PrivacyConfig("gaussian", 0.5, None, 2.0, 1e-5, None, None, "rdp", None, None, 3)
    assert calibrated.make_ledger(4, 20, "poisson", False, {"noise_multiplier": 1.25}).noise == 1.25


@needs_library
def test_a_run_with_correlated_noise_tells_its_epsilon_and_takes_no_other_rounds(tmp_path: Path):
    config = private(3, mechanism="blt(buffers=1)")
    config.cohort.sampling = "cyclic"
    experiment.execute(config, str(tmp_path), progress=False)
    told = [record["privacy/epsilon"] for record in read_jsonl(tmp_path / "metrics.jsonl")]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(compute_epsilon(Release("gaussian", "all", 4, 4), 1.1, 1, 1e-5, "rdp")), "one mechanism in all"
    assert read_json(tmp_path / "summary.json")["facts"]["privacy"]["epsilon"] == pytest.approx(told[-1])
    config.rounds = 4
    with pytest.raises(
        ValueError, match=r"holds a run with other privacy \(privacy\.decays: .* in the directory, .* now"
    ) as caught:
        experiment.execute(config, str(tmp_path), progress=False)
    assert "privacy.rounds: 3 in the directory, 4 now" in str(caught.value)
    assert "clip" not in str(caught.value), "what is alike is not said"


@needs_library
def test_a_resumed_run_has_the_noise_that_is_recorded(tmp_path: Path, monkeypatch):
    """Another machine finds other last digits; they were refused."""
    config = private(2, mechanism="banded(bands=2)", noise=None, epsilon=4.0)
    config.cohort.sampling = "cyclic"
    told: dict[str, Any] = {}
    mechanisms: list[Any] = []
    monkeypatch.setattr(run_experiment, "run", lambda simulation, workdir, config, settings: told.update(private=settings.privacy))
    monkeypatch.setattr(
        dp_matrix_mechanism,
        "make_mechanism",
        lambda *given, of=dp_matrix_mechanism.make_mechanism: mechanisms.append(given) or of(*given),
    )

    def resumed(**other: Any) -> budget.PrivacyLedger:
        there = Participation(2, 5, 1)
        of_noise = {"rounds": 2, "min_separation": 5, "participations": 1, "noise_multiplier": first.noise} | other
        written = experiment.complete_config(config)
        write_json(tmp_path / "config.json", written)
        write_json(tmp_path / "run.json", {"partition": {"hash": ""}, "privacy": of_noise})
        experiment.execute(config, str(tmp_path))
        assert told["private"].participation == there
        assert mechanisms[-1][1:] == (told["private"].noise, 4, 4, told["private"].strategy), "so is what makes the noise"
        return told["private"]

    experiment.execute(config, str(tmp_path))
    first = told["private"]
    other = [1.0, first.strategy.coefficients[1] - 1e-6]
    found = resumed(coefficients=other, noise_multiplier=first.noise + 1e-4)
    assert (list(found.strategy.coefficients), found.noise) == (other, first.noise + 1e-4)
    assert resumed(coefficients={"number": 2, "digest": ""}).strategy == first.strategy, "of which it has no numbers"
    assert resumed(noise_multiplier=first.noise + 0.1).noise == first.noise, "that is not the noise of this epsilon"
    assert resumed(noise_multiplier=first.noise - 1e-3).noise == first.noise, "nor is less"


def test_what_is_recorded_of_independent_noise_does_not_change_with_the_rounds():
    """Else a run in turn could not be gone on with."""
    of = lambda rounds: budget.PrivacyConfig("gaussian", 0.5, 1.1, None, 1e-5, None, None, "rdp", None, None, rounds)
    first, more = (of(rounds).make_ledger(5, 20, "cyclic").facts() for rounds in (12, 20))
    assert first == more
    assert first["min_separation"] == 4


@needs_library
def test_more_rounds_may_need_another_accountant():
    """A directory of 5000 rounds by "pld" takes 8000, if the config names no accountant."""
    config = private(5000, noise=0.3, accountant=None)
    simulation = experiment.build(config)
    before = run_experiment.make_run_settings(experiment.resolve(config), simulation).run_facts["privacy"]
    assert before["accountant"] == "pld"
    config.rounds = 8000
    settings = run_experiment.make_run_settings(experiment.resolve(config), simulation, before)
    assert settings.run_facts["privacy"] == before
    assert settings.privacy.accountant == "rdp"
    config.privacy.accountant = "rdp"
    assert (
        run_experiment.make_run_settings(experiment.resolve(config), simulation, before).run_facts["privacy"]["accountant"] == "rdp"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mechanism": None}, r"privacy\.clip=0\.5 needs privacy\.mechanism"),
        ({"clip": None}, r"needs privacy\.clip"),
        ({"epsilon": 2.0}, r"privacy\.noise=1\.1, privacy\.epsilon=2\.0: give one of them"),
        ({"delta": None}, r"^privacy\.mechanism='gaussian' needs privacy\.delta, at most one over"),
        ({"noise": 1e9}, r"privacy\.noise=1000000000\.0 must be in \(0, 1e\+06\]"),
        ({"delta": 1.5}, r"privacy\.delta=1\.5 must be in \(0, 1\)"),
        ({"mechanism": "local_gaussian", "cohort": 9}, "privacy.cohort=9 has no effect with 'local_gaussian'"),
        ({"population": 90}, "privacy.population=90 needs privacy.cohort, the clients of the deployment in a round"),
        ({"mechanism": "gauss"}, "unknown mechanism 'gauss'; allowed: .*Did you mean"),
        ({"mechanism": "adaptive(quantile=2.0)"}, r"quantile=2\.0 must be in \(0, 1\)"),
        ({"mechanism": "tests.toy:simulate"}, "only mechanisms with an accountant are allowed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given, says):
    with pytest.raises((ValueError, TypeError), match=says) as caught:
        experiment.resolve(private(**given))
    assert "\n" not in str(caught.value)


def test_all_that_is_missing_is_said_at_once():
    """Also what else a first run meets: scaling by all rows, and clients that are weighed."""
    config = private(clip=None, noise=None, delta=None)
    config.normalise, config.method.weights = "data", "samples"
    with pytest.raises(ValueError, match=r"^privacy\.mechanism='gaussian' needs privacy\.clip") as caught:
        experiment.resolve(config)
    wanted = (
        "privacy.noise, the noise multiplier, or privacy.epsilon",
        "privacy.delta, ",
        "normalise='data' changed to",
        "uniform",
    )
    assert all(part in str(caught.value) for part in wanted)
    assert "\n" not in str(caught.value)


def test_scaling_by_all_rows_has_no_noise_and_is_refused():
    config = private()
    config.normalise = "data"
    with pytest.raises(ValueError, match=r"and normalise='data': .*; set normalise to one of 'imagenet', 'half', 'unit'") as caught:
        experiment.resolve(config)
    assert "\n" not in str(caught.value)


def test_a_rule_and_noise_on_the_sum_exclude_each_other():
    config = private()
    config.aggregation.rule = "median"
    with pytest.raises(ValueError, match=r"privacy\.mechanism='gaussian' and aggregation\.rule='median' each replace the mean"):
        experiment.resolve(config)
    config.privacy.mechanism = "local_gaussian"
    assert experiment.resolve(config).leave_out


def test_an_adaptive_clip_needs_examples_of_every_client():
    """Since a client without any sends no bit, which would count as half of one."""
    config = private(mechanism="adaptive")
    config.data.partition = "dirichlet(alpha=0.01, min_size=0)"
    with pytest.raises(ValueError, match=r"^privacy.mechanism='adaptive': a client without examples sends no bit on its norm"):
        experiment.build(config)
