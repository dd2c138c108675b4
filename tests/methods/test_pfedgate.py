"""pFedGate in loops with the gate written out, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core import nn
from fedjax_core.algorithm import ClientData, Net
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.pfedgate import cut_into_blocks, pfedgate, select_blocks
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, first_round, made, one, personalised, simulate

# The toy network's tensors, in the order of its leaves, cut into at most five blocks each: (layer, name), size, blocks, length.
TENSORS = [(("body", "bias"), 6, 3, 2), (("body", "kernel"), 30, 5, 6), (("head", "bias"), 3, 3, 1), (("head", "kernel"), 18, 5, 4)]
SIZES = [min(length, size - k * length) for _, size, blocks, length in TENSORS for k in range(blocks)]
FIRST = [k == 0 for _, _, blocks, _ in TENSORS for k in range(blocks)]
L = len(SIZES)
LEAST, SHARE = 0.2, 0.5


def normalise(x, p, stats, train):
    """Batch normalisation as torch has it, and the statistics after it."""
    if not train:
        return p["bias"][None] + p["scale"][None] * (x - stats["mean"][None]) / jnp.sqrt(stats["var"][None] + 1e-5), stats
    mean, var = jnp.mean(x, 0), jnp.var(x, 0)
    moved = {
        "mean": 0.9 * stats["mean"] + 0.1 * mean,
        "var": 0.9 * stats["var"] + 0.1 * var * len(x) / max(len(x) - 1, 1),
    }
    return p["bias"][None] + p["scale"][None] * (x - mean[None]) / jnp.sqrt(var[None] + 1e-5), moved


def opened(p, stats, x, train):
    """sigmoid of the gate's outputs, and its statistics."""
    z, first = normalise(x, p["first"], stats["first"], train)
    z, last = normalise(z @ p["dense"]["kernel"] + p["dense"]["bias"][None], p["last"], stats["last"], train)
    return jax.nn.sigmoid(z), {"first": first, "last": last}


def multiplied(params, t, share=SHARE):
    """Parameters times the mask."""
    if share == 1:
        m = t
    else:
        s = jnp.maximum(t, LEAST)
        room = round((share - LEAST) * sum(size for size, first in zip(SIZES, FIRST, strict=True) if not first))
        order = jnp.argsort(-jnp.round(10 * jax.lax.stop_gradient(s)), stable=True)
        kept = jnp.asarray(FIRST, jnp.float32)
        for place in range(L):
            block = order[place]
            fits = ~jnp.asarray(FIRST)[block] & (jnp.asarray(SIZES)[block] <= room)
            kept = kept.at[block].set(jnp.where(fits, 1.0, kept[block]))
            room = room - jnp.where(fits, jnp.asarray(SIZES)[block], 0)
        m = t * kept * (1 + s - jax.lax.stop_gradient(s))
    new, at = {layer: dict(entry) for layer, entry in params.items()}, 0
    for (layer, name), size, blocks, length in TENSORS:
        each = jnp.concatenate([jnp.full(min(length, size - k * length), m[at + k]) for k in range(blocks)])
        new[layer][name] = params[layer][name] * each.reshape(params[layer][name].shape)
        at += blocks
    return new


