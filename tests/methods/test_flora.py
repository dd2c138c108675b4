"""FLoRA against a loop that merges each client's adapter into the kernel, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import ClientSettings, Cohort
from fedjax_core.training import adapters
from tests import naive, toy
from tests.methods.test_fedex_lora import kernel_of, sizes
from tests.methods.test_ffa_lora import EXACT, SCALE, after_one_round, cohort, first, flat, mean, train


def start(i, r, head):
    """Returns client i's new adapter of round r, with the head."""
    own = jax.device_get(EXACT().model.init(naive.client_key(0, r, i)).params["adapter"]["body"])
    assert not np.any(own["b"])
    return {"a": own["a"], "b": own["b"], "head": head}


def oracle(rounds):
    kernel, w = first()
    head = w["head"]
    for r in range(rounds):
        ends, share = [train(i, r, start(i, r, head), kernel) for i in cohort(r)], sizes(cohort(r))
        weights = np.array(share) / sum(share)
        a = np.concatenate([p * end["a"] for p, end in zip(weights, ends, strict=True)], 1)
        b = np.concatenate([end["b"] for end in ends], 0)
        kernel = kernel + SCALE * a @ b
        head = mean([end["head"] for end in ends], share)
    return kernel, head


class FLoRATest(chex.TestCase):
    def test_equals_the_loop(self):
        _, before, state = toy.reference("flora")
        kernel, head = oracle(2)
        np.testing.assert_allclose(kernel_of(state.server.net), kernel, atol=2e-6)
        chex.assert_trees_all_close(flat(state.server.net)["head"], head, atol=2e-6)
        chex.assert_trees_all_equal(state.server.net.params["adapter"], before.server.net.params["adapter"])

    def test_clients_start_at_different_draws(self):
        starts = [start(i, r, None)["a"] for i in (0, 1) for r in (0, 1)]
        for i, one in enumerate(starts):
            for other in starts[:i]:
                assert np.abs(one - other).max() > 0.1

    def test_the_mean_is_exact(self):
        kernel, w = first()
        ends = [train(i, 0, start(i, 0, w["head"]), kernel) for i in cohort(0)]
        want = mean([kernel + SCALE * end["a"] @ end["b"] for end in ends], sizes(cohort(0)))
        np.testing.assert_allclose(kernel_of(after_one_round("flora")), want, atol=1e-6)

    def test_one_client_merges_its_adapter(self):
        """Whatever an absent client has sent."""
        sim, _, state = toy.reference("flora")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        uplink = toy.update_client(algorithm, state.server.net, (), 3).uplink
        both = jax.tree.map(lambda x: np.stack([x, np.full_like(x, np.nan)]), uplink)
        members = Cohort(jnp.array([3, 0]), jnp.array([7, 0]))
        after, _ = algorithm.server_update(state.server, (both[0], uplink[1]), members, None)
        own = uplink[0]["adapter"]["body"]
        np.testing.assert_allclose(kernel_of(after.net), kernel_of(state.server.net) + SCALE * own["a"] @ own["b"], atol=2e-6)

    def test_what_travels(self):
        """Down the merged kernel, no adapter; up the adapter; the head both ways."""
        shapes, head = toy.reference("flora")[0].spec.shapes, 6 * 3 + 3
        self.assertEqual((shapes.down, shapes.up), (4 * (5 * 6 + head), 4 * (5 * 2 + 2 * 6 + head)))

    def test_new_adapters_have_the_rank_of_the_client(self):
        """Columns and rows beyond it stay zero in training, and are not sent."""
        sim, _, state = toy.reference("flora")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        data = toy.client_data(3)._replace(settings=ClientSettings(rank=jnp.int32(1)))
        sent, _ = jax.jit(algorithm.client_update)(state.server.net, (), data, naive.client_key(0, 0, 3)).uplink
        own = sent["adapter"]["body"]
        assert own["a"].shape[-1] == 2
        assert np.any(own["a"][:, 0])
        assert np.any(own["b"][0])
        assert not np.any(own["a"][:, 1])
        assert not np.any(own["b"][1])
        np.testing.assert_array_equal(adapters.count_bytes(sent, np.array([1, 2])), [4 * (5 + 6), 8 * (5 + 6)])
