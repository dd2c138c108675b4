"""The first lines of a run, and what is said of settings that are allowed and absurd."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from configs import dfedavg, fedavg, fedmd, fedpft, fedproto
from fedjax_core import experiment
from fedjax_core.data import federated_data, sources
from fedjax_core.experiment import config_warnings
from fedjax_core.experiment.run_header import COLUMNS, noise_to_signal, opening_lines
from fedjax_core.experiment.uplink_options import account_privacy
from fedjax_core.nn import flax_adapter
from fedjax_core.storage import export_model

PRIVATE = {"mechanism": "gaussian", "clip": 1.0, "delta": 1e-3}


def opened(config, **options) -> dict[str, str]:
    """Returns the first lines of a config's run by what stands before them, those that go on joined."""
    asked = experiment.resolve(config)
    simulation = experiment.build(config, resolved=asked)
    lines = opening_lines(
        asked, simulation, account_privacy(asked.privacy, asked.cohort, simulation.spec.population, asked.sampling), **options
    )
    assert all(len(line) <= COLUMNS for line in lines)
    found: dict[str, str] = {}
    label = ""
    for line in lines:
        label = line[:9].strip() or label
        found[label] = " ".join([*filter(None, [found.get(label)]), line[9:].strip()])
    return found


def test_a_run_says_first_what_is_trained_on_what_and_by_whom():
    config = fedavg.get_config("smoke")
    config.plan.devices, config.plan.chunk = 2, 4
    assert opened(config) == {
        "method": "fedavg (weights='samples')",
        "network": "mlp: 55,210 parameters",
        "data": "digits, 8x8x1, 10 classes: 1,437 to train on, 360 to test on",
        "clients": "20 by dirichlet(alpha=0.5), 8 in a round",
        "training": "sgd (lr=0.1), epochs=5, batch=32; 5 rounds, scored every 5",
        "devices": "2 (cpu); 4 clients at once on each",
    }
    assert opened(config, given_data=True)["clients"] == "20, 8 in a round"


def test_it_reports_what_is_between_clients_and_server():
    config = fedavg.get_config("smoke")
    config.adversary.update(attack="sign_flip", fraction=0.2)
    config.aggregation.rule, config.compression.uplink, config.dropout = "median", "quantise(bits=4)", 0.25
    found = opened(config)
    assert found["attack"] == "sign_flip by 20 % of the clients"
    assert found["uplink"] == (
        "rule median; compressed by quantise(bits=4); clients that send NaN are left out; 25 % of the cohort do not come back"
    )
    assert "noise" not in found


def test_it_says_what_devices_do_and_for_whom_the_server_waits():
    config = fedavg.get_config("smoke")
    config.devices.update(profile="edge(examples_per_second=20)", availability="daily", deadline=600.0, wait_for=0.5)
    assert opened(config)["time"] == (
        "devices by edge(examples_per_second=20); available by daily; deadline 600 s; the first 50 % of a cohort count"
    )


def test_networks_and_options_in_parts_are_distinguished():
    found = opened(fedproto.get_config("smoke"))["network"]
    assert found == "mlp(widths=(32,)) of 10 clients: 2,410 parameters; cnn(widths=(4,), dense=32) of 10 clients: 1,554 parameters"
    assert opened(fedpft.get_config("smoke"))["method"] == "fedpft (contrast.on=False)"


def test_only_what_is_not_trained_is_frozen(tmp_path, monkeypatch):
    config = fedavg.get_config("smoke")
    model = experiment.build(config).spec.bound_groups[0].task.model
    described = {"model": "mlp", "classes": 10, "class_names": list("0123456789"), "input_shape": (8, 8, 1)}
    described |= {"mean": 0.0, "std": 1.0, "statistics": "average"}
    monkeypatch.chdir(tmp_path)
    export_model.save_model("net", model.init(jax.random.key(0)), described)
    config.weights = "net"
    assert opened(config)["network"] == "mlp: 55,210 parameters; from net"
    config.train = "head"
    assert opened(config)["network"] == "mlp: 2,010 parameters trained beside 53,200 frozen; from net; train head"


def test_noise_that_is_longer_than_the_signal_is_reported_with_what_helps():
    config = fedavg.get_config("smoke")
    config.normalise, config.method.weights = "unit", "uniform"
    config.privacy.update(**PRIVATE, epsilon=8.0)
    config.data.clients = 20
    said = opened(config)["noise"]
    assert said.startswith("a round's is ")
    assert "privacy.cohort of " in said
    ratio = float(said.split()[3])
    assert ratio > 10
    config.privacy.update(cohort=100_000, population=10_000_000)
    assert "noise" not in opened(config)


