"""FedPFT and FedPFT+Con in loops over clients, tokens and steps; what each phase moves; the limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core import nn
from fedjax_core.algorithm import ClientData, Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import Model, make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedpft import attend, enqueue, fedpft, info_nce
from tests import naive, toy

K, D, N_KAPPA, N_RHO, QUEUE, SIZE = toy.CLASSES, 6, 3, 2, 6, 4
LR, RATE = 0.1, 0.5
MODEL = toy.model(D)
CON = {"on": True, "prompts": N_RHO, "queue": QUEUE, "size": SIZE, "momentum": 0.9, "temperature": 0.2, "augment": ""}
BUILD = dict(optimizer=local_training.sgd(LR), prompts=N_KAPPA, transform_epochs=2, model_epochs=1, batch=toy.BATCH)


def transform(tau, f, prompts):
    """f' of one row, the first of the attention's outputs, and what it attended with."""
    tokens = [f, *prompts]
    query = f @ tau["query"]
    scores = jnp.stack([jnp.dot(query, token @ tau["key"]) / jnp.sqrt(1.0 * len(f)) for token in tokens])
    weights = jnp.exp(scores) / jnp.sum(jnp.exp(scores))
    return sum(w * (token @ tau["value"]) for w, token in zip(weights, tokens, strict=True)) @ tau["output"], weights


def transformed(tau, f, prompts, residual=True):
    return jax.vmap(lambda row: residual * row + transform(tau, row, prompts)[0])(f)


def features(phi, stats, x, train):
    return MODEL.features(Net(phi, stats), x, train=train)


def ce(p, stats, x, y, train, residual):
    f, stats = features(p["phi"], stats, x, train)
    logits = transformed(p["tau"], f, p["p_kappa"], residual) @ p["h"]["kernel"] + p["h"]["bias"][None]
    return naive.cross_entropy(logits, y), stats


def unit(v):
    return v / jnp.sqrt(jnp.sum(v * v))


def contrast(p, stats, x, copies, queue):
    f, stats = features(p["phi"], stats, x, True)
    phi, copy_stats, h_rho = copies
    g, copy_stats = features(phi, copy_stats, x, True)
    queries = transformed(p["tau"], f, p["p_rho"]) @ p["h_rho"]["kernel"] + p["h_rho"]["bias"][None]
    keys = transformed(p["tau"], g, p["p_rho"]) @ h_rho["kernel"] + h_rho["bias"][None]
    total, kept = 0.0, []
    for q, k in zip(map(unit, queries), map(unit, keys), strict=True):
        k = jax.lax.stop_gradient(k)  # "no gradient into k"
        terms = jnp.exp(jnp.concatenate([jnp.dot(q, k)[None], queue @ q]) / CON["temperature"])
        total -= jnp.log(terms[0] / jnp.sum(terms))
        kept.append(k)
    return total / len(f), (stats, copy_stats, jnp.stack(kept))


@functools.partial(jax.jit, static_argnums=(4, 5))
def ce_gradient(p, stats, x, y, train, residual):
    """Of all leaves, so that both phases have one program."""
    return jax.grad(ce, has_aux=True)(p, stats, x, y, train, residual)


@jax.jit
def con_gradient(p, stats, x, copies, queue):
    return jax.grad(contrast, has_aux=True)(p, stats, x, copies, queue)


def follow(old, new):
    return jax.tree.map(lambda o, n: CON["momentum"] * o + (1 - CON["momentum"]) * n, old, new)


class Client:
    """What one client keeps, as the engine starts it; the copies, the queue as a list, and where the next key goes."""

    def __init__(self, personal, p):
        self.p_kappa = personal.prompts
        self.head = p["h"]
        self.moco = personal.contrast != ()
        if self.moco:
            self.p_rho, self.queue, self.place = personal.contrast.prompts, list(personal.contrast.queue), 0
            self.copies = [p["phi"], {"mean": jnp.zeros(toy.INPUTS)}, p["h_rho"]]


def phase(p, stats, client, x, y, key, epochs, ce_leaves, con_leaves, train=True, residual=True, ce_weight=1.0, con_weight=1.0):
    for epoch in range(epochs):
        places = naive.order(key, epoch, len(y))
        for start in range(0, len(places), toy.BATCH):
            now = np.array(places[start : start + toy.BATCH])
            of_ce, stats_after = ce_gradient(p, stats, x[now], y[now], train, residual)
            steps = {name: jax.tree.map(lambda g: ce_weight * g, of_ce[name]) for name in ce_leaves}
            stats = stats_after if train else stats
            if client.moco:
                phi, copy_stats, h_rho = client.copies
                copies = follow(phi, p["phi"]), copy_stats, follow(h_rho, p["h_rho"])
                more, (stats, copy_stats, keys) = con_gradient(p, stats, x[now], copies, jnp.stack(client.queue))
                for name in con_leaves:
                    g = jax.tree.map(lambda g: con_weight * g, more[name])
                    steps[name] = jax.tree.map(jnp.add, steps[name], g) if name in steps else g
                client.copies = [copies[0], copy_stats, copies[2]]
                for k in keys:
                    client.queue[client.place] = k
                    client.place = (client.place + 1) % QUEUE
            for name, g in steps.items():
                rate = LR * RATE if name == "tau" else LR
                p = p | {name: jax.tree.map(lambda w, g, rate=rate: w - rate * g, p[name], g)}
    return p, stats


MODEL_LEAVES = ("phi", "tau", "h")


def local(p, stats, client, x, y, key, *, alternate=True, train=False, residual=True, first=None, r=0):
    """One client's round: Eq. 4, 5, or 8, 9, or everything at once."""
    two = jax.random.fold_in(key, 2)
    if not alternate:
        weights = {} if first is None else {"ce_weight": float(r >= first), "con_weight": float(r < first)}
        everything = (*MODEL_LEAVES, "p_kappa"), ("phi", "tau", "h_rho", "p_rho")
        return phase(p, stats, client, x, y, key, 3, *everything, residual=residual, **weights)
    train = train or client.moco
    p, stats = phase(p, stats, client, x, y, key, 2, ("tau", "p_kappa"), ("phi", "tau", "h_rho"), train, residual)
    return phase(p, stats, client, x, y, two, 1, MODEL_LEAVES, ("p_rho", "tau"), residual=residual)


