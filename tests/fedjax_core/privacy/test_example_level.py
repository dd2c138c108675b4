"""Privacy of single examples: accounting per client, and which methods it protects."""

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.algorithm import ClientData, ClientOutput, Examples
from fedjax_core.experiment.example_privacy import ParticipationCounter
from fedjax_core.privacy import ExampleLedger, budget
from fedjax_core.storage.json_files import read_json, read_jsonl
from fedjax_core.training import local_training
from fedjax_core.training.private_gradient import ExamplePrivacy
from methods.fedavg import fedavg as fedavg_method
from tests import naive, toy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="jax-privacy is not installed")
SIZES, EPOCHS, BATCH = np.array([30, 7, 64, 0]), 2, 10
PRIVACY = {"level": "example", "mechanism": "gaussian", "clip": 1.0, "noise": 1.1, "delta": 1e-5}
TIMES = np.array([1, 2, 0, 3])  # participations a round, on average over rounds: exact in the tests


def ledger(noise: float = 1.2, accountant: str = "pld") -> ExampleLedger:
    return ExampleLedger(noise, 1.0, 1e-5, accountant, SIZES, EPOCHS, BATCH, 8, lambda done: done * TIMES)


def private(rounds: int = 2, **given: Any) -> Any:
    config = fedavg.get_config("smoke")
    config.rounds, config.data.examples, config.normalise = rounds, 60, "unit"
    config.method.update(epochs=2, batch=4)
    config.cohort.size = 4
    config.privacy.update(PRIVACY | given)
    return config


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_dp_accounting_for_each_client(accountant: str):
    """Clients of 30 and 64 examples have Poisson minibatches; one of 7 takes all of them in every step."""
    dp_accounting = importlib.import_module("dp_accounting")
    for room in ("pld", "rdp"):
        importlib.import_module(f"dp_accounting.{room}")
    expected = []
    for size, times in zip(SIZES.tolist(), TIMES.tolist(), strict=True):
        steps = 3 * times * EPOCHS * -(-size // BATCH)
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        peer = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
        if accountant == "pld":
            peer = dp_accounting.pld.PLDAccountant(relation)
        event = dp_accounting.GaussianDpEvent(1.2)
        if steps:
            peer.compose(dp_accounting.PoissonSampledDpEvent(BATCH / size, event) if size > BATCH else event, steps)
        expected.append(peer.get_epsilon(1e-5) if steps else 0.0)
    np.testing.assert_allclose(ledger(accountant=accountant).client_epsilons(3), expected, rtol=2e-3)
    assert ledger(accountant=accountant).epsilon(3) == pytest.approx(max(expected), rel=2e-3)


def test_calibrated_noise_is_the_least_that_keeps_the_budget():
    calibrated = ledger(accountant="rdp").calibrate(3.0)
    assert 2.99 < calibrated.epsilon(8) <= 3.0
    assert calibrated._replace(noise=calibrated.noise - 2e-4).epsilon(8) > 3.0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_largest_epsilon_is_that_of_all_clients(accountant: str):
    rng = np.random.default_rng(0)
    sizes, times = rng.integers(1, 90, 25), rng.integers(0, 4, 25)
    many = ledger(accountant=accountant)._replace(sizes=sizes, count_participations=lambda done: done * times)
    assert many.epsilon(2) == pytest.approx(many.client_epsilons(2).max())


def test_all_steps_that_a_client_takes_are_accounted_for():
    """FL-bench's #200 counts one step an epoch, and takes one for each minibatch of the epoch."""
    dp_accounting = importlib.import_module("dp_accounting")
    rdp = importlib.import_module("dp_accounting.rdp")
    fit = local_training.fit(
        local_training.model_loss(toy.model(statistics=False)),
        local_training.track_mean_gradient(),
        epochs=EPOCHS,
        batch=BATCH,
    )
    x = jax.numpy.zeros((64, toy.INPUTS))
    data = ClientData(
        Examples(x, jax.numpy.zeros(64, int)), jax.numpy.arange(64), jax.numpy.int32(64), privacy=ExamplePrivacy(1.0, 1.0)
    )
    net = toy.model(statistics=False).init(jax.random.key(0))
    noisy_steps = [int(fit(net, data._replace(size=jax.numpy.int32(n)), jax.random.key(1)).optimizer_state.steps) for n in SIZES]
    own = ledger()._replace(count_participations=lambda done: np.full(4, done))
    assert own.local_steps(1).tolist() == noisy_steps
    step = dp_accounting.PoissonSampledDpEvent(BATCH / 64, dp_accounting.GaussianDpEvent(1.2))
    underestimate = rdp.RdpAccountant().compose(step, 8 * EPOCHS * 1).get_epsilon(1e-5)
    assert own._replace(accountant="rdp").client_epsilons(8)[2] > 1.5 * underestimate


def test_participations_are_those_of_the_run():
    config = private(rounds=3)
    config.cohort.size, config.cohort.fraction = 8, None
    simulator = experiment.build(config)
    counter = ParticipationCounter(simulator.spec.sampler, 0)
    population = simulator.spec.population
    drawn = np.concatenate([naive.cohort(0, r, population, 8) for r in range(3)])
    np.testing.assert_array_equal(counter(3), np.bincount(drawn, minlength=population))
    assert (counter(3) >= counter(1)).all()
    assert counter(1).max() == 1


def test_a_run_has_the_epsilon_of_its_clients(tmp_path: Path):
    told: list[str] = []
    experiment.execute(private(noise=None, epsilon=6.0, accountant="rdp"), str(tmp_path), progress=False, console=told.append)
    records = read_jsonl(tmp_path / "metrics.jsonl")
    epsilons = [record["privacy/epsilon"] for record in records]
    assert 0 < epsilons[0] <= epsilons[1] <= 6.0
    assert epsilons[1] > 5.98
    facts = read_json(tmp_path / "summary.json")["facts"]["privacy"]
    assert facts["neighbours"] == "zero out one example of one client"
    assert facts["client_epsilons_rdp"]["highest"] == pytest.approx(epsilons[1])
    assert facts["client_epsilons_rdp"]["median"] < epsilons[1], "clients spend different amounts"
    assert any(line.startswith("privacy  epsilon") and "local steps" in line for line in told)
    with pytest.raises(ValueError, match="holds a run with other privacy"):  # it needs more noise
        experiment.execute(private(rounds=12, noise=None, epsilon=6.0, accountant="rdp"), str(tmp_path), progress=False)


@pytest.mark.parametrize("name", ["scaffold", "fedper", "moon"])
def test_methods_that_send_what_private_training_computes_are_accepted(name: str):
    config = experiment.load_config(f"{name}:smoke")
    config.normalise, config.data.examples = "unit", 60
    config.privacy.update(PRIVACY)
    assert experiment.build(config).spec.example_privacy == ExamplePrivacy(1.0, 1.1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedproto", "fedproto reads examples in other ways, on which part"),
        ("qfedavg", "qfedavg reads examples in other ways"),
        ("fedala", "fedala calls its local training in a loop or a branch of its own"),
    ],
)
def test_methods_that_read_examples_otherwise_are_refused_by_name(name: str, reason: str):
    config = experiment.load_config(f"{name}:smoke")
    config.normalise, config.data.examples = "unit", 60
    config.privacy.update(PRIVACY)
    with pytest.raises(ValueError, match=reason):
        experiment.build(config)


