"""`config.clients` and `devices.late`: what is refused, and a run with all of them, also resumed."""

import re

import pytest

from configs import base
from fedjax_core import experiment
from fedjax_core.experiment import client_options
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests import toy

PROFILE = "lognormal(examples_per_second=20, down=1e4, up=1e4)"


def config(clients, devices=None, **method):
    settings = base.get_config("smoke")
    settings.method = {"name": "fedavg", "epochs": 1, "batch": 4} | method
    settings.models = ("mlp(widths=(6,))",)
    settings.plan.devices = 1
    settings.data.clients = toy.CLIENTS
    settings.rounds = 3
    settings.evaluation.update(every=3, scopes=("global",))
    settings.clients.update(clients)
    settings.devices.update(devices or {})
    return settings


@pytest.mark.parametrize(
    ("clients", "devices", "message"),
    [
        ({"epochs": "uniform"}, {}, "clients.epochs 'uniform' needs the option 'low'; it takes: low, high"),
        ({"epochs": "log(a=1)"}, {}, "unknown clients.epochs 'log'; allowed: uniform, tiers, from_csv"),
        ({"epochs": 0}, {}, "clients.epochs=0 must be at least 1 or a string or None"),
        ({"steps": 2.5}, {}, "clients.steps=2.5 must be an int, at least 1 or a string or None"),
        ({"lr": -0.1}, {}, "clients.lr=-0.1 must be positive or a string or None"),
        ({"epochs": 2, "steps": 3}, {}, "clients.epochs=2 and clients.steps=3: a client has epochs, steps or seconds, one of them"),
        ({"rank": 0}, {}, "clients.rank=0 must be at least 1 or a string or None"),
        ({"rank": 4}, {}, "clients.rank=4 needs adapter, such as 'lora(rank=8)', of which clients train a part"),
        ({"seconds": 3.0}, {}, "clients.seconds=3.0 needs devices.profile, by which clients take time"),
        ({}, {"late": "partial"}, "devices.late='partial' needs devices.profile"),
        ({}, {"late": "partial", "profile": PROFILE}, "devices.late='partial' needs devices.deadline"),
        ({}, {"late": "later", "profile": PROFILE}, "devices.late='later' must be one of 'drop', 'partial'"),
    ],
)
def test_what_is_refused(clients, devices, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        experiment.resolve(config(clients, devices))


def test_methods_without_such_an_option():
    settings = config({"epochs": 3})
    settings.method = {"name": "fedrep", "head_epochs": 1, "body_epochs": 1, "batch": 4}
    message = "clients.epochs=3: method 'fedrep' has no option 'epochs'; it has method.head_epochs, method.body_epochs, "
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment.resolve(settings)
    settings.clients.update(epochs=None, batch=2)
    settings.task = "episodes(way=2, shot=1, query=1)"
    with pytest.raises(ValueError, match=r"clients.batch=2: with task='episodes.*' a minibatch is an episode"):
        experiment.resolve(settings)
    with pytest.raises(ValueError, match="fedgen: its server assumes one number of epochs"):
        experiment.build(config({"steps": 3}, name="fedgen"), toy.data())


@pytest.mark.parametrize("name", client_options.SEND_MODELS)
def test_ranks_and_methods_whose_clients_send_models(name):
    settings = config({"rank": 4}, name=name)
    settings.models, settings.adapter = ("vit(patch=4, width=8, depth=1, heads=2)",), "lora(rank=8)"
    with pytest.raises(ValueError, match=f"clients.rank=4 and method '{name}', whose clients send models: the server would mix"):
        experiment.resolve(settings)


def test_ranks_and_fedhpls_average_of_adapters():
    """It is of the clients' entries, not of their changes; the head has no rank."""
    settings = config({"rank": 4}, name="fedhpl")
    settings.models, settings.adapter, settings.train = ("vit(patch=4, width=8, depth=1, heads=2)",), "lora(rank=8)", "head"
    settings.method.average = ("head",)
    experiment.resolve(settings)
    settings.method.average = ("head", "adapter")
    message = "clients.rank=4 and method.average=('head', 'adapter'): the server would mix zeros into what clients of smaller ranks"
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment.resolve(settings)


def test_ranks_that_a_network_does_not_have():
    settings = config({"rank": 9})
    settings.models, settings.adapter = ("vit(patch=4, width=8, depth=1, heads=2)",), "lora(rank=8)"
    message = "clients.rank=9 must be at most the rank of adapter='lora(rank=8)', 8"
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment.resolve(settings)
    settings.clients.rank, settings.compression.uplink = 4, "quantize(bits=8)"
    message = "clients.rank=4 and compression.uplink='quantize(bits=8)': compressed uplinks have one size for all clients"
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment.resolve(settings)
    settings.compression.uplink, settings.aggregation.rule = None, "median"
    with pytest.raises(ValueError, match=r"clients.rank=4 and aggregation.rule='median': a rule takes the zeros"):
        experiment.resolve(settings)
    settings.aggregation.rule = None
    settings.privacy.update(mechanism="local_gaussian", clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"clients.rank=4 and privacy.mechanism='local_gaussian': clients would send noise"):
        experiment.resolve(settings)


def test_privacy_and_seconds():
    settings = config({"seconds": 3.0}, {"profile": PROFILE})
    settings.privacy.update(mechanism="gaussian", clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"clients.seconds=3.0 and privacy.mechanism='gaussian': clients without time"):
        experiment.resolve(settings)
    settings.privacy.level, settings.normalise = "example", "half"
    with pytest.raises(ValueError, match=r"clients.seconds and privacy.level='example': epsilon is computed for local steps"):
        experiment.build(settings, toy.data())


def test_an_older_config_has_no_settings():
    settings = config({})
    del settings["clients"]
    assert experiment.build(settings, toy.data()).spec.host_arrays.settings is None


def test_a_run_is_resumed_with_its_own_settings(tmp_path):
    """Also with unseen clients, which train as the method says."""
    file = tmp_path / "clients.csv"
    file.write_text("epochs,batch\n" + "3,2\n1,4\n2,5\n1,1\n5,4\n2,2\n")
    spec = f"from_csv(path={str(file)!r})"
    settings = {"epochs": spec, "batch": spec, "lr": "tiers(weights=(1, 1), values=(0.1, 0.05))"}

    def run(name, rounds):
        changed = config(settings, {"profile": PROFILE, "deadline": 1.5, "late": "partial"}, name="fedper")
        changed.data.unseen_clients = 2
        changed.evaluation.scopes = ("own",)
        changed.rounds = rounds
        experiment.execute(changed, str(tmp_path / name), progress=False, console=lambda text: None)
        return read_jsonl(tmp_path / name / "metrics.jsonl")

    run("resumed", 1)
    resumed, whole = run("resumed", 3), run("whole", 3)
    measured = {"seconds", "compile_seconds"}
    keep = lambda records: [{name: r[name] for name in r.keys() - measured} for r in records][-1]
    assert keep(resumed) == keep(whole)
    assert "test/personal/unseen/accuracy/mean" in whole[-1]
    assert "settings" in read_json(tmp_path / "whole" / "run.json", dict)["devices"]
    file.write_text(file.read_text().replace("3,2", "4,2"))
    with pytest.raises(ValueError, match=r"holds a run with other devices \(devices.settings: "):
        run("whole", 4)


def test_a_config_with_ranks():
    settings = config({"rank": "tiers(weights=(1, 1), values=(1, 3))"})
    settings.data.source, settings.models = "digits", ("vit(patch=4, width=8, depth=1, heads=2)",)
    settings.adapter, settings.train, settings.data.clients = "lora(rank=3, targets=('query',))", "head", 12
    spec = experiment.build(settings).spec
    ranks = spec.host_arrays.settings.rank
    assert set(ranks) == {1, 3}
    assert spec.shapes.up == 4 * (ranks.mean() * 2 * 8 + 8 * 10 + 10)
