"""pFedPG in loops over clients, heads of attention and prompts; and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.nn import count_parameters
from fedjax_core.training import local_training
from methods.pfedpg import generate_prompts, init_generator, pfedpg
from tests import naive, toy

MODEL, SERVER = toy.prompted(statistics=False), 5
N, D, HEADS = toy.PROMPTS, toy.INPUTS, 2


def generated(psi, i):
    """P_i: every head of attention by itself, over the rows of the basis one by one."""
    basis, seen = psi["basis"], []
    q, k, v = (x @ psi[name]["kernel"] for name, x in (("query", psi["clients"][i][None]), ("key", basis), ("value", basis)))
    each = q.shape[1] // HEADS
    for h in range(HEADS):
        of = slice(h * each, (h + 1) * each)
        scores = [jnp.exp(jnp.sum(q[0, of] * k[row, of]) / each**0.5) for row in range(len(basis))]
        seen.append(sum(s * v[row, of] for row, s in enumerate(scores)) / sum(scores))
    shift = jnp.concatenate(seen) @ psi["out"]["kernel"] + psi["out"]["bias"]
    return jnp.stack([row + shift for row in basis])


@jax.jit
def climb(psi, i, move):
    """The generator's derivative of <P_i, delta P_i>."""
    return jax.grad(lambda psi: jnp.sum(generated(psi, i) * move))(psi)


def learnt(psi, moves, lr):
    """A step: for each client, the generator's derivative of <P_i, delta P_i>, which it climbs."""
    total = jax.tree.map(jnp.zeros_like, psi)
    for i, move in moves.items():
        total = naive.plus(total, climb(psi, i, move))
    return naive.plus(psi, total, lr)


def oracle(rounds, psi):
    """(generator, all clients' networks without prompts)."""
    clients = naive.rows(toy.data())
    first = MODEL.init(naive.stream(0, naive.INIT))
    mine = [({name: p for name, p in first.params.items() if name != "prompts"}, first.stats) for _ in clients]
    for r in range(rounds):
        moves = {}
        for i in naive.cohort(0, r, len(clients), 5):
            begun, (params, stats) = generated(psi, i), mine[i]
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, chosen=("prompts", "head"))
            end = naive.train(MODEL, params | {"prompts": begun}, stats, *clients[i], naive.client_key(0, r, i), **settings)
            moves[i] = end.params["prompts"] - begun
            mine[i] = {name: p for name, p in end.params.items() if name != "prompts"}, end.stats
        psi = learnt(psi, moves, 0.5)
    return psi, mine


def small(seed=0, clients=8):
    basis = jnp.asarray(np.random.default_rng(seed).normal(size=(N, D)), jnp.float32)
    return init_generator(jax.random.key(seed), basis, clients, 4)


def step(psi, deltas, cohort=None, **arguments):
    """The server's."""
    arguments = dict(heads=HEADS, inner=4, optimizer=local_training.sgd(0.1)) | arguments
    algorithm = pfedpg(toy.task_with_prompts(), **arguments)
    cohort = cohort or Cohort(jnp.array([6, 1]), jnp.array([3, 3]))
    return jax.jit(algorithm.server_update)(psi, deltas, cohort, jax.random.key(0))[0]


def deltas(seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(2, N, D)), jnp.float32)


class PFedPGTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, before, after = toy.reference("pfedpg")
        psi, mine = oracle(2, before.server)
        body = jax.device_get(MODEL.init(naive.stream(0, naive.INIT))).params["body"]
        chex.assert_trees_all_close(after.server, psi, atol=1e-5)
        for i in range(toy.CLIENTS):
            found = jax.tree.map(lambda x, i=i: x[i], after.clients[0])
            chex.assert_trees_all_close(tuple(found), mine[i], atol=1e-5)
            chex.assert_trees_all_equal(found.params["body"], body)
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.server, after.server)
        self.assertGreater(min(jax.tree.leaves(moved)), 1e-6)  # every part of the generator learns

    def test_prompts_are_generated_as_in_the_loops(self):
        psi = small()
        for i in (0, 5):
            chex.assert_trees_all_close(generate_prompts(psi, jnp.int32(i), HEADS), generated(psi, i), atol=1e-6)

    def test_a_step_nears_what_the_client_made(self):
        psi = small()
        aim = generated(psi, 6) + 0.1 * deltas()[0]
        after = step(psi, 0.1 * deltas(), Cohort(jnp.array([6, 1]), jnp.array([3, 0])), server_lr=0.05)
        before, now = (float(jnp.sum((generated(p, 6) - aim) ** 2)) for p in (psi, after))
        self.assertLess(now, before)
        chex.assert_trees_all_equal(after["clients"][1], psi["clients"][1])  # who did not come has no say

    def test_without_moves_or_a_rate_the_generator_stays(self):
        psi = small()
        chex.assert_trees_all_equal(step(psi, jnp.zeros((2, N, D))), psi)
        chex.assert_trees_all_equal(step(psi, deltas(), server_lr=0.0), psi)

    def test_with_a_silent_attention_prompts_are_averaged(self):
        """W_O = 0: everybody gets the basis, and with alpha = 1 / m it moves by the mean delta."""
        psi = small()
        psi["out"] = jax.tree.map(jnp.zeros_like, psi["out"])
        chex.assert_trees_all_close(generate_prompts(psi, jnp.int32(3), HEADS), psi["basis"], atol=1e-7)
        after = step(psi, deltas(), server_lr=0.5)
        chex.assert_trees_all_close(after["basis"], psi["basis"] + jnp.mean(deltas(), 0), atol=1e-6)

    def test_a_client_predicts_by_its_newest_prompts(self):
        sim, _, after = toy.reference("pfedpg")
        view, x = sim.client_view(sim.compiled.put(after), 3), toy.data().test.x[:4]
        mine = jax.tree.map(lambda p: p[3], after.clients[0])
        net = mine._replace(params=mine.params | {"prompts": generated(after.server, 3)})
        found = view.predict("personal", view.holds["personal"], x)["logits"]
        chex.assert_trees_all_close(found, MODEL.apply(net, x)[0]["logits"], atol=1e-5)
        local = sim.client_view(sim.compiled.put(after), 3, trained=True)
        self.assertGreater(np.abs(local.predict("personal", local.holds["personal"], x)["logits"] - found).max(), 1e-3)

    def test_numbers(self):
        """With FedHPL's five clients and ten prompts of ViT-B/16 (Tables 5 and 9): 7,680 up; 1.512 and 1.526 of 2^20."""
        psi = jax.eval_shape(lambda: init_generator(jax.random.key(0), jnp.zeros((10, 768)), 5, 512))
        self.assertEqual(count_parameters(psi), 1_585_152)
        self.assertEqual(count_parameters(psi["basis"]), 7_680)
        self.assertEqual(round(count_parameters(psi) / 2**20, 3), 1.512)
        for classes, millions in ((10, 1.526), (100, 1.592)):
            self.assertEqual(round((count_parameters(psi) + 7_680 + 769 * classes) / 2**20, 3), millions)
        shapes = toy.reference("pfedpg")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * N * D, 4 * N * D))

    def test_a_network_without_such_prompts_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"params\['prompts'\] of toy6 is None; pfedpg needs prompts \[n, D\]"):
            pfedpg(toy.task(), optimizer=local_training.sgd(0.1))

    @parameterized.parameters(
        (dict(heads=3), "heads=3 must divide inner=4"),
        (dict(heads=0), "heads=0 must be at least 1"),
        (dict(server_lr=-1.0), "server_lr=-1.0 must be at least 0"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            step(small(), deltas(), **arguments)