def fedavg_of_two(task, **options):
    """Builds FedAvg whose clients train two networks by vmap, and send the first."""
    algorithm = fedavg_method(task, **options)

    def client_update(sent, state, data, key):
        both = jax.vmap(lambda key: algorithm.client_update(sent, state, data, key))(jax.random.split(key, 2))
        return jax.tree.map(lambda leaf: leaf[0], both)

    return algorithm._replace(client_update=client_update)


def fedavg_of_gradients(task, **options):
    """Builds FedAvg whose clients send a mean of gradients by vmap, of networks that do not move."""
    algorithm = fedavg_method(task, **options)
    optimizer = optax.chain(local_training.track_mean_gradient(), optax.set_to_zero())
    train = local_training.fit(local_training.supervised_loss(task), optimizer, epochs=options["epochs"], batch=options["batch"])

    def client_update(sent, state, data, key):
        both = jax.vmap(lambda key: train(sent, data, key))(jax.random.split(key, 2))
        mean = jax.tree.map(lambda leaf: leaf.mean(0), both.optimizer_state[0].mean)
        return ClientOutput(state, sent._replace(params=mean), jax.tree.map(lambda leaf: leaf[0], both.sums))

    return algorithm._replace(client_update=client_update)


def fedavg_of_half(task, **options):
    """Builds FedAvg whose clients train on the first half of their examples."""
    algorithm = fedavg_method(task, **options)
    half = lambda data: data._replace(size=data.size // 2)
    return algorithm._replace(client_update=lambda sent, state, data, key: algorithm.client_update(sent, state, half(data), key))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (fedavg_of_two, "fedavg_of_two trains several networks at once by vmap"),
        (fedavg_of_half, "fedavg_of_half trains on a part of the client's examples"),
        (fedavg_of_gradients, "fedavg_of_gradients trains several networks at once by vmap"),
    ],
)
def test_trainings_that_the_ledger_would_miscount_are_refused_by_name(method: Any, reason: str):
    with pytest.raises(ValueError, match=reason):
        experiment.build(private(), method=functools.partial(method, epochs=1, batch=4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy.mechanism": "adaptive"}, "two clips and have two epsilons"),
        ({"privacy.cohort": 100}, "privacy.cohort=100 has no effect"),
        ({"aggregation.not_finite": "leave_out"}, "decides by exact losses"),
        ({"normalise": "data"}, "epsilon would not include them"),
        ({"regularizers": ("decorrelation(coefficient=0.1)",)}, "compare the examples of a minibatch"),
        ({"models": ("resnet8",), "data.size": 8}, "batch normalisation"),
        ({"optimizer.sharpness": "sam(rho=0.05)"}, "sharpness-aware steps take two gradients"),
        ({"clients.epochs": 3}, "clients.epochs and privacy.level='example'"),
        ({"clients.batch": 2}, "clients.batch and privacy.level='example'"),
        ({"cohort.sampling": "size"}, "participations are counted before training"),
        ({"privacy.level": "group"}, "'client'"),
        ({"privacy.delta": None}, "needs privacy.delta"),
    ],
)
def test_settings_without_a_guarantee_are_refused(changes: dict[str, Any], reason: str):
    config = private()
    with config.unlocked():
        for field, value in changes.items():
            config.update_from_flattened_dict({field: value})
    with pytest.raises(ValueError, match=reason):
        experiment.build(config)


def test_simulated_seconds_do_not_depend_on_micro_batches():
    seconds = []
    for batch in (16, 32):  # one micro-batch, and two
        config = private()
        config.data.examples, config.method.batch, config.devices.profile = 640, batch, "constant(examples_per_second=1)"
        seconds.append(experiment.build(config).spec.client_seconds)
    np.testing.assert_allclose(*seconds, rtol=0.02)


def test_levels_are_in_the_settings():
    assert budget.LEVELS == ("client", "example")
