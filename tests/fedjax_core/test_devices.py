"""`config.devices`: what is refused, what is warned of, and runs with simulated time, also resumed."""

import logging

import pytest

from configs import base
from fedjax_core import experiment
from fedjax_core.devices.durations import client_seconds
from fedjax_core.engine import participation
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests import toy

PROFILE = "lognormal(examples_per_second=20, down=1e4, up=1e4)"


def config(**devices):
    settings = base.get_config("smoke")
    settings.method = dict(name="fedavg", epochs=1, batch=4, weights="uniform")
    settings.models = ("mlp(widths=(6,))",)
    settings.plan.devices = 1
    settings.data.clients = toy.CLIENTS
    settings.rounds = 4
    settings.evaluation.update(every=2, scopes=("global",), targets=(0.0, 1.0))
    settings.devices.update(devices)
    return settings


def run(settings, folder):
    return experiment.execute(settings, str(folder), progress=False, data=toy.data(), console=lambda text: None)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"profile": "lognormal"}, "device profile 'lognormal' needs the option 'examples_per_second'"),
        ({"profile": "log(a=1)"}, "unknown device profile 'log'; allowed: constant, lognormal"),
        ({"availability": "daily(mean=2.0)"}, r"availability 'daily': mean=2.0 must be in \[0, 1\]"),
        ({"deadline": 1.0}, "devices.deadline=1.0 needs devices.profile, by which clients take time"),
        ({"wait_for": 2}, "devices.wait_for=2 needs devices.profile"),
        ({"server_seconds": 0.5}, "devices.server_seconds=0.5 needs devices.profile"),
        ({"profile": PROFILE, "deadline": 0.0}, "devices.deadline=0.0 must be positive"),
        ({"profile": PROFILE, "wait_for": 1.5}, r"devices.wait_for=1.5 must be a fraction in \(0, 1\), or an int of at least 1"),
        ({"profile": PROFILE, "server_seconds": -1.0}, "devices.server_seconds=-1.0 must be at least 0"),
    ],
)
def test_what_is_refused(devices, message):
    with pytest.raises((ValueError, TypeError), match=message):
        experiment.resolve(config(**devices))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"availability": "markov(on=4, off=4)"}, r"devices.availability='markov\(on=4, off=4\)' and privacy.mechanism='gaussian'"),
        (
            {"profile": PROFILE, "deadline": 9.0},
            "devices.deadline=9.0 and privacy.mechanism='gaussian': epsilon is computed for clients that come back whenever",
        ),
        ({"profile": "constant(examples_per_second=1, failure=0.1)"}, "devices.profile with failures and privacy.mechanism"),
    ],
)
def test_with_privacy_all_that_are_sampled_come_back(devices, message):
    settings = config(**devices)
    settings.normalise = "half"
    settings.privacy.update(mechanism="gaussian", clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=message):
        experiment.build(settings, toy.data())


def test_settings_of_little_effect_are_said(caplog):
    with caplog.at_level(logging.WARNING, "fedjax_core"):
        experiment.build(
            config(profile="tiers(weights=(1, 1), examples_per_second=(90, 9), memory=(1e9, 300))", deadline=0.5), toy.data()
        )
    deadline, memory = caplog.messages
    assert "devices.deadline=0.5: the rounds of " in deadline
    assert "of 8 clients have less memory (at least 300 bytes) than what they receive, keep and send takes, 456 bytes" in memory


def test_an_older_config_has_no_devices():
    settings = config()
    del settings["devices"]
    assert experiment.resolve(settings).client_devices is None
    assert experiment.build(settings, toy.data()).spec.client_seconds is None


def test_records_have_time_with_a_profile_alone(tmp_path):
    """Everything else is as without: not a bit of a score changes."""
    run(config(), tmp_path / "plain")
    run(config(profile=PROFILE, server_seconds=0.5), tmp_path / "timed")
    plain, timed = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("plain", "timed"))
    total = 0.0
    for one, other in zip(plain, timed, strict=True):
        assert other.keys() - one.keys() == {"simulated_seconds", "simulated_seconds_total"}
        scores = {name for name in one if not name.endswith("seconds")}
        assert {name: one[name] for name in scores} == {name: other[name] for name in scores}
        total += other["simulated_seconds"]
        assert other["simulated_seconds"] > 0.5
        assert other["simulated_seconds_total"] == total
    summary = read_json(tmp_path / "timed" / "summary.json", dict)
    reached = summary["metrics"]["test/global/accuracy"]
    assert reached["rounds_to"] == {"0.0": 2, "1.0": None}
    assert reached["seconds_to"] == {"0.0": timed[1]["simulated_seconds_total"], "1.0": None}
    assert "devices" in read_json(tmp_path / "timed" / "run.json", dict)
    assert "devices" not in read_json(tmp_path / "plain" / "run.json", dict)


def test_a_resumed_run_has_the_time_of_one_that_was_not(tmp_path):
    devices = {"profile": PROFILE.replace(")", ", failure=0.2)"), "availability": "markov(on=3, off=2)", "deadline": 2.0}
    short = config(**devices)
    short.rounds = 2
    run(short, tmp_path / "resumed")
    run(config(**devices), tmp_path / "resumed")
    run(config(**devices), tmp_path / "whole")
    resumed, whole = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("resumed", "whole"))
    measured = {"seconds", "compile_seconds"}
    assert [{name: r[name] for name in r.keys() - measured} for r in resumed] == [
        {name: r[name] for name in r.keys() - measured} for r in whole
    ]
    assert {"sampled", "simulated_seconds_total"} <= whole[-1].keys()


def test_a_run_is_resumed_on_its_own_devices(tmp_path):
    file = tmp_path / "devices.csv"
    file.write_text("examples_per_second\n" + "20\n" * toy.CLIENTS)
    settings = config(profile=f"from_csv(path={str(file)!r})")
    settings.rounds = 1
    run(settings, tmp_path / "run")
    file.write_text("examples_per_second\n" + "30\n" * toy.CLIENTS)
    settings.rounds = 2
    with pytest.raises(ValueError, match=r"holds a run with other devices \(devices.profiles: "):
        run(settings, tmp_path / "run")


def test_an_asynchronous_run_resumes_with_its_order_of_arrivals(tmp_path, monkeypatch):
    settings = config(profile=PROFILE)
    settings.schedule, settings.rounds = "fedbuff(buffer=2)", 1
    run(settings, tmp_path / "run")
    monkeypatch.setattr(participation, "client_seconds", lambda *args, **options: 2 * client_seconds(*args, **options))
    settings.rounds = 2
    with pytest.raises(ValueError, match=r"holds a run with other arrivals \(arrivals.client_seconds: "):
        run(settings, tmp_path / "run")
