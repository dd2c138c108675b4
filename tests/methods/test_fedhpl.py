"""FedHPL in loops over clients, classes and examples, and its limits; frozen backbones are held once and never move."""

import dataclasses
import functools
from typing import Any

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core import nn
from fedjax_core.algorithm import ClientData, Cohort, Examples, Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.flop_count import inner_jaxprs
from fedjax_core.task import make_partial_task
from fedjax_core.training import aggregators, local_training, metrics
from fedjax_core.uplink import unwrap
from methods.fedavg import fedavg
from methods.fedbabu import fedbabu
from methods.fedhpl import Sent, fedhpl, mean_by_shape, weighted_logits
from methods.fedper import fedper
from methods.fedprox import fedprox
from methods.fedrep import fedrep
from methods.local import local
from methods.scaffold import scaffold
from tests import naive, toy
from tests.fedjax_core.training.test_aggregators import C, cases, close, drawn, naive_mean, often, streamed
from tests.methods.test_local import of

K, N = toy.CLASSES, toy.CLIENTS
WIDTHS = 6, 7
MODELS = tuple(toy.task_in_part(width).model for width in WIDTHS)
SGD = local_training.sgd(0.1, momentum=0.5)


def distillation(logits, y, given):
    """gamma times the mean over the batch of KL(teacher || own) at the temperature, 0 for rows whose class nobody sent."""
    gamma, temperature, taught, known = given
    p = jnp.exp(taught[y] / temperature)
    q = jnp.exp(logits / temperature)
    p, q = p / jnp.sum(p, 1, keepdims=True), q / jnp.sum(q, 1, keepdims=True)
    return gamma * jnp.sum(known[y] * jnp.sum(p * jnp.log(p / q), 1)) / len(y)


@functools.cache
def evaluated(model):
    return jax.jit(lambda net, x: model.apply(net, x)[0]["logits"])


def predictions(model, w, x):
    """Logits in evaluation mode, padded to one shape so that they are compiled once."""
    padded = np.pad(x, ((0, max(toy.SIZES) - len(x)), (0, 0)))
    return np.asarray(evaluated(model)(Net(*w), padded))[: len(x)]


def oracle(seed, rounds, kinds, *, dims=True, uploaded=True, everything=False, average=(), gamma=1.0, temperature=2.0, dropout=0.0):
    """Networks of all clients; global logits by (client, class); averages by (entry, width); known classes after each round.

    `kinds`: which of MODELS each client has.
    """
    clients = naive.rows(toy.data())
    w = [tuple(MODELS[kind].init(naive.stream(seed, naive.INIT))) for kind in kinds]
    d = [WIDTHS[kind] for kind in kinds]
    taught, shared, history = {}, {}, []
    for r in range(rounds):
        came = naive.cohort(seed, r, N, 5, dropout)
        sent = {}
        for i in came:
            params = {name: shared.get((name, d[i]), w[i][0][name]) if name in average else w[i][0][name] for name in w[i][0]}
            teacher = np.array([taught.get((i, c), np.zeros(K)) for c in range(K)], np.float32)
            known = np.array([(i, c) in taught for c in range(K)], np.float32)
            given = jnp.float32(gamma), jnp.float32(temperature), teacher, known
            settings: dict[str, Any] = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            key = naive.client_key(seed, r, i)
            trained = naive.train(MODELS[kinds[i]], params, w[i][1], *clients[i], key, term=distillation, given=given, **settings)
            w[i] = trained.params, trained.stats
            logits = predictions(MODELS[kinds[i]], w[i], clients[i][0])
            sent[i] = [(y, p) for y, p in zip(clients[i][1], logits, strict=True) if everything or np.argmax(p) == y]
        if came:
            taught = {}
            for k in range(N):
                for c in range(K):
                    above, below = np.zeros(K), 1.0
                    for j in came:
                        beta = min(d[k] / d[j], d[j] / d[k]) if dims else 1.0
                        own = [p for y, p in sent[j] if y == c]
                        for p in own:
                            above = above + beta * p
                        below += beta * (len(own) if uploaded else sum(clients[j][1] == c))
                    if any(y == c for j in came for y, _ in sent[j]):
                        taught[k, c] = above / below
        for name in average:
            for width in {d[i] for i in came}:
                alike = [i for i in came if d[i] == width]
                shared[name, width] = naive.mean([w[i][0][name] for i in alike], [len(clients[i][1]) for i in alike])
        history.append({c for k, c in taught if k == 0})
    return w, taught, shared, history


