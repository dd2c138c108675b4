"""FedSA-LoRA against a loop, and its limits."""

import chex
import jax
import numpy as np

from methods.fedsa_lora import fedsa_lora
from tests import naive, toy
from tests.methods.test_fedper import made, one
from tests.methods.test_ffa_lora import cohort, first, logits, mean, train


def oracle(rounds):
    """Returns the frozen kernel, the shared A, and each client's (B, head)."""
    kernel, w = first()
    a, own = w["a"], [{"b": w["b"], "head": w["head"]}] * toy.CLIENTS
    for r in range(rounds):
        ends = {i: train(i, r, {"a": a} | own[i], kernel) for i in cohort(r)}
        a = mean([end["a"] for end in ends.values()])
        own = [{name: ends[i][name] for name in ("b", "head")} if i in ends else own[i] for i in range(toy.CLIENTS)]
    return kernel, a, own


class FedSALoRATest(chex.TestCase):
    def test_equals_the_loop(self):
        _, _, state = toy.reference("fedsa_lora")
        _, a, own = oracle(2)
        np.testing.assert_allclose(state.server.params["adapter"]["body"]["a"], a, atol=2e-6)
        for i, expected in enumerate(own):
            params = one(state.clients[0].params, i)
            chex.assert_trees_all_close({"b": params["adapter"]["body"]["b"], "head": params["head"]}, expected, atol=2e-6)

    def test_a_client_predicts_with_the_newest_a_and_its_own_b(self):
        sim, _, state = toy.reference("fedsa_lora")
        kernel, a, own = oracle(2)
        x = toy.data().test.x
        holds = sim.client_view(sim.compiled.put(state), 3).holds["personal"]
        outputs = sim.spec.algorithm(0, sim.spec.host_arrays, 2).predict["personal"](*holds, x)
        np.testing.assert_allclose(outputs["logits"], logits({"a": a} | own[3], kernel, x), atol=5e-6)

    def test_an_unseen_client_starts_from_the_base_model(self):
        sim, _, state = toy.reference("fedsa_lora")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        client = algorithm.client_init(naive.stream(0, naive.INIT), state.server, toy.CLIENTS)
        x, (kernel, w) = toy.data().test.x, first()
        outputs = jax.device_get(algorithm.predict["personal"](state.server, client, x))
        np.testing.assert_allclose(outputs["logits"], logits({**w, "b": 0 * w["b"]}, kernel, x), atol=1e-6)

    def test_what_travels(self):
        """A alone: with FFA-LoRA's message it is FedIT's."""
        shapes, ffa = (toy.reference(name)[0].spec.shapes for name in ("fedsa_lora", "ffa_lora"))
        self.assertEqual((shapes.down, shapes.up), (4 * 5 * 2,) * 2)
        self.assertEqual(shapes.up + ffa.up, 4 * (5 * 2 + 2 * 6 + 6 * 3 + 3))

    def test_needs_an_adapter(self):
        with self.assertRaisesRegex(ValueError, "fedsa_lora needs a network with an adapter; set config.adapter"):
            made(fedsa_lora)(toy.task())
