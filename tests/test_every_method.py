"""The contract of all methods (`fedjax_core.testing`); a new one adds a line to `toy.METHODS`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from fedjax_core import testing
from fedjax_core.algorithm import find_nets
from fedjax_core.engine import simulator
from fedjax_core.testing import case, method_contract
from fedjax_core.training import local_training
from tests import toy

REPEATED = {
    "fedavg_uniform": "is FedIT without an adapter",
    "fedhe": "is in fedhe_mixed, beside another network",
    "fedrs": "is FedLC with other numbers",
    "fedasam": "is FedSAM with another step",
    "mofedsam": "is FedCM with FedSAM's steps",
}
# By method: another that has the whole contract, and the same server and masked losses.
RELATIVES = {
    **dict.fromkeys(
        ["fedprox", "fedopt", "fedit", "fedlora", "ffa_lora", "fedavg_linear", "fedsam", "promptfl", "fedtpg"], "fedavg_ft"
    ),
    **dict.fromkeys(["fedper", "fedbn", "fedbabu", "fedsa_lora"], "fedrep"),
    "local": "fedhe_mixed",
    "feddf": "feddf_mixed",
    "fml": "fml_mixed",
    "fedrolex": "heterofl",
    "fedex_lora": "flora",
    "fedoa": "fedoa_lora",
    "fedproto": "fedproto_g",
    "mime_lite_adam": "mime_lite",
    "fedgen": "fedgen_official",
    "fedhpl": "fedhpl_mixed",
    **dict.fromkeys(["fedskc", "fedskc_released"], "fedskc_printed"),
}
ONE_PLAN = (method_contract.check_no_retrace_or_transfer, method_contract.check_rounds_learn_and_repeat)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, id=f"{name}-{check.__name__}")
        for name in toy.METHODS
        if name not in REPEATED
        for check in (ONE_PLAN if name in RELATIVES else testing.CONTRACT)
    ],
)
def test_every_method(name, check):
    """A method with a relative is checked under one plan, by the program that its own tests compare with loops."""
    check(toy.CASES[name])


def test_relatives_have_the_whole_contract():
    assert {*RELATIVES, *RELATIVES.values(), *REPEATED} <= set(toy.METHODS)
    assert not {*RELATIVES.values()} & {*RELATIVES, *REPEATED}


class EnginePlansTest(chex.TestCase):
    @parameterized.named_parameters(
        (f"{name}_{chunk}x{devices}", name, (chunk, devices))
        for name, chunk, devices in [
            *(("fedavg", *plan) for plan in [(5, 1), (1, 8), (2, 3)]),
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
        for store, states in zip(sim.offloaded_states.stores, after.clients, strict=True):
            for offloaded, expected in zip(jax.tree.leaves(store.states), jax.tree.leaves(states), strict=True):
                np.testing.assert_allclose(offloaded[store.touched], expected[store.touched], atol=1e-6, rtol=1e-6)


def test_an_optimizer_may_be_the_same_one_in_all_rounds():
    """An optax transformation stands in place of a function of the round."""
    states = []
    for optimizer in (optax.sgd(0.1), local_training.sgd(0.1)):
        sim = toy.simulate("fedavg", optimizer=optimizer)
        states.append(jax.device_get(sim.run_rounds(sim.init(0), 1)[0].server))
    chex.assert_trees_all_equal(*states)


@pytest.mark.parametrize("name", ["scaffold", "fedcm", "feddc", "qfedavg", "afl"])  # steps by a number that is computed
def test_a_network_of_bfloat16_keeps_its_type(name):
    """A round is traced, which raises where a state comes back in another type."""

    def narrow(model):
        cast = lambda net: net._replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), net.params))
        return model._replace(init=lambda key: cast(model.init(key)))

    task = lambda *arguments, **options: toy.task(*arguments, **options).wrap_model(narrow)
    compiled = case.Case(toy.METHODS[name], task=task).simulate().compiled
    state = jax.eval_shape(compiled.programs.init_state, compiled.spec.host_arrays, jax.random.key_data(jax.random.key(0)))
    after, _ = jax.eval_shape(compiled.programs.run_resident_rounds, compiled.spec.abstract_arrays, state, np.int32(1))
    assert {leaf.dtype for net in find_nets(after.server) for leaf in jax.tree.leaves(net.params)} == {jnp.dtype(jnp.bfloat16)}