def build(**options):
    return functools.partial(fedhpl, **{"optimizer": SGD, "temperature": 2.0, "epochs": 2, "batch": toy.BATCH} | options)


def simulate(make, groups, seed=0, rounds=2, **settings):
    """After some rounds; `groups` is (width, clients) by group."""
    groups = [simulator.Group(f"{n}: {d}", make, toy.task_in_part(d), np.array(ids)) for n, (d, ids) in enumerate(groups)]
    sim = simulator.Simulator(
        simulator.build_spec(
            groups, toy.data(), **{"plan": client_loop.Plan(1, 1), "cohort": 5, "rounds_per_dispatch": 4} | settings
        )
    )
    state, records = sim.run_rounds(sim.init(seed), rounds)
    return sim, jax.device_get(state), records


MIXED = (6, range(0, N, 2)), (7, range(1, N, 2))
KINDS = [i % 2 for i in range(N)]


def compare(case, state, expected, of_client, rows):
    """The server's and the clients' states with the oracle's; `rows` is each client's row of the teachers."""
    w, taught, _, _ = expected
    for k in range(N):
        for c in range(K):
            known = (k, c) in taught
            case.assertEqual(bool(state.server.known[c]), known)
            if known:
                np.testing.assert_allclose(state.server.teacher[rows[k], c], taught[k, c], atol=1e-5)
        chex.assert_trees_all_close(of_client(k), w[k], atol=1e-5)


class FedHPLTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedhpl")
        expected = oracle(0, 2, [0] * N)
        compare(self, after, expected, lambda i: tuple(jax.tree.map(lambda x: x[i], after.clients[0])), [0] * N)

    def test_equals_the_loops_with_two_architectures_averages_and_all_logits_sent_one_by_one(self):
        _, _, after = toy.reference("fedhpl_mixed")
        average = ("prompts", "head")
        expected = oracle(0, 2, KINDS, uploaded=False, average=average)
        compare(self, after, expected, functools.partial(of, after), KINDS)
        forms = [(name, width) for width in WIDTHS for name in average]
        for form, (mean, heard) in zip(forms, after.server.shared, strict=True):
            self.assertEqual(bool(heard), form in expected[2])
            if heard:
                chex.assert_trees_all_close(mean, expected[2][form], atol=1e-5)
        self.assertTrue(all(form in expected[2] for form in forms))

    def test_plain_averages_of_wrong_logits_too_and_classes_that_nobody_sends(self):
        """So few come back that in one round a class that was known is not sent, and in another nobody comes."""
        rows = naive.rows(toy.data())

        def sent(seed):
            """By round, how many classes those who come have."""
            return [len({y for i in naive.cohort(seed, r, N, 5, 0.8) for y in rows[i][1]}) for r in range(4)]

        fits = lambda found: 0 in found[1:3] and found[3] and any(0 < n < K for n in found[:3])
        seed = next(seed for seed in range(999) if fits(sent(seed)))
        expected = oracle(seed, 4, KINDS, dims=False, everything=True, dropout=0.8, gamma=3.0)
        self.assertTrue(any(0 < len(known) < K for known in expected[3]))
        make = build(weighting="uniform", logits="all", gamma=3.0)
        _, state, _ = simulate(make, MIXED, seed, 4, dropout=0.8)
        compare(self, state, expected, functools.partial(of, state), KINDS)

    def test_groups_in_any_order_and_of_any_number_are_the_same(self):
        """Networks of one width in one group, or divided into two that are not in the order of their clients."""
        one = toy.reference("fedhpl")[2]
        halves = (1, 2, 5, 7), (0, 3, 4, 6)
        _, two, _ = simulate(functools.partial(toy.METHODS["fedhpl"], optimizer=SGD), [(6, ids) for ids in halves])
        chex.assert_trees_all_close(one.server, two.server, atol=1e-6)
        for ids, rows in zip(halves, two.clients, strict=True):
            chex.assert_trees_all_close(jax.tree.map(lambda x, ids=ids: x[np.array(ids)], one.clients[0]), rows, atol=1e-6)