@pytest.mark.parametrize(
    ("local", "needed", "ratio"),
    [(False, 200, 25.0), (True, 40_000, 200 / math.sqrt(8))],  # of 10,000 numbers with a deviation of 2 each, over 8 clients
)
def test_the_length_of_noise(local, needed, ratio):
    assert noise_to_signal(2.0, 10_000, 8, local) == (needed, pytest.approx(ratio))


def test_batches_beyond_all_data_and_evaluations_that_never_come_are_reported(caplog):
    config = fedavg.get_config("smoke")
    config.method.batch, config.evaluation.every = 100_000, 1000
    found = opened(config)
    (line,) = [line for line in caplog.messages if line.startswith("method.batch=100000")]
    assert line.endswith(
        "1437 training examples of all clients, of whom one has at most 128: each takes one step an epoch, on all that it has"
    )
    assert found["scores"] == "evaluation.every=1000 is more than rounds=5: only the last round is scored"


@pytest.mark.parametrize(
    ("method", "scopes", "said"),
    [
        ("fedavg", (), "evaluation.scopes=() scores no model in any round: method 'fedavg' has ['global']; ('global',) scores the"),
        ("fedavg", ("all",), r"evaluation.scopes=('all',) scores no model in any round: method 'fedavg' has ['global']"),
        ("fedper", ("global",), "scores no model in any round: method 'fedper' has ['personal']; ('own',) scores each client's"),
        ("fedper", ("post_local",), None),
        ("fedper", ("global", "own"), None),
    ],
)
def test_scopes_without_a_score_are_reported(method, scopes, said):
    config = experiment.load_config(f"{method}:smoke")
    config.evaluation.scopes = scopes
    found = " ".join(opened(config).get("scores", "").split())
    assert said in found if said else not found


@pytest.mark.parametrize(
    ("columns", "partition", "better"),
    [
        (("clients",), "dirichlet(alpha=0.5)", "clients of mine, and makes other clients; 'natural' takes them"),
        (("domains",), "iid", "domains of mine, and makes other clients; 'by_domain' takes them"),
        (
            ("clients", "domains"),
            "iid",
            "clients and domains of mine, and makes other clients; 'natural' or 'by_domain' takes them",
        ),
        (("clients", "domains"), "natural", None),
        (("domains",), "by_domain", None),
        ((), "iid", None),
    ],
)
def test_clients_of_the_data_that_the_partition_does_not_use_are_warned_of(tmp_path, caplog, columns, partition, better):
    numbers = np.arange(40)
    arrays = {f"{part}_{column}": numbers % 4 for part in ("train", "test") for column in columns}
    x = numbers[:, None].astype(np.float32)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=numbers % 3, x_test=x, y_test=numbers % 3, **arrays)
    config = fedavg.get_config("smoke")
    config.data.update(source="npz(path='mine.npz')", dir=str(tmp_path), partition=partition, clients=4)
    experiment.dataset(config)
    lines = [line for line in caplog.messages if "makes other clients" in line]
    assert lines == ([] if better is None else [f"data.partition={partition!r} does not use the own {better}"])


@pytest.mark.parametrize(
    ("topology", "share", "drifts"), [("exponential", 0.5, True), ("exponential", 1.0, False), ("ring", 0.5, False)]
)
def test_links_of_one_way_between_some_clients_are_warned_of(caplog, topology, share, drifts):
    config = dfedavg.get_config("smoke")
    config.method.topology, config.cohort.fraction = topology, share
    opened(config)
    lines = [line for line in caplog.messages if line.startswith("method.topology='exponential': 10 of 20 clients take part")]
    assert len(lines) == drifts


def test_clients_whose_targets_are_too_alike_for_an_r2_are_warned_of():
    """At the levels 1000 and -1000 of two sensors; a constant one has none in any case."""
    rng, levels = np.random.default_rng(0), np.repeat([1000.0, -1000.0, 1000.0], 20)
    x, noise = rng.normal(size=(60, 2)).astype(np.float32), rng.normal(size=60) * np.repeat([1, 100, 0], 20)
    y = (levels + noise).astype(np.float32)
    data = sources.from_arrays(x, y, x, y, targets="numbers")
    rows = [np.arange(20), np.arange(20, 40), np.arange(40, 47)]
    (line,) = config_warnings.check_targets(federated_data.from_index(data, rows, rows))
    assert line.startswith("test targets of 1 of 3 clients vary by less than 0.3 % of their distance from the mean of all training")