def oracle(rounds, algorithm, *, personal_head=False, **switches):
    """(phi, tau, h, h_rho), stats, and the clients."""
    key = naive.stream(0, naive.INIT)
    server = algorithm.server_init(key)
    p = {"phi": {"body": server.net.params["body"]}, "h": server.net.params["head"], "tau": server.transform}
    p["h_rho"] = server.projection
    stats, data = server.net.stats, naive.rows(toy.data())
    clients = [Client(algorithm.client_init(key, server, i), p) for i in range(len(data))]
    for r in range(rounds):
        nets, sizes = [], []
        for i in naive.cohort(0, r, len(data), 5):
            (x, y), client = data[i], clients[i]
            start = p | {"p_kappa": client.p_kappa} | ({"p_rho": client.p_rho} if client.moco else {})
            start = start | ({"h": client.head} if personal_head else {})
            q, s = local(start, stats, client, x, y, naive.client_key(0, r, i), r=r, **switches)
            client.p_kappa, client.head = q["p_kappa"], q["h"]
            if client.moco:
                client.p_rho = q["p_rho"]
            nets.append(({name: q[name] for name in p}, s))
            sizes.append(len(y))
        mean, stats = naive.mean(nets, sizes)
        p = mean | ({"h": p["h"]} if personal_head else {})
    return p, stats, clients


def build(**options):
    return fedpft(toy.task(D), **BUILD | {"transform_rate": RATE} | options)