def algorithm(**options):
    return build(**options)(toy.task_in_part())


@functools.cache
def updates(make=fedhpl, **options):
    """(sent, net) -> client 0's round; compiled once for each setting."""
    options = ({"temperature": 2.0} if make is fedhpl else {}) | options
    made = make(toy.task_in_part(), optimizer=SGD, epochs=2, batch=toy.BATCH, **options)
    held = toy.reference("fedhpl")[0].compiled.device_arrays
    key = naive.client_key(0, 0, 0)
    data = lambda held: ClientData(held.train, held.index[0], held.size[0])
    return functools.partial(jax.jit(lambda held, sent, net: made.client_update(sent, net, data(held), key)), held)


def alone(make, groups=None, **settings):
    """A simulation of the toy federation over prompts and heads."""
    groups = groups or simulator.one_group(make, toy.task_in_part(), N)
    return simulator.Simulator(
        simulator.build_spec(groups, settings.pop("data", toy.data()), plan=client_loop.Plan(1, 1), **settings)
    )


def teacher(shared=(), known=(True, True, True)):
    return Sent(jnp.asarray(np.random.default_rng(0).normal(size=(K, K)), jnp.float32), jnp.asarray(known), shared)


class ClientTest(chex.TestCase):
    def test_means_of_classes_say_what_all_logits_say(self):
        net, sent = MODELS[0].init(jax.random.key(1)), teacher()
        for options in ({}, {"logits": "all", "denominator": "local"}):
            collected = []
            for compress in (True, False):
                out = updates(compress=compress, **options)(sent, net)
                lifted = algorithm(compress=compress, **options).collect[0].map(out.uplink[0], Cohort(jnp.int32(0), jnp.int32(9)))
                collected.append(lifted)
                counts = lifted[2]
                np.testing.assert_allclose(out.metrics["logits_sent"][0], counts.sum())
            chex.assert_trees_all_close(*collected, atol=1e-5)
            self.assertEqual(counts.sum() == toy.SIZES[0], "logits" in options)
            self.assertGreater(counts.sum(), 1)

    def test_without_a_teacher_or_gamma_it_is_local(self):
        net = MODELS[0].init(jax.random.key(1))
        out = updates()(teacher(known=(False,) * K), net)
        self.assertEqual(float(out.metrics["distillation"][0]), 0)
        alone = updates(local)((), net).state
        for same in (out, updates(gamma=0.0)(teacher(), net)):
            chex.assert_trees_all_close(same.state, alone, atol=1e-6)

    def test_averages_take_the_place_of_what_they_are_of(self):
        net, other = MODELS[0].init(jax.random.key(1)), MODELS[0].init(jax.random.key(2))
        made = algorithm(average=("head",))
        x = toy.data().test.x
        for heard in (True, False):
            sent = teacher(((other.params["head"], jnp.bool(heard)),))
            mine = net.params | {"head": other.params["head"]} if heard else net.params
            wanted = MODELS[0].apply(Net(mine, {}), x)[0]["logits"]
            np.testing.assert_allclose(made.predict["personal"](sent, net, x)["logits"], wanted, atol=1e-6)

    def test_what_was_just_trained_is_scored_after_training(self):
        """Not the averages that the round began with, in its place."""
        net, other = MODELS[0].init(jax.random.key(1)), MODELS[0].init(jax.random.key(2))
        average, x = ("prompts", "head"), toy.data().test.x
        out = updates(average=average)(teacher(tuple((other.params[name], jnp.bool(True)) for name in average)), net)
        found = algorithm(average=average).predict["personal"](*out.local, x)["logits"]
        np.testing.assert_allclose(found, MODELS[0].apply(out.state, x)[0]["logits"], atol=1e-6)

    def test_who_is_left_out_teaches_nothing(self):
        """Also where its logits travel row by row: what stands in their place is class 0 throughout."""
        data = toy.data()
        x, gone = np.array(data.train.x), 3
        x[np.asarray(data.train_index[gone])[: toy.SIZES[gone]]] = np.nan
        data, teachers = dataclasses.replace(data, train=Examples(x, data.train.y)), []
        for compress in (True, False):
            make = build(compress=compress)
            sim = alone(make, data=data, leave_out=True)
            state, (record,) = sim.run_rounds(sim.init(0), 1)
            self.assertEqual(record["server/left_out"], 1)
            teachers.append(jax.device_get(unwrap(state.server)).teacher)
        chex.assert_trees_all_close(*teachers, atol=1e-5)

    def test_what_travels(self):
        def numbers(**options):
            sim = alone(build(**options))
            return sim.spec.shapes.up / 4, sim.spec.shapes.down

        self.assertEqual(numbers(), (K * (K + 1), 4 * K * K + K))
        self.assertEqual(numbers(denominator="local")[0], K * (K + 2))
        self.assertEqual(numbers(compress=False)[0], max(toy.SIZES) * (K + 1))
        self.assertEqual(numbers(average=("prompts",))[0], K * (K + 1) + toy.PROMPTS * toy.INPUTS)

    @parameterized.parameters(
        (dict(gamma=-1.0), "^gamma=-1.0 must be at least 0$"),
        (dict(temperature=0.0), "^temperature=0.0 must be positive$"),
        (dict(weighting="dim"), "weighting='dim' must be one of 'dims', 'uniform'"),
        (dict(logits="wrong"), "logits='wrong' must be one of 'correct', 'all'"),
        (dict(denominator="all"), "denominator='all' must be one of 'uploaded', 'local'"),
        (dict(average=("body",)), "average='body' is not an entry of what prompted6 trains, which is head, prompts"),
        (dict(weights="size"), "weights='size' is not one of 'samples', 'uniform'"),
    )
    def test_refused(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            algorithm(**options)


METHODS = {
    "fedavg": fedavg,
    "fedprox": functools.partial(fedprox, mu=0.1),
    "scaffold": scaffold,
    "fedper": fedper,
    "fedrep": functools.partial(fedrep, head_epochs=1),
    "fedbabu": functools.partial(fedbabu, finetune_epochs=0),
}


class FrozenTest(chex.TestCase):
    def test_the_backbone_exists_once_and_no_client_has_it(self):
        sim, before, after = toy.reference("fedhpl_mixed")
        for g, group in enumerate(sim.spec.bound_groups):
            frozen = group.task.frozen
            chex.assert_trees_all_equal(jax.device_get(sim.compiled.device_arrays.tasks[g][0]), jax.device_get(frozen))
            self.assertEqual(set(frozen.params), {"body"})
            self.assertEqual(metrics.nbytes(sim.compiled.device_arrays.tasks[g]), metrics.nbytes(frozen))
            for clients in (before.clients[g], after.clients[g]):
                self.assertEqual(set(clients.params), {"prompts", "head"})
                self.assertEqual(clients.stats, {})
        for form, _ in after.server.shared:
            self.assertLess(metrics.nbytes(form), 4 * 40)

    def test_no_copy_of_the_backbone_is_made(self):
        """With four clients at once, all that a round needs beside its arguments is much smaller than the backbone."""
        whole = nn.build("mlp", K, (toy.INPUTS,), widths=(600, 600))
        body = jax.eval_shape(whole.init, jax.random.key(0)).params
        body.pop("head")
        zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), body)
        task = make_partial_task(whole, Net(zeros), "head", classes=K, population=N)
        make = functools.partial(local, optimizer=SGD, batch=toy.BATCH)
        sim = simulator.Simulator(simulator.build_spec(simulator.one_group(make, task, N), toy.data(), plan=client_loop.Plan(4, 1)))
        state = jax.eval_shape(sim.compiled.programs.init_state, sim.compiled.device_arrays, jax.random.key_data(jax.random.key(0)))
        found = (
            sim.compiled.programs.run_resident_rounds.lower(sim.compiled.device_arrays, state, jax.ShapeDtypeStruct((), jnp.int32))
            .compile()
            .memory_analysis()
        )
        backbone = metrics.nbytes(zeros)
        self.assertLess(found.argument_size_in_bytes, 1.2 * backbone)
        self.assertLess(found.temp_size_in_bytes, 0.3 * backbone)
        self.assertLess(found.output_size_in_bytes, 0.2 * backbone)

    @parameterized.named_parameters((name, make) for name, make in METHODS.items())
    def test_other_methods_run_on_prompts_and_head(self, make):
        """Abstractly: what they send and keep is made of the trained entries."""
        make = functools.partial(make, optimizer=SGD, batch=toy.BATCH)
        sim = alone(make)
        (shape,) = sim.spec.shapes.groups
        trained = metrics.nbytes(jax.eval_shape(MODELS[0].init, jax.random.key(0)))
        for tree in (shape.server, shape.out.uplink):
            self.assertLessEqual(metrics.nbytes(tree), 2 * trained)
        paths = {str(path) for path, _ in jax.tree_util.tree_leaves_with_path(shape)}
        self.assertFalse([path for path in paths if "body" in path])

    def test_fedavg_trains_prompts_and_head_as_loops_do(self):
        net, (x, y) = MODELS[0].init(jax.random.key(1)), naive.rows(toy.data())[0]
        out = updates(fedavg)(net, ())
        trained = naive.train(MODELS[0], *net, x, y, naive.client_key(0, 0, 0), epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(out.uplink.params, naive.minus(trained.params, net.params), atol=1e-5)
        self.assertEqual(set(out.uplink.params), {"prompts", "head"})

    @parameterized.parameters(
        ("vit", dict(patch=4, width=8, depth=2, heads=2, prompts=3)),
        ("vit", dict(patch=4, width=8, depth=2, heads=2, prompts=3, deep=False)),
        ("resnet8", dict(width=8, frame=1)),
    )
    def test_frozen_weights_are_never_multiplied_client_by_client(self, name, options):
        """In the gradient of all clients at once every product with a frozen weight has the clients' rows side by side."""
        clients, rows = 3, 2
        whole = nn.build(name, K, (8, 8, 1), **options)
        zeros = lambda init: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(init, jax.random.key(0)))
        net = zeros(whole.init)
        body = net._replace(params={entry: tree for entry, tree in net.params.items() if entry not in ("prompts", "head")})
        task = make_partial_task(whole, body, "prompts", classes=K, population=clients)
        mine = jax.tree.map(lambda x: jnp.stack([x] * clients), zeros(task.model.init))

        def gradient(frozen, net, x):
            logits = lambda params: task.network(frozen).apply(Net(params), x, train=True)[0]["logits"]
            return jax.grad(lambda params: jnp.sum(logits(params) ** 2))(net.params)

        x = jnp.zeros((clients, rows, 8, 8, 1))
        program = jax.make_jaxpr(jax.vmap(gradient, (None, 0, 0)))(task.frozen, mine, x).jaxpr
        products = of_frozen(program, program.invars[: len(jax.tree.leaves(task.frozen))])
        self.assertGreater(len(products), 5)
        for product in products:
            if product.primitive.name == "dot_general":
                self.assertEqual(product.params["dimension_numbers"][1], ((), ()), str(product))
            else:
                self.assertEqual((product.params["feature_group_count"], product.params["batch_group_count"]), (1, 1), str(product))


