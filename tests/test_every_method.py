"""The contract of all methods (`fedjax_core.testing`); a new one adds a line to `toy.METHODS`."""

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized

from fedjax_core import testing
from fedjax_core.engine import simulator
from fedjax_core.testing import case
from tests import toy

REPEATED = {"fedavg_uniform": "is FedIT without an adapter", "fedhe": "is in fedhe_mixed, beside another network"}
EVERY = [name for name in toy.METHODS if name not in REPEATED]


@pytest.mark.parametrize("holds", testing.CONTRACT, ids=lambda holds: holds.__name__)
@pytest.mark.parametrize("name", EVERY)
def test_every_method(name, holds):
    holds(toy.CASES[name])


class EnginePlansTest(chex.TestCase):
    @parameterized.named_parameters(
        (f"{name}_{chunk}x{devices}", name, (chunk, devices))
        for name, chunk, devices in [
            *(("fedavg", *plan) for plan in [(5, 1), (3, 1), (1, 8), (2, 3)]),
            *((name, 2, 2) for name in ("scaffold", "fedhe_mixed", "fedamp")),
        ]
    )
    def test_states_on_the_devices_agree_under_more_plans(self, name, plan):
        _, before, after = toy.reference(name)
        sim = simulator.Simulator(case.add_padding(toy.simulate(name, plan=plan).spec))
        state, _ = sim.run_rounds(sim.compiled.put(before), 2)
        chex.assert_trees_all_close(jax.device_get(state), after, atol=1e-5, rtol=1e-5)

    @parameterized.named_parameters(("scaffold", "scaffold"), ("fedhe_mixed", "fedhe_mixed"))  # references exist in their groups
    def test_states_on_the_host_are_those_on_the_device(self, name):
        """Under one plan, up to rounding between two programs."""
        _, _, after = toy.reference(name)
        sim = toy.simulate(name, hold="host")
        state, _ = sim.run_rounds(sim.init(0), 2)
        chex.assert_trees_all_close(jax.device_get(state.server), after.server, atol=1e-6, rtol=1e-6)
        for store, rows in zip(sim.offloaded_states.stores, after.clients, strict=True):
            for mine, theirs in zip(jax.tree.leaves(store.states), jax.tree.leaves(rows), strict=True):
                np.testing.assert_allclose(mine[store.touched], theirs[store.touched], atol=1e-6, rtol=1e-6)
