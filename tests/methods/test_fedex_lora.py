"""FedEx-LoRA against a loop that changes the frozen kernel, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.storage import export_model
from fedjax_core.training import adapters
from fedjax_core.training.param_partition import drop_entry
from methods.fedex_lora import fedex_lora
from methods.fedit import fedit
from tests import naive, toy
from tests.methods.test_fedper import SGD, made
from tests.methods.test_ffa_lora import EXACT, SCALE, after_one_round, cohort, first, flat, logits, mean, train


def sizes(ids):
    return [len(naive.rows(toy.data())[i][1]) for i in ids]


def kernel_of(net):
    """Returns the corrected kernel of a network of the library."""
    return np.asarray(first()[0] + SCALE * np.asarray(net.params["correction"]["body"]))


def oracle(rounds):
    kernel, w = first()
    for r in range(rounds):
        ends, share = [train(i, r, w, kernel) for i in cohort(r)], sizes(cohort(r))
        w = mean(ends, share)
        products = mean([end["a"] @ end["b"] for end in ends], share)
        kernel = kernel + SCALE * (products - w["a"] @ w["b"])
    return kernel, w


class FedExLoRATest(chex.TestCase):
    def test_equals_the_loop(self):
        _, _, state = toy.reference("fedex_lora")
        kernel, w = oracle(2)
        chex.assert_trees_all_close(flat(state.server.net), w, atol=2e-6)
        np.testing.assert_allclose(kernel_of(state.server.net), kernel, atol=2e-6)
        assert np.abs(kernel - first()[0]).max() > 1e-3

    def test_the_mean_is_exact(self):
        """The server's kernel is the mean of the kernels that clients have trained."""
        kernel, w = first()
        ends, share = [train(i, 0, w, kernel) for i in cohort(0)], sizes(cohort(0))
        want = mean([kernel + SCALE * end["a"] @ end["b"] for end in ends], share)
        net = after_one_round("fedex_lora")
        w = flat(net)
        np.testing.assert_allclose(kernel_of(net) + SCALE * w["a"] @ w["b"], want, atol=1e-6)

    def test_equal_a_is_fedit(self):
        """Then the residual is zero; so it is with one client."""
        algorithms = [made(method)(EXACT()) for method in (fedex_lora, fedit)]
        servers = [algorithm.server_init(jax.random.key(0)) for algorithm in algorithms]
        draw = lambda x, n: jax.random.normal(jax.random.key(x.size), (n, *x.shape), x.dtype)
        deltas = jax.tree.map(lambda x: draw(x, 3), servers[1].net)
        adapter = deltas.params["adapter"]["body"]
        adapter["a"] = jnp.broadcast_to(adapter["a"][:1], adapter["a"].shape)
        for number in (3, 1):
            few = jax.tree.map(lambda x, n=number: x[:n], deltas)
            members = Cohort(jnp.arange(number), jnp.array([3, 1, 7])[:number])
            after, _ = algorithms[0].server_update(servers[0], few, members, None)
            average, _ = algorithms[1].server_update(servers[1], jax.tree.map(lambda x: x.mean(0), few), members, None)
            chex.assert_trees_all_close(flat(after.net), flat(average.net), atol=1e-6)
            np.testing.assert_allclose(after.net.params["correction"]["body"], 0, atol=1e-6)

    def test_an_empty_cohort_changes_nothing(self):
        sim, _, state = toy.reference("fedex_lora")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        deltas = jax.tree.map(lambda x: np.full((2, *x.shape), np.nan, x.dtype), drop_entry(state.server.net, "correction"))
        after, _ = algorithm.server_update(state.server, deltas, Cohort(jnp.arange(2), jnp.zeros(2, int)), None)
        chex.assert_trees_all_equal(after, state.server)

    def test_what_travels(self):
        """The adapter and the head, and to clients also the sum of residuals."""
        shapes, numbers = toy.reference("fedex_lora")[0].spec.shapes, 5 * 2 + 2 * 6 + 6 * 3 + 3
        self.assertEqual((shapes.down, shapes.up), (4 * (numbers + 5 * 6), 4 * numbers))

    @parameterized.parameters("fedex_lora", "flora")
    def test_the_exported_network_has_the_corrected_kernel(self, name):
        sim, _, state = toy.reference(name)
        x, view = toy.data().test.x, sim.client_view(sim.compiled.put(state), 0)
        net = jax.device_get(export_model.find_network(view, "global", x))
        w = flat(state.server.net)
        np.testing.assert_allclose(net.params["body"]["kernel"], kernel_of(state.server.net) + SCALE * w["a"] @ w["b"], atol=1e-6)
        outputs = view.predict("global", view.holds["global"], x)["logits"]
        np.testing.assert_allclose(toy.model().apply(net, x)[0]["logits"], outputs, atol=1e-5)
        np.testing.assert_allclose(outputs, logits(w, kernel_of(state.server.net), x), atol=1e-5)

    @parameterized.parameters("fedex_lora", "flora", "hetlora")
    def test_a_bottleneck_is_refused(self, name):
        kind, model = adapters.bottleneck(rank=2, targets=("body",)), toy.model()
        net = model.init(jax.random.key(3))
        task = adapters.adapter_task(model, net, kind, "head", classes=3, population=toy.CLIENTS, shape=(5,))
        with self.assertRaisesRegex(ValueError, "a bottleneck is not linear"):
            toy.METHODS[name](task, optimizer=SGD)

    @parameterized.parameters("fedex_lora", "flora")
    def test_needs_an_adapter(self, name):
        with self.assertRaisesRegex(ValueError, f"{name} needs a network with an adapter; set config.adapter"):
            toy.METHODS[name](toy.task(), optimizer=SGD)
