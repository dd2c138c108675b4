"""Rounds of clients with their own settings: programs and bits that stay, and seconds counted in a loop over steps."""

import functools

import chex
import jax
import numpy as np
import pytest

from fedjax_core.algorithm import ClientSettings
from fedjax_core.devices import ClientDevices, DeviceProfiles
from fedjax_core.engine import client_work
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedpft import fedpft
from methods.fedrep import fedrep
from methods.pfedme import pfedme
from methods.scaffold import scaffold
from tests import toy
from tests.fedjax_core.engine.test_participation import text_of

N, SPEED, EPOCHS = toy.CLIENTS, 10.0, 3
SIZES = [len(index) for index in toy.data().train_index]
PROFILES = DeviceProfiles(*(np.full(N, value) for value in (SPEED, np.inf, np.inf, 0.5, np.inf, 0.0)))
EXACT = ClientSettings(epochs=np.full(N, 2, np.int32), batch=np.full(N + 1, toy.BATCH, np.int32))


def simulate(method=fedavg, epochs: int = EPOCHS, task=toy.task, *, takes_epochs: bool = True, plan=(1, 1), **settings):
    options = {"epochs": local_training.EpochsByClient(epochs)} if takes_epochs else {}
    return toy.Case(functools.partial(method, batch=toy.BATCH, **options), task=task).simulate(plan=plan, **settings)


def test_without_settings_programs_are_as_they_were():
    plain = text_of(toy.simulate("fedavg"))
    assert text_of(simulate(epochs=2)) == plain
    on_time = [ClientDevices(PROFILES, deadline=99.0, is_partial=is_partial) for is_partial in (False, True)]
    assert len({text_of(simulate(epochs=2, client_devices=devices)) for devices in on_time}) == 1


@pytest.mark.parametrize(("name", "method"), [("fedavg", fedavg), ("scaffold", scaffold)])
def test_one_setting_for_all_changes_no_bit(name, method):
    _, _, expected = toy.reference(name)
    simulation = simulate(method, epochs=7, client_settings=EXACT)
    after, _ = simulation.run_rounds(simulation.init(0), 2)
    chex.assert_trees_all_equal(jax.device_get(after), expected)


def test_plans_agree():
    own = ClientSettings(epochs=np.arange(N, dtype=np.int32) % 3 + 1, batch=np.append(np.arange(N) % 4 + 1, 4).astype(np.int32))
    states = []
    for plan in ((1, 1), (5, 1)):
        simulation = simulate(plan=plan, client_settings=own)
        states.append(simulation.run_rounds(simulation.init(0), 2)[0].server)
    chex.assert_trees_all_close(*states, atol=1e-5)


def count_examples(size: int, batch: int, budget: float, most: int | None) -> int:
    """Returns the examples of the steps that end within a budget of them, at most those of `most` epochs."""
    total, epoch = 0, 0
    while most is None or epoch < most:
        for start in range(0, size, batch):
            step = min(batch, size - start)
            if total + step > budget + 1e-6:
                return total
            total += step
        epoch += 1
    return total


