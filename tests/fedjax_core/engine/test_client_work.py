"""The work of a client's round, counted without running it."""

import functools

import numpy as np
import pytest

from fedjax_core.engine import simulator
from fedjax_core.engine.client_work import measure_work
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from tests import toy

SIZES = np.array([len(index) for index in toy.data().train_index])
FORWARD, TRAINED = 5 * 6 + 6 * 3, 5 * 6 * 2 + 6 * 3 * 3  # products of an example: inputs have no gradient


def examples(name: str) -> np.ndarray:
    return measure_work(toy.simulate(name).spec).total()


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("fedavg", 2),
        ("scaffold", 2),
        ("fedprox", 2),
        ("fedopt", 2),
        ("local", 2),
        ("fedper", 2),
        ("fedbn", 2),
        ("fedamp", 2),
        ("ditto", 3),  # two epochs of the server's network, one of its own
        ("fedproto", 2 + (5 * 6 + 6 * 3) / TRAINED),  # and a pass for features, and their sums by class
    ],
)
def test_work_is_a_multiple_of_the_examples(name, passes):
    """As many as the metric "train/loss" counts, where all that a method does is training."""
    np.testing.assert_allclose(examples(name), passes * SIZES, rtol=1e-6)


def test_the_count_is_that_of_the_metric():
    simulation = toy.reference("fedavg")[0]
    state = simulation.init(0)
    drawn, _ = simulation.compiled.programs.draw_cohorts(simulation.compiled.device_arrays, state.key, np.int32(0))[0]
    _, (record,) = simulation.run_rounds(state, 1)
    assert record["train/examples"] == pytest.approx(examples("fedavg")[np.asarray(drawn.ids)].sum())


def test_a_part_of_the_network_costs_less():
    """FedRep trains its head for two epochs, without gradients of the body, and its body for one."""
    head, body = FORWARD + 6 * 3, FORWARD + 5 * 6 + 6 * 3
    np.testing.assert_allclose(examples("fedrep"), (2 * head + body) / TRAINED * SIZES, rtol=1e-6)


def test_each_architecture_is_measured_by_its_own():
    np.testing.assert_allclose(measure_work(toy.simulate("local", mixed=True).spec).total(), 2 * SIZES, rtol=1e-6)


def test_a_network_without_products():
    build = functools.partial(fedavg, optimizer=local_training.sgd(0.1), epochs=1, batch=4)
    task = toy.task().wrap_model(lambda model: model._replace(apply=_constant(model)))
    spec = simulator.build_spec(simulator.one_group(build, task, toy.CLIENTS), toy.data())
    with pytest.raises(ValueError, match=r"devices.profile: network 'toy6' has neither matrix products nor convolutions"):
        measure_work(spec)


def _constant(model):
    def apply(net, x, key=None, train=False, mask=None, **more):
        del key, train, mask, more
        logits = 0 * x[:, :3] + net.params["head"]["bias"][None]
        return {"logits": logits, "features": x}, net.stats

    return apply
