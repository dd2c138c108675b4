"""HeteroFL and FedRolex in loops over clients and entries, and their limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from fedjax_core import nn
from fedjax_core.algorithm import Cohort, Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.simulation_spec import with_peer_groups
from fedjax_core.task import make_task
from fedjax_core.training.width_windows import find_widest, find_windows, put_windows, take_windows
from methods.fedrolex import fedrolex
from methods.heterofl import heterofl
from tests import naive, toy
from tests.methods.test_fedper import STEPS, ended, made

WIDE, WIDTHS = 7, (6, 7)  # of even and of odd clients


def masked_loss(params, stats, x, y, given):
    """Cross-entropy of the network whose hidden outputs are divided by the ratio; logits of absent classes are 0."""
    ratio, present = given
    z = jnp.tanh((x @ params["body"]["kernel"] + params["body"]["bias"][None]) / ratio)
    logits = z @ params["head"]["kernel"] + params["head"]["bias"][None]
    ce = naive.cross_entropy(jnp.where(present[None], logits, 0), y)
    return ce, (stats, logits, ce)


def positions(params, channels, classes):
    """Where entries of a part are in the wide network."""
    inputs, own = range(params["body"]["kernel"].shape[0]), list(channels)
    return {
        "body": {"kernel": np.ix_(inputs, own), "bias": np.ix_(own)},
        "head": {"kernel": np.ix_(own, classes), "bias": np.ix_(classes)},
    }


def oracle(rounds, rolls):
    """The wide network's parameters."""
    clients = naive.rows(toy.data())
    w = naive.arrays(toy.model(WIDE, False).init(naive.stream(0, naive.INIT)).params)
    for r in range(rounds):
        total, count = jax.tree.map(np.zeros_like, w), jax.tree.map(np.zeros_like, w)
        for i in naive.cohort(0, r, len(clients), 5):
            x, y = clients[i]
            width = WIDTHS[i % 2]
            channels = [(c + (r if rolls and width < WIDE else 0)) % WIDE for c in range(width)]
            part = positions(w, channels, range(3))
            own = {layer: {name: w[layer][name][where] for name, where in of.items()} for layer, of in part.items()}
            present = np.isin(np.arange(3), y)
            given = np.float32(width / WIDE), present
            key = naive.client_key(0, r, i)
            end = naive.train(
                None, own, {}, x, y, key, epochs=2, whole=masked_loss, given=given, batch=toy.BATCH, lr=0.1, momentum=0.5
            ).params
            sent = np.flatnonzero(present)
            for layer, entries in positions(w, channels, sent).items():
                for name, where in entries.items():
                    columns = sent if layer == "head" else slice(None)
                    total[layer][name][where] += (end[layer][name] - own[layer][name])[..., columns]
                    count[layer][name][where] += 1
        w = jax.tree.map(lambda p, d, n: p + d / np.maximum(n, 1), w, total, count)
    return w


def part_of(name, round_num):
    """The method of an even client in a round, the server's state, and where its part is."""
    sim, before, _ = toy.reference(name)
    start = round_num if name == "fedrolex" else 0
    where = positions(before.server.params, [(c + start) % WIDE for c in range(WIDTHS[0])], range(3))
    return sim.spec.algorithm(0, sim.spec.host_arrays, round_num), before.server, where