@pytest.mark.parametrize(("decay", "warns"), [(None, False), (0.99, False), (1, False), (0.0001, True), (2, True)])
def test_a_decay_that_is_no_weight_decay_is_warned_of(decay, warns):
    config = fedavg.get_config("smoke")
    config.rounds, config.optimizer.decay = 2000 if decay == 2 else 50, decay
    lines = config_warnings.check_decay(experiment.resolve(config))
    said = f"optimizer.decay={decay} multiplies the rate each round; weight decay is optimizer.weight_decay"
    assert lines == ([said] if warns else [])


@pytest.mark.parametrize(
    ("name", "rate", "warns"), [("sgd", 0.1, False), ("adam", 0.03, False), ("adam", 0.1, True), ("optax:lion", 0.1, True)]
)
def test_a_rate_for_sgd_is_warned_of_with_adam(name, rate, warns):
    config = fedavg.get_config("smoke")
    config.optimizer.update(name=name, lr=rate)
    lines = config_warnings.check_step(experiment.resolve(config))
    said = f"optimizer.lr=0.1 with {name.removeprefix('optax:')} moves each weight by about 0.1 a step, whatever its gradient; "
    said += "0.001 is usual"
    assert lines == ([said] if warns else [])


@pytest.mark.parametrize(
    ("level", "delta", "more", "said"),
    [
        ("client", 0.05, {}, None),
        ("client", 0.5, {}, "privacy.delta=0.5 is more than one over the 20 clients: one of them may be published as it is"),
        ("client", 0.05, {"cohort": 50, "population": 1000}, "privacy.delta=0.05 is more than one over the 1000 clients: "),
        ("example", 1e-4, {}, None),
        ("example", 0.05, {}, "privacy.delta=0.05 is more than one over the 1437 training examples: "),
    ],
)
def test_a_delta_of_more_than_one_over_all_is_warned_of(level, delta, more, said):
    config = fedavg.get_config("smoke")
    config.method.weights, config.normalise = "uniform", "unit"
    config.privacy.update(mechanism="gaussian", level=level, clip=1.0, noise=1.0, delta=delta, **more)
    lines = config_warnings.check_delta(experiment.resolve(config), experiment.dataset(config))
    assert [line.startswith(said or "?") for line in lines] == [True] * (said is not None)


def test_public_examples_that_a_method_does_not_read_are_warned_of():
    config = fedmd.get_config("smoke")
    assert config_warnings.check_public(experiment.resolve(config)) == []
    config.method = {"name": "perada", "batch": 32, "distil": {"on": True}}
    assert config_warnings.check_public(experiment.resolve(config)) == []
    config.method.distil.on = False
    (line,) = config_warnings.check_public(experiment.resolve(config))
    assert line.startswith(f"public={config.public!r}: method 'perada' does not read them, with distil.on=False")
    experiment.switch_method(config, {"name": "fedavg"})
    (line,) = config_warnings.check_public(experiment.resolve(config))
    assert line.endswith("method 'fedavg' does not read them, and heads have outputs for their classes too; set public=None")


@pytest.mark.parametrize(("models", "warns"), [(("mlp(widths=(4,))",), True), (("resnet8(width=4)", "mlp(widths=(4,))"), False)])
def test_local_statistics_without_any_are_warned_of(caplog, models, warns):
    config = fedavg.get_config("smoke")
    config.models, config.statistics = models, "local"
    if not warns:
        config.method = {"name": "local", "batch": 32}
    experiment.build(config)
    lines = [line for line in caplog.messages if line.startswith("statistics='local': no network trains batch normalisation")]
    assert len(lines) == warns


