"""`config.schedule`: what is refused, what a run says, and runs that are stopped with clients in training."""

import jax
import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.experiment import run_header
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests import toy
from tests.fedjax_core.test_devices import PROFILE, config, run

SCHEDULE = "fedbuff(buffer=2, max_staleness=3)"


def asynchronous(rounds: int = 4, **fields):
    settings = config(profile=PROFILE)
    settings.schedule, settings.rounds, settings.cohort.size = SCHEDULE, rounds, 4
    settings.update(fields)
    return settings


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fedbuf", "unknown schedule 'fedbuf'; allowed: fedbuff, fedasync. Did you mean 'fedbuff'?"),
        ("fedbuff(staleness='linear')", "unknown staleness 'linear'"),
        ("fedbuff(2)", r"schedule: 'fedbuff\(2\)' is not of the form name\(key=value, ...\)"),
    ],
)
def test_what_is_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        experiment.resolve(asynchronous(schedule=schedule))


def test_privacy_is_refused_with_the_reason():
    settings = asynchronous(normalise="half")
    settings.privacy.update(mechanism="gaussian", clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="epsilon is computed for the cohorts of synchronous rounds; who is in a buffer depends"):
        experiment.resolve(settings)


@pytest.mark.parametrize(
    ("schedule", "is_refused"),
    [
        ("fedasync(alpha=0.6)", True),
        ("fedbuff(buffer=2, server_lr=0.1)", True),
        ("fedbuff(buffer=2, staleness='constant', server_lr=1)", False),
    ],
)
def test_a_vote_has_no_weights(schedule, is_refused):
    settings = asynchronous(schedule=schedule)
    settings.compression.uplink = "sign(majority=True)"
    if not is_refused:
        assert experiment.resolve(settings)
        return
    with pytest.raises(ValueError, match=r"^schedule=.* and compression.uplink='sign\(majority=True\)': .* a vote has no weight"):
        experiment.resolve(settings)


def test_an_older_config_has_no_schedule():
    settings = config()
    del settings["schedule"]
    assert experiment.resolve(settings).schedule is None


def test_a_run_says_what_it_does():
    settings = asynchronous()
    lines = run_header.opening_lines(experiment.resolve(settings), experiment.build(settings, toy.data()))
    text = " ".join(" ".join(lines).split())
    assert "4 train at once, 2 updates a round" in text
    assert f"asynchronous by {SCHEDULE}; devices by {PROFILE}" in text


@pytest.mark.parametrize("chunk", [None, 1])
def test_the_plan_is_for_the_updates_of_a_round(chunk):
    """Four clients train at once; more devices than a round has updates would train nobody."""
    settings = asynchronous()
    settings.plan.update(chunk=chunk, devices=None)
    assert tuple(experiment.build(settings, toy.data()).spec.plan) == (1, 2, 1)


def test_a_run_that_was_stopped_in_mid_flight_ends_bit_for_bit_like_one_that_was_not(tmp_path):
    """Clients train from broadcasts of rounds before the stop, which the checkpoint's ring has."""
    run(asynchronous(3), tmp_path / "resumed")
    resumed = run(asynchronous(8), tmp_path / "resumed").state
    whole = run(asynchronous(8), tmp_path / "whole").state
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed), jax.device_get(whole))
    records = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("resumed", "whole")]
    measured = {"seconds", "compile_seconds"}
    scores = [[{name: value for name, value in r.items() if name not in measured} for r in of_run] for of_run in records]
    assert scores[0][3:] == scores[1][3:]  # the shorter run has scored its last round
    assert any(record["max_staleness"] > record["round"] - 4 for record in records[0][3:6])
    assert {"staleness", "too_stale", "simulated_seconds_total"} <= records[0][-1].keys()
    assert not {"staleness", "too_stale"} & read_json(tmp_path / "whole" / "summary.json", dict)["metrics"].keys()