class HeteroFLTest(chex.TestCase):
    @parameterized.parameters(("heterofl", False), ("fedrolex", True))
    def test_equals_the_loops(self, name, rolls):
        _, _, state = toy.reference(name)
        chex.assert_trees_all_close(state.server.params, oracle(2, rolls), atol=5e-6)

    def test_one_width_without_masks_is_fedavg(self):
        for method in (heterofl, fedrolex):
            after = ended(made(method, epochs=2, masked=False), statistics=False).server
            sim = toy.simulate("fedavg_uniform", statistics=False)
            expected = sim.run_rounds(sim.init(0), 2)[0].server.net
            chex.assert_trees_all_equal(jax.device_get(after), jax.device_get(expected))

    def test_entries_that_nobody_holds_stay(self):
        """In a round of a narrow client alone."""
        build = made(heterofl, epochs=1)
        clients = np.arange(8)
        groups = [
            simulator.Group("narrow", build, toy.task(3, False), clients[:7]),
            simulator.Group("wide", build, toy.task(7, False), clients[7:]),
        ]
        sim = simulator.Simulator(
            simulator.build_spec(groups, toy.data(), cohort=1, plan=client_loop.Plan(1, 1), rounds_per_dispatch=2)
        )
        state = sim.init(0)
        before = jax.device_get(state.server)
        after = jax.device_get(sim.run_rounds(state, 1)[0].server)
        body, old = after.params["body"], before.params["body"]
        np.testing.assert_array_equal(body["kernel"][:, 3:], old["kernel"][:, 3:])
        np.testing.assert_array_equal(body["bias"][3:], old["bias"][3:])
        np.testing.assert_array_equal(after.params["head"]["kernel"][3:], before.params["head"]["kernel"][3:])
        self.assertTrue(np.all(body["kernel"][:, :3] != old["kernel"][:, :3]))

    def test_what_travels_falls_with_the_width(self):
        """A byte for each class says whether the client has it."""
        shapes = toy.reference("heterofl")[0].spec.shapes
        sizes = [4 * (5 * n + n + n * 3 + 3) for n in WIDTHS]
        self.assertEqual(shapes.down, np.mean(sizes))
        self.assertEqual(shapes.up, np.mean(sizes) + 3)

    @parameterized.parameters(
        (
            [toy.task(6, True), toy.task(7, True)],
            "^heterofl: network 'toy6' has batch statistics, which clients of several widths do not share; ResNets with",
        ),
        (
            [toy.task(6, False).wrap_model(lambda m: m._replace(flattened=None)), toy.task(7, False)],
            "^heterofl: network 'toy6' does not declare `flattened`, without which no narrower one can be cut of it",
        ),
        ([toy.task_in_part(6), toy.task_in_part(7)], "^heterofl cuts networks out of a wide one, and so needs weights=None"),
    )
    def test_networks_that_it_refuses(self, tasks, message):
        clients = np.arange(8)
        groups = [simulator.Group(str(g), made(heterofl), task, clients[g::2]) for g, task in enumerate(tasks)]
        with self.assertRaisesRegex(ValueError, message):
            simulator.build_spec(groups, toy.data(), cohort=5, plan=client_loop.Plan(1, 1), rounds_per_dispatch=2)

    @parameterized.parameters(("heterofl", 0), ("fedrolex", 0), ("fedrolex", 5))
    def test_a_part_trains_as_the_wide_network_under_a_mask(self, name, round_num):
        """All but the window is 0, and stays so: tanh of nothing is 0, and so are its gradients."""
        algorithm, server, where = part_of(name, round_num)
        delta, present = toy.update_client(algorithm, algorithm.broadcast(server, 0), (), 0).uplink
        mask = jax.tree.map(np.zeros_like, server.params)
        for layer, entries in where.items():
            for entry, window in entries.items():
                mask[layer][entry][window] = 1
        start, (x, y) = jax.tree.map(np.multiply, server.params, mask), naive.rows(toy.data())[0]
        given = np.float32(WIDTHS[0] / WIDE), present
        end = naive.train(None, start, {}, x, y, jax.random.key(5), epochs=2, whole=masked_loss, given=given, **STEPS).params
        for layer, entries in where.items():
            for entry, window in entries.items():
                moved = end[layer][entry] - start[layer][entry]
                np.testing.assert_allclose(delta[layer][entry], moved[window], atol=2e-6)
                np.testing.assert_array_equal(moved * (1 - mask[layer][entry]), 0)

    def test_what_narrow_clients_lack_never_moves(self):
        """In three rounds without the wide ones."""
        algorithm, begin, where = part_of("heterofl", 0)
        update, server = jax.jit(algorithm.client_update), begin
        for r in range(3):
            parts = []
            for i in (0, 2, 6):
                cohort = Cohort(jnp.int32(i), jnp.int32(toy.SIZES[i]))
                out = update(algorithm.broadcast(server, i), (), toy.client_data(i), naive.client_key(0, r, i))
                parts.append(algorithm.collect.map(out.uplink, cohort))
            collected = algorithm.collect.finalize(jax.tree.map(lambda *x: sum(x), *parts))
            server, _ = algorithm.server_update(server, collected, None, None)
        for layer, entries in where.items():
            for entry, window in entries.items():
                new, old = np.array(server.params[layer][entry]), begin.params[layer][entry].copy()
                self.assertTrue(np.all(new[window] != old[window]))
                new[window] = old[window] = 0
                np.testing.assert_array_equal(new, old)

    def test_fedrolex_whose_window_stands_is_heterofl(self):
        """Over updates that all count as the first round."""
        ends = []
        for name in ("heterofl", "fedrolex"):
            sim, before, after = toy.reference(name)
            state = before
            for _ in range(3):
                state = jax.device_get(sim.run_rounds(sim.compiled.put(state._replace(round=before.round)), 1)[0])
            ends.append(state.server)
            if name == "fedrolex":
                rolled = np.abs(
                    after.server.params["body"]["kernel"] - toy.reference("heterofl")[2].server.params["body"]["kernel"]
                )
                self.assertGreater(rolled.max(), 1e-3)
        chex.assert_trees_all_close(*ends, atol=1e-6)