def whole(params, stats, x, y, given):
    del given
    values, gate_stats = opened(params["gate"], stats["gate"], x, True)
    theta = multiplied({"body": params["body"], "head": params["head"]}, jnp.mean(values, 0))
    outputs, moved = MODEL.apply(Net(theta, stats["network"]), x, train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce, ({"network": moved, "gate": gate_stats}, outputs["logits"], ce)


def oracle(rounds):
    """The server's network, and every client's gate; with the gates that the simulation starts from."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    before = toy.reference("pfedgate")[1]
    gates = [tuple(one(before.clients[0], i)) for i in range(len(clients))]
    for r in range(rounds):
        deltas, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            x, y = clients[i]
            start = w[0] | {"gate": gates[i][0]}, {"network": w[1], "gate": gates[i][1]}
            end = naive.train(MODEL, *start, x, y, naive.client_key(0, r, i), epochs=2, whole=whole, **STEPS)
            gates[i] = end.params["gate"], end.stats["gate"]
            deltas.append(naive.minus(({name: end.params[name] for name in w[0]}, end.stats["network"]), w))
            share.append(len(y))
        w = naive.plus(w, naive.mean(deltas, share))
    return w, gates


@functools.cache
def cut(blocks=5):
    return cut_into_blocks(jax.eval_shape(MODEL.init, jax.random.key(0)).params, blocks)


class PFedGateTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("pfedgate")
        w, gates = oracle(2)
        chex.assert_trees_all_close(tuple(state.server), w, atol=1e-5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), gates[i], atol=1e-5)

    def test_a_client_is_scored_with_the_mask_of_its_own_rows(self):
        _, _, state = toy.reference("pfedgate")
        for i in (0, 4):
            gate = one(state.clients[0], i)
            values, _ = opened(gate.params, gate.stats, naive.rows(toy.data())[i][0], False)
            expected = multiplied(state.server.params, jnp.mean(values, 0))
            theta, _ = personalised("pfedgate", i)
            chex.assert_trees_all_close(theta.params, expected, atol=1e-6)
            zeros = sum(int(np.sum(leaf == 0)) for leaf in jax.tree.leaves(theta.params))
            self.assertGreaterEqual(zeros, 57 - 0.44 * 57 - 6)

    def test_a_client_without_rows_has_half_open_gates(self):
        sim, _, state = toy.reference("pfedgate")
        data = ClientData(jax.tree.map(jnp.asarray, sim.spec.host_arrays.train), jnp.zeros(4, jnp.int32), jnp.int32(0))
        personalise = sim.spec.algorithm(0, sim.spec.host_arrays, 2).personalise
        theta, _ = personalise(state.server, one(state.clients[0], 0), data, jax.random.key(0))
        chex.assert_trees_all_close(theta.params, multiplied(state.server.params, jnp.full(L, 0.5)), atol=1e-6)

    def test_open_gates_without_sparsity_are_fedavg(self):
        algorithm = made(pfedgate, epochs=2, sparsity=1.0, clip=1e9)(toy.task())
        w, gate, _ = first_round(pfedgate)
        wide = gate.params | {"last": {"scale": 0 * gate.params["last"]["scale"], "bias": gate.params["last"]["bias"] + 99}}
        out = toy.update_client(algorithm, w, gate._replace(params=wide))
        chex.assert_trees_all_close(out.uplink, first_round(fedavg, epochs=2)[2].uplink, atol=1e-6)

    def test_the_layout(self):
        found = cut()
        np.testing.assert_array_equal(found.size, SIZES)
        np.testing.assert_array_equal(found.first, FIRST)
        self.assertTrue(found.dense.all())
        self.assertEqual(found.pieces, [(blocks, length) for _, _, blocks, length in TENSORS])
        net = jax.eval_shape(nn.build("cnn", 10, (8, 8, 1), widths=(4,), dense=6).init, jax.random.key(0))
        dense = cut_into_blocks(net.params, 5).dense
        self.assertEqual([bool(d) for d in dense], [False] * (4 + 5) + [True] * (3 + 5 + 5 + 5))

    @parameterized.parameters(0, 1, 2)
    def test_kept_blocks(self, seed):
        """Greedily, by hand; and never more than the share that the client can afford."""
        rng = np.random.default_rng(seed)
        net = jax.eval_shape(nn.build("cnn", 10, (8, 8, 1), widths=(4,), dense=6).init, jax.random.key(0))
        found = cut_into_blocks(net.params, 5)
        score = rng.random(len(found.size)).astype(np.float32)
        expected = found.first.astype(int)
        for group in (False, True):
            rest = [b for b in range(len(score)) if found.dense[b] == group and not found.first[b]]
            room = round((SHARE - LEAST) * sum(int(found.size[b]) for b in rest))
            for b in sorted(rest, key=lambda b: -round(10 * float(score[b]))):
                if found.size[b] <= room:
                    expected[b], room = 1, room - found.size[b]
        kept = np.asarray(select_blocks(jnp.asarray(score), found, SHARE, LEAST))
        np.testing.assert_array_equal(kept, expected)
        self.assertLessEqual(kept @ found.size, SHARE * found.size.sum())

    def test_dropped_blocks_do_not_move(self):
        """In a step of one full batch; most others do."""
        _, gate, out = first_round(pfedgate, epochs=1, batch=max(toy.SIZES))
        values, _ = opened(gate.params, gate.stats, naive.rows(toy.data())[0][0], True)
        kept = np.asarray(select_blocks(jnp.maximum(jnp.mean(values, 0), LEAST), cut(), SHARE, LEAST))
        self.assertTrue(0 < kept.sum() < L)
        moved = np.concatenate([np.ravel(out.uplink.params[layer][name]) for (layer, name), *_ in TENSORS])
        np.testing.assert_array_equal(moved[np.repeat(kept, SIZES) == 0], 0)
        by_block = np.add.reduceat(np.abs(moved), np.cumsum([0, *SIZES[:-1]]))
        self.assertGreater(np.mean(by_block[kept == 1] > 0), 0.5)

    def test_dropped_blocks_have_no_gradient(self):
        params, t = MODEL.init(jax.random.key(0)).params, jnp.asarray(np.random.default_rng(0).random(L), jnp.float32)
        kept = np.asarray(select_blocks(jnp.maximum(t, LEAST), cut(), SHARE, LEAST))
        self.assertTrue(0 < kept.sum() < L)
        to_theta, to_gate = jax.grad(lambda p, t: sum(jnp.sum(x**2) for x in jax.tree.leaves(multiplied(p, t))), (0, 1))(params, t)
        flat = np.concatenate([np.asarray(to_theta[layer][name]).ravel() for (layer, name), *_ in TENSORS])
        np.testing.assert_array_equal(flat[np.repeat(kept, SIZES) == 0], 0)
        np.testing.assert_array_equal(to_gate[kept == 0], 0)

    def test_gates_are_never_averaged(self):
        _, _, state = toy.reference("pfedgate")
        came = naive.cohort(0, 1, toy.CLIENTS, 5)
        kernels = state.clients[0].params["dense"]["kernel"]
        self.assertGreater(np.abs(kernels[came[0]] - kernels[came[1]]).max(), 1e-4)

    def test_every_setting_moves_the_client(self):
        kernels = [first_round(pfedgate, **more)[2].uplink.params["body"]["kernel"] for more in ({}, {"blocks": 3}, {"clip": 0.01})]
        for other in kernels[1:]:
            self.assertGreater(np.abs(kernels[0] - other).max(), 1e-4)

    def test_what_travels(self):
        shapes = toy.reference("pfedgate")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * (57 + 5), 4 * (57 + 5)))

    @parameterized.parameters(
        (dict(sparsity=0.0), r"^sparsity=0.0 must be in \(0, 1\]$"),
        (dict(blocks=0), "^blocks=0 must be at least 1$"),
        (dict(clip=0), "^clip=0 must be positive$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(pfedgate, **arguments))

    def test_a_task_without_shape_is_refused(self):
        with self.assertRaisesRegex(ValueError, "task.shape=None: pfedgate must know"):
            pfedgate(dataclasses.replace(toy.task(), shape=None), optimizer=local_training.sgd(0.1))