@pytest.mark.parametrize("batch", [None, [1, 2, 3, 4, 4, 3, 2, 1]])
@pytest.mark.parametrize(("seconds", "deadline"), [(None, 1.3), (np.linspace(0.7, 3.0, N), None), (np.linspace(0.7, 3.0, N), 1.7)])
def test_clients_take_the_steps_for_which_they_have_time(seconds, deadline, batch):
    """Counted one by one; a record has the examples of the cohort that came back, and the time of its slowest."""
    devices = ClientDevices(PROFILES, deadline=deadline, is_partial=deadline is not None, seconds=seconds)
    own = None if batch is None else ClientSettings(batch=np.array([*batch, toy.BATCH], np.int32))
    simulation = simulate(client_devices=devices, client_settings=own, cohort=N)
    limits = np.full(N, np.inf if deadline is None else deadline) if seconds is None else np.minimum(seconds, deadline or np.inf)
    batch = [toy.BATCH] * N if batch is None else batch
    budgets = (limits - 0.5) * SPEED
    most = EPOCHS if seconds is None else None
    expected = np.array([count_examples(*each, most) for each in zip(SIZES, batch, budgets, strict=True)])
    has_time, seconds_of = expected > 0, simulation.spec.client_seconds
    assert seconds_of is not None
    np.testing.assert_allclose(seconds_of[has_time], 0.5 + expected[has_time] / SPEED)
    assert (seconds_of[~has_time] > limits[~has_time]).all()
    if batch == [toy.BATCH] * N:  # one program is enough
        _, (record,) = simulation.run_rounds(simulation.init(0), 1)
        assert (record["train/examples"], record["cohort"]) == (expected.sum(), has_time.sum())
        last = deadline if deadline is not None and not has_time.all() else seconds_of[has_time].max()
        assert record["simulated_seconds"] == pytest.approx(last)


def test_the_share_of_a_plan_is_whole_steps_in_float32():
    """13 of 44 steps: 13 / 44 times 44 is below 13 there."""
    steps, planned = np.array([7, 13, 1, 29, 13, 13, 13, 13]), 11 * np.array(SIZES, np.float32)
    devices = ClientDevices(PROFILES._replace(examples_per_second=steps + 0.5), deadline=1.5, is_partial=True)
    own = ClientSettings(batch=np.array([1] * N + [toy.BATCH], np.int32))
    share = simulate(epochs=11, client_devices=devices, client_settings=own).spec.host_arrays.settings.share
    assert share.dtype == np.float32
    np.testing.assert_array_equal(np.floor(share * planned), steps)


def test_work_follows_each_clients_epochs():
    simulation = simulate(client_settings=ClientSettings(epochs=np.arange(1, N + 1, dtype=np.int32)))
    np.testing.assert_allclose(client_work.measure_work(simulation.spec).total(), np.arange(1, N + 1) * SIZES, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "task", "takes_epochs"), [(fedrep, toy.task, False), (fedpft, toy.task, False), (pfedme, toy.task, True)]
)
def test_methods_of_several_trainings_end_in_time(method, task, takes_epochs):
    plain = simulate(method, 2, task, takes_epochs=takes_epochs, client_devices=ClientDevices(PROFILES))
    seconds = plain.spec.client_seconds
    assert seconds is not None
    deadline = float(np.quantile(seconds, 0.4))
    devices = ClientDevices(PROFILES, deadline=deadline, is_partial=True)
    spec = simulate(method, 2, task, takes_epochs=takes_epochs, client_devices=devices).spec
    assert spec.client_seconds is not None
    is_slow = seconds > deadline
    assert (spec.client_seconds[~is_slow] == seconds[~is_slow]).all()
    assert (spec.client_seconds[is_slow] < seconds[is_slow]).all()
    assert np.array_equal(spec.host_arrays.settings.share < 1, is_slow)


def test_settings_that_a_method_does_not_read():
    own = ClientSettings(epochs=np.ones(N, np.int32))
    with pytest.raises(ValueError, match=r"clients.epochs: fedavg does not read it; only local training by `local_training.fit`"):
        toy.simulate("fedavg", client_settings=own)
    with pytest.raises(ValueError, match=r"clients.lr: scaffold does not read it"):
        toy.simulate("scaffold", client_settings=ClientSettings(rate=np.ones(N, np.float32)))


def test_policies_without_profiles():
    with pytest.raises(ValueError, match=r"clients.seconds needs devices.profile"):
        simulate(client_devices=ClientDevices(seconds=np.ones(N)))
    with pytest.raises(ValueError, match=r"a pooled method has no clients, so it goes without config.clients$"):
        toy.simulate("centralized", client_settings=EXACT)
    with pytest.raises(ValueError, match=r"a pooled method has no clients, so it goes without config.dropout$"):
        toy.simulate("centralized", dropout=0.5)