@functools.cache
def network(name, narrow):
    options = {
        "mlp": ({"widths": (7, 6)}, {"widths": (4, 3)}),
        "cnn": ({"widths": (6, 5), "dense": 7}, {"widths": (4, 3), "dense": 2}),
        "resnet8": ({"width": 3, "norm": "none"}, {"width": 2, "norm": "none"}),
    }[name][narrow]
    return nn.build(name, 4, (8, 8, 2), **options)


def peers_of(*models):
    tasks = [make_task(model, classes=4, population=2) for model in models]
    build = lambda task: task
    return with_peer_groups([simulator.Group(str(g), build, task, np.array([g])) for g, task in enumerate(tasks)])[0].task


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
@pytest.mark.parametrize("start", [0, 5])
def test_a_part_is_the_wide_network_with_zeros_around_it(name, start):
    """Of a network that reads a flattened image, and of one with shortcuts."""
    wide, narrow = network(name, False), network(name, True)
    task = peers_of(narrow, wide)
    whole = find_widest(task, "x")
    windows = find_windows(whole, task.peers[0], "x")
    params = wide.init(jax.random.key(1)).params
    params = jax.tree.map(lambda p: p + 0.1 * np.arange(p.size, dtype=np.float32).reshape(p.shape) / p.size, params)  # biases too
    part = take_windows(windows, params, jnp.int32(start) if start else 0)
    chex.assert_trees_all_equal_shapes(part, jax.eval_shape(narrow.init, jax.random.key(0)).params)
    around = put_windows(windows, part, jnp.int32(start) if start else 0)
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype(np.float32)
    logits = [jax.jit(net.apply)(Net(p, {}), x)[0]["logits"] for net, p in ((wide, around), (narrow, part))]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)
    kept = jax.tree.map(lambda a, p: np.mean(np.asarray(a) == np.asarray(p)), around, params)
    assert min(jax.tree.leaves(kept)) > 0.1


def test_each_channel_is_in_as_many_windows_as_they_are_wide():
    task = peers_of(network("mlp", True), network("mlp", False))
    windows = find_windows(find_widest(task, "x"), task.peers[0], "x")
    ones = jax.tree.map(jnp.ones_like, jax.eval_shape(network("mlp", True).init, jax.random.key(0)).params)
    counts = sum(put_windows(windows, ones, t)["dense1"]["bias"] for t in range(7))
    np.testing.assert_array_equal(counts, [4] * 7)


def test_networks_that_are_no_parts():
    for other, message in (
        (nn.build("mlp", 4, (8, 8, 2), widths=(3, 300)), r"^x: dense1/bias \[7\] is no part of \[3\], that of the widest network$"),
        (nn.build("mlp", 4, (8, 8, 2), widths=(300,)), "^x: the networks 'mlp' and 'mlp' have different layers$"),
    ):
        task = peers_of(network("mlp", False), other)
        with pytest.raises(ValueError, match=message):
            find_windows(find_widest(task, "x"), task.peers[0], "x")