def simulate(rounds, **options):
    make = functools.partial(fedpft, **BUILD | {"transform_rate": RATE} | options)
    sim = simulator.Simulator(
        simulator.build_spec(
            simulator.one_group(make, toy.task(D), toy.CLIENTS),
            toy.data(),
            plan=client_loop.Plan(1, 1),
            rounds_per_dispatch=rounds,
            cohort=5,
        )
    )
    state, _ = sim.run_rounds(sim.init(0), rounds)
    return jax.device_get(state)


def client_round(options, personal=None, sent=None):
    """Client 0's round from the start: (sent, client before, output)."""
    held = toy.reference("fedavg")[0].spec.host_arrays
    algorithm = build(**options)
    key = jax.random.key(3)
    server = algorithm.server_init(key) if sent is None else sent
    client = algorithm.client_init(key, server, 0) if personal is None else personal
    data = ClientData(held.train, held.index[0], held.size[0])
    return server, client, jax.jit(algorithm.client_update)(server, client, data, jax.random.key(5))


def moved(a, b):
    return max(
        [float(np.abs(x - y).max(initial=0)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)], default=0.0
    )


class FedPftTest(chex.TestCase):
    @parameterized.named_parameters(
        ("plain", {}, {}),
        ("attention_alone_and_together", {"residual": False, "alternate": False}, {"residual": False, "alternate": False}),
        (
            "batch_statistics_and_a_personal_classifier",
            {"statistics": "train", "classifier": "personal"},
            {"train": True, "personal_head": True},
        ),
        ("contrast", {"contrast": CON}, {}),
        ("two_stages", {"contrast": CON | {"first": 1}, "alternate": False}, {"alternate": False, "first": 1}),
    )
    def test_equals_the_loops(self, options, switches):
        """With cached features in phase 1; here they are computed in every step."""
        state = simulate(2, **options)
        p, stats, clients = oracle(2, build(**options), **switches)
        net, rows = state.server.net, state.clients[0]
        chex.assert_trees_all_close(
            (net.params["body"], net.params["head"], net.stats), (p["phi"]["body"], p["h"], stats), atol=1e-5
        )
        chex.assert_trees_all_close((state.server.transform, state.server.projection), (p["tau"], p["h_rho"]), atol=1e-5)
        for i, client in enumerate(clients):
            np.testing.assert_allclose(rows.prompts[i], client.p_kappa, atol=1e-5)
            if rows.head != ():
                chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], rows.head), client.head, atol=1e-5)
            if client.moco:
                np.testing.assert_allclose(rows.contrast.prompts[i], client.p_rho, atol=1e-5)
                np.testing.assert_allclose(rows.contrast.queue[i], jnp.stack(client.queue), atol=2e-5)
                self.assertEqual(int(rows.contrast.place[i]), client.place)
                mine = jax.tree.map(lambda x, i=i: x[i], (rows.contrast.extractor, rows.contrast.projection))
                chex.assert_trees_all_close((*mine[0], mine[1]), tuple(client.copies), atol=1e-5)

    @parameterized.parameters((1, False, 3), (2, False, 3), (3, True, 3), (1, False, 0))
    def test_attention_equals_a_naive_one(self, heads, residual, prompts):
        rng = np.random.default_rng(0)
        tau = {n: rng.normal(size=(D, D)).astype(np.float32) for n in ("query", "key", "value", "output")}
        f, p = (rng.normal(size=(n, D)).astype(np.float32) for n in (4, prompts))
        out, weights = attend(tau, f, p, heads, residual)
        self.assertEqual(weights.shape, (4, 1 + prompts))
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
        for b in range(4):
            tokens = np.concatenate([f[b : b + 1], p]).astype(np.float64)
            parts, seen = [], []
            for h in range(heads):
                at = slice(h * D // heads, (h + 1) * D // heads)
                q, k, v = (tokens @ tau[n][:, at] for n in ("query", "key", "value"))
                w = np.exp(q @ k.T / np.sqrt(D // heads))
                w /= w.sum(1, keepdims=True)
                parts.append((w @ v)[0])
                seen.append(w[0])
            np.testing.assert_allclose(out[b], np.concatenate(parts) @ tau["output"] + residual * f[b], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(weights[b], np.mean(seen, 0), atol=1e-5)

    def test_the_queue_forgets_its_oldest_and_never_takes_padding(self):
        queue, place = jnp.full((5, 1), -1.0), jnp.int32(3)
        kept, at = [-1.0] * 5, 3
        for start, count in ((0, 4), (10, 2), (20, 0), (30, 4)):
            keys = jnp.arange(start, start + 4.0)[:, None]
            mask = jnp.arange(4) < count
            queue, place = enqueue(queue, place, jnp.where(mask[:, None], keys, jnp.nan), mask)
            for k in range(count):
                kept[at] = start + k
                at = (at + 1) % 5
        self.assertEqual(queue[:, 0].tolist(), kept)
        self.assertEqual(int(place), at)

    def test_the_contrast_of_equal_keys_is_the_log_of_their_number(self):
        ones = jnp.ones((3, 1))
        self.assertAlmostEqual(float(info_nce(ones, ones, jnp.ones((7, 1)), jnp.ones(3, bool), 0.07)), np.log(8), places=5)

    # ------------------------------------------------------------------------------------------- what each phase moves

    def test_phase_one_moves_the_transformation_and_the_prompts_alone(self):
        for statistics in ("evaluate", "train"):
            _, client, out = client_round({"model_epochs": 0, "statistics": statistics})
            delta = out.uplink
            self.assertEqual(moved(delta.net.params, jax.tree.map(jnp.zeros_like, delta.net.params)), 0)
            self.assertEqual(moved(delta.net.stats, jax.tree.map(jnp.zeros_like, delta.net.stats)) > 0, statistics == "train")
            self.assertGreater(min(np.abs(x).max() for x in jax.tree.leaves(delta.transform)), 1e-5)
            self.assertGreater(moved(client.prompts, out.state.prompts), 1e-6)

    def test_phase_two_leaves_the_prompts(self):
        _, client, out = client_round({"transform_epochs": 0})
        chex.assert_trees_all_equal(client.prompts, out.state.prompts)
        self.assertGreater(min(np.abs(x).max() for x in jax.tree.leaves(out.uplink.net.params)), 1e-6)

    def test_without_epochs_nothing_trains(self):
        for options in ({}, {"contrast": CON}, {"alternate": False}):
            _, client, out = client_round({"transform_epochs": 0, "model_epochs": 0} | options)
            self.assertFalse(any(np.any(leaf) for leaf in jax.tree.leaves(out.uplink)))
            chex.assert_trees_all_equal(out.state, client)
            self.assertEqual(out.metrics["loss"], (0, 0))

    def test_the_contrast_moves_its_own_leaves(self):
        """Phase 1 leaves h_kappa and p_rho, phase 2 p_kappa and h_rho."""
        _, client, out = client_round({"contrast": CON, "model_epochs": 0})
        self.assertEqual(np.abs(out.uplink.net.params["head"]["kernel"]).max(), 0)
        chex.assert_trees_all_equal(client.contrast.prompts, out.state.contrast.prompts)
        for part in (out.uplink.net.params["body"], out.uplink.transform, out.uplink.projection):
            self.assertGreater(min(np.abs(x).max() for x in jax.tree.leaves(part)), 1e-7)
        _, client, out = client_round({"contrast": CON, "transform_epochs": 0})
        chex.assert_trees_all_equal(client.prompts, out.state.prompts)
        self.assertEqual(max(np.abs(x).max() for x in jax.tree.leaves(out.uplink.projection)), 0)
        self.assertGreater(moved(client.contrast.prompts, out.state.contrast.prompts), 1e-7)
        self.assertGreater(np.abs(out.uplink.net.params["head"]["kernel"]).max(), 1e-5)

    def test_two_views_are_two(self):
        """With augmentation, the key's view is not the query's: the loss is not that of equal views."""
        images = Model(
            MODEL.init,
            *(lambda call: (call(MODEL.apply), call(MODEL.features)))(
                lambda of: (
                    lambda net, x, key=None, train=False, mask=None: of(
                        net, x.reshape(len(x), -1)[:, : toy.INPUTS], None, train, mask
                    )
                )
            ),
            MODEL.head,
        )
        task = make_task(images, classes=K, population=toy.CLIENTS)
        rng = np.random.default_rng(0)
        data = ClientData(
            toy.data().train._replace(x=jnp.asarray(rng.random((8, 3, 2, 1)), jnp.float32), y=jnp.zeros(8, jnp.int32)),
            jnp.arange(8),
            jnp.int32(8),
        )
        values = {}
        for text in ("", "flip(probability=1.0)", "flip(probability=0.5)"):
            algorithm = fedpft(
                task, **BUILD | {"transform_epochs": 0}, contrast=CON | {"augment": text, "momentum": 1.0, "queue": 8}
            )
            key = jax.random.key(0)
            server = algorithm.server_init(key)
            out = jax.jit(algorithm.client_update)(server, algorithm.client_init(key, server, 0), data, key)
            values[text] = float(out.metrics["contrast"][0])
        self.assertNotAlmostEqual(values["flip(probability=0.5)"], values["flip(probability=1.0)"], places=4)
        self.assertNotAlmostEqual(values["flip(probability=0.5)"], values[""], places=4)

    # ------------------------------------------------------------------------------------------- limits

    def test_without_prompts_and_phase_one_it_is_fedavg(self):
        """On extractor, transformation and classifier together."""

        def init(key):
            shared = build().server_init(key)
            return Net({**shared.net.params, "transform": shared.transform}, shared.net.stats)

        def apply(net, x, key=None, train=False, mask=None):
            f, stats = MODEL.features(Net({"body": net.params["body"]}, net.stats), x, key, train, mask)
            f, _ = attend(net.params["transform"], f, jnp.zeros((0, D)))
            return {"logits": MODEL.head(net, f), "features": f}, stats

        whole = MODEL._replace(init=init, apply=apply)
        task = make_task(whole, classes=K, population=toy.CLIENTS)
        # phase 2 draws from a key of its own, so that full batches are compared
        algorithm = build(prompts=0, transform_epochs=0, transform_rate=1.0, batch=64)
        server = algorithm.server_init(jax.random.key(3))
        out = toy.update_client(algorithm, server, algorithm.client_init(jax.random.key(3), server, 0))
        plain = fedavg(task, optimizer=local_training.sgd(LR), epochs=1, batch=64)
        expected = toy.update_client(plain, init(jax.random.key(3)), ()).uplink
        delta = Net({**out.uplink.net.params, "transform": out.uplink.transform}, out.uplink.net.stats)
        chex.assert_trees_all_close(delta, expected, atol=1e-6)

    def test_prompts_never_travel(self):
        plain, contrasting = toy.simulate("fedpft").spec.shapes, toy.simulate("fedpft_con").spec.shapes
        body = toy.INPUTS * D + D + toy.INPUTS
        self.assertEqual(plain.up, 4 * (body + 4 * D * D + D * K + K))
        self.assertEqual(plain.down, plain.up)
        self.assertEqual(contrasting.up - plain.up, 4 * (D * SIZE + SIZE))

    def test_a_personal_head_is_not_received(self):
        shapes = toy.Case(functools.partial(fedpft, prompts=3, classifier="personal", batch=toy.BATCH)).simulate().spec.shapes
        self.assertEqual(shapes.down, shapes.up)
        self.assertEqual(toy.simulate("fedpft").spec.shapes.down - shapes.down, 4 * (D * K + K))

    def test_prompts_differ_between_clients_at_first(self):
        algorithm = build(contrast=CON)
        key = jax.random.key(0)
        server = algorithm.server_init(key)
        a, b = (algorithm.client_init(key, server, i) for i in (0, 1))
        self.assertGreater(moved(a.prompts, b.prompts), 1e-3)
        self.assertGreater(moved(a.contrast.queue, b.contrast.queue), 1e-2)
        np.testing.assert_allclose(np.linalg.norm(a.contrast.queue, axis=1), 1, atol=1e-5)

    def test_prompts_start_at_their_scale(self):
        for scale in (0.02, 1.0):
            algorithm = build(contrast=CON | {"prompts": 200}, prompts=100, prompt_scale=scale)
            server = algorithm.server_init(jax.random.key(0))
            client = algorithm.client_init(jax.random.key(0), server, 0)
            for p in (client.prompts, client.contrast.prompts):
                self.assertAlmostEqual(float(jnp.std(p)), scale, delta=0.1 * scale)

    def test_counts_of_the_communication_table(self):
        """In numbers: extractor with the 7x7 stem, batch statistics counted; module; head and projection."""
        for name, d, extractor, head, projection in (
            ("resnet8", 256, 1_235_392, 25_700, 32_896),
            ("resnet10", 512, 4_911_552, 51_300, 65_664),
        ):
            net = nn.build(name, 100, (32, 32, 3), 0.0, 1.0, stem="imagenet")
            algorithm = fedpft(make_task(net, classes=100, population=40), optimizer=local_training.sgd(LR), contrast={"on": True})
            server = jax.eval_shape(algorithm.server_init, jax.random.key(0))
            count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
            body = {k: v for k, v in server.net.params.items() if k != "head"}
            self.assertEqual(count((body, server.net.stats)), extractor)
            self.assertEqual(count(server.transform), 4 * d * d)
            self.assertEqual(count(server.net.params["head"]), head)
            self.assertEqual(count(server.projection), projection)

    def test_predictions_say_what_they_attended_to(self):
        algorithm = build(contrast=CON)
        key = jax.random.key(0)
        server = algorithm.server_init(key)
        client = algorithm.client_init(key, server, 2)
        x = toy.data().test.x[:4]
        out = algorithm.predict["personal"](server, client, x)
        f, _ = features({"body": server.net.params["body"]}, server.net.stats, x, False)
        np.testing.assert_allclose(out["extractor"], f, atol=1e-6)
        for b in range(4):
            for prompts, names in (
                (client.prompts, ("features", "attention")),
                (client.contrast.prompts, ("contrast", "contrast_attention")),
            ):
                more, weights = transform(server.transform, f[b], prompts)
                for found, expected in zip(names, (f[b] + more, weights), strict=True):
                    np.testing.assert_allclose(out[found][b], expected, atol=1e-5)

    @parameterized.parameters(
        ({"prompts": -1}, "prompts=-1 must be at least 0"),
        ({"prompt_scale": 0.0}, "prompt_scale=0.0 must be positive"),
        ({"heads": 4}, "heads=4 must divide the 6 features"),
        ({"classifier": "own"}, "classifier='own' must be one of 'shared', 'personal'"),
        ({"statistics": "x"}, "statistics='x' must be one of 'evaluate', 'train'"),
        ({"transform_rate": 0.0}, "transform_rate=0.0 must be positive"),
        ({"contrast": {"on": True, "queue": 3}}, "contrast.queue=3 must be at least batch=4"),
        ({"contrast": {"augment": "flipp"}}, "unknown augmentation 'flipp'"),
        ({"contrast": {"length": 3}}, "unknown option of contrast 'length'"),
        ({"contrast": {"momentum": 1.5}}, r"contrast.momentum=1.5 must be .*in \[0, 1\]"),
        ({"contrast": {"temperature": 0.0}}, "contrast.temperature=0.0 must be positive"),
    )
    def test_bad_options(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            build(**options)