def of_frozen(jaxpr, frozen):
    """Products and convolutions that read the given variables or what is made of them alone, in a program and those inside it."""
    found, frozen = [], set(frozen)
    for eqn in jaxpr.eqns:
        mine = [not hasattr(v, "val") and v in frozen for v in eqn.invars]
        for sub in inner_jaxprs(eqn):
            found += of_frozen(sub, [v for v, known in zip(sub.invars[-len(mine) :], mine, strict=False) if known])
        if any(mine) and eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            found.append(eqn)
        elif mine and all(mine):
            frozen |= set(eqn.outvars)
    return found


class WeightedLogitsTest(chex.TestCase):
    @hypothesis.given(cases)
    @often
    def test_equals_a_loop_over_receivers_clients_classes_and_examples(self, rng):
        beta = rng.uniform(0.2, 1, (3, C))
        examples = [[(c, rng.normal(size=K)) for c in rng.integers(0, K, rng.integers(0, 5))] for _ in range(C)]
        sizes = rng.integers(5, 9, (C, K))
        sums, n = np.zeros((C, K, K)), np.zeros((C, K))
        for j, own in enumerate(examples):
            for c, p in own:
                sums[j, c] += p
                n[j, c] += 1
        means = np.where(n[..., None] > 0, sums / np.maximum(n, 1)[..., None], np.nan)
        for m in (n, sizes):
            part = (means, n) if m is n else (means, n, m)
            part = tuple(x.astype(np.float32) for x in part)
            logits, counts = streamed(weighted_logits(beta), part, np.ones(C, int))
            for r in range(3):
                for c in range(K):
                    above = sum((beta[r, j] * p for j in range(C) for y, p in examples[j] if y == c), np.zeros(K))
                    below = 1 + sum(beta[r, j] * m[j, c] for j in range(C))
                    close(np.asarray(logits[r, c]), (above / below).astype(np.float32))
            close(np.asarray(counts), n.sum(0).astype(np.float32))

    @hypothesis.given(cases)
    @often
    def test_of_one_width_it_is_the_mean_by_counts_nearly(self, rng):
        """n / (1 + n) of it, where n examples were sent."""
        means, n = rng.normal(size=(C, K, K)).astype(np.float32), rng.integers(0, 4, (C, K)).astype(np.float32)
        logits, total = streamed(weighted_logits(np.ones((1, C))), (means, n), np.ones(C, int))
        mean, _ = streamed(aggregators.class_mean("samples"), (means, n), np.ones(C, int))
        close(logits[0], mean * (total / (1 + total))[:, None])


class MeanByFormTest(chex.TestCase):
    @hypothesis.given(cases)
    @often
    def test_those_of_a_form_are_averaged_alone(self, rng):
        values, n = drawn(rng)
        forms = [jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.float32)]
        total = None
        for i in range(C):  # even clients send "a", odd ones "b"
            name = "ab"[i % 2]
            reduce = mean_by_shape(forms, [i % 2], aggregators.weight_by_examples)
            lifted = reduce.map((jnp.asarray(values[name][i]),), Cohort(jnp.int32(i), jnp.int32(n[i])))
            total = lifted if total is None else jax.tree.map(jnp.add, total, lifted)
        for parity, (mean, weight) in enumerate(reduce.finalize(total)):
            mine, own = values["ab"[parity]][parity::2], n[parity::2]
            self.assertEqual(weight, own.sum())
            close(mean, naive_mean({"x": mine}, own.astype(float))["x"] if own.sum() else np.zeros_like(mine[0]))