@pytest.mark.parametrize(
    ("models", "others", "said"),
    [
        (("mlp(widths=(4,))",), False, "others=True keeps group and layer normalization"),
        (("mlp(widths=(4,))",), True, "take a network with normalization"),
        (("resnet8(width=4, norm='group')",), False, "others=True keeps group and layer normalization"),
        (("resnet8(width=4, norm='group')",), True, None),
        (("resnet8(width=4)",), False, None),
    ],
)
def test_fedbn_without_personal_layers_is_reported(models, others, said, caplog):
    config = experiment.load_config("fedbn:smoke")
    config.models, config.method.others = models, others
    experiment.build(config)
    lines = [line for line in caplog.messages if line.startswith(f"method 'fedbn' keeps no layer of {models[0]} at a client")]
    assert [line.rpartition("; ")[2] for line in lines] == ([said] if said else [])


@pytest.mark.parametrize(
    ("topology", "size", "devices", "why"),
    [
        ("ring", 8, "down=1e6", "links of absent clients are left out"),
        ("ring", 20, "up=1e6, failure=0.1", "links of absent clients are left out"),
        ("graph", 20, "down=1e6", "numbers of neighbours may differ"),
        ("ring", 20, "down=1e6", None),
        ("graph", 8, "latency=1.0", None),
    ],
)
def test_seconds_of_neighbours_that_differ_are_warned_of(tmp_path, topology, size, devices, why):
    config = dfedavg.get_config("smoke")
    config.method = {"name": "dfedavg", "topology": topology}
    if topology == "graph":
        (tmp_path / "graph.csv").write_text("0,1\n1,0\n")
        config.method.matrix = str(tmp_path / "graph.csv")
    config.devices.profile = f"constant(examples_per_second=10.0, {devices})"
    lines = config_warnings.check_link_seconds(experiment.resolve(config), size, 20)
    assert [line.rpartition("but ")[2].partition(";")[0] for line in lines] == ([] if why is None else [why])


def test_validation_that_most_clients_have_no_part_in_is_warned_of(caplog):
    """20 clients of 71 or 72 examples each: a hundredth of none is one; with Dirichlet's of few."""
    config = fedavg.get_config("smoke")
    config.data.update(partition="iid", validation=0.01)
    with pytest.raises(
        ValueError, match=r"data.validation=0.01: no client has a whole example in it; the largest has 72 .*at least 0.014"
    ):
        experiment.dataset(config)
    config.data.update(examples=20, validation=0.5)
    with pytest.raises(ValueError, match=r"data.validation=0.5: .* the largest has 1 training examples; a client needs at least 2"):
        experiment.dataset(config)
    config.data.update(examples=None, partition="dirichlet(alpha=0.3)")
    config.data.validation = 1 / 140
    experiment.build(config)
    (line,) = [line for line in caplog.messages if line.startswith("data.validation=")]
    assert "of 20 clients hold none of the" in line


def test_classes_that_are_tested_alone_are_warned_of(caplog):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    mine = sources.from_arrays(x, np.repeat([0, 1], 30), x, np.repeat([2, 1], 30), class_names=("cat", "dog", "Cat"))
    data = federated_data.from_index(mine, [np.arange(0, 60, 2), np.arange(1, 60, 2)], [np.arange(0, 60, 2), np.arange(1, 60, 2)])
    config = fedavg.get_config("smoke")
    experiment.build(config, data)
    (line,) = [line for line in caplog.messages if "no client trains on" in line]
    assert line.endswith("arrays: 30 of 60 test examples are of classes that no client trains on: 'Cat'")


def test_a_given_model_gets_inputs_as_they_are_which_is_said(caplog):
    class Wide(nnx.Module):
        def __init__(self, classes, input_shape, *, rngs):
            self.head = nnx.Linear(int(np.prod(input_shape)), classes, rngs=rngs)

        def __call__(self, x):
            return self.head(x.reshape(len(x), -1))

    given = flax_adapter.build(Wide, "wide", classes=10, input_shape=(8, 8, 1), options={})
    config = fedavg.get_config("smoke")
    config.augment = "flip"
    experiment.build(config, model=given)
    (line,) = [line for line in caplog.messages if " is a Model" in line]
    assert "which gets inputs as they are: normalise='data' and statistics='average' do not reach it" in line
    assert line.endswith("augment='flip' trains it on pixels in [0, 1] where scores are of 0 ... 255")
    caplog.clear()
    experiment.build(config, model=Wide)
    assert not [line for line in caplog.messages if " is a Model" in line]


def test_a_cohort_larger_than_the_population_is_called_by_its_field():
    config = fedavg.get_config("smoke")
    config.cohort.size = 50
    with pytest.raises(ValueError, match=r"^cohort\.size=50 must be at most the number of clients that train, 20$"):
        experiment.build(config)
