"""The round and its scores against loops: who sees what, what is refused, and what is never baked into a program."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Algorithm, ClientOutput, Examples, Net, Reduce
from fedjax_core.data import federated, sources
from fedjax_core.engine import parallel, rounds, simulation
from fedjax_core.engine.simulation import Evaluation, Group, Simulation
from fedjax_core.learning import aggregators, training
from fedjax_core.task import Task
from methods.fedavg import fedavg
from methods.local import local
from methods.scaffold import scaffold
from tests import naive, toy
from tests.methods.test_fedavg import MODEL

SGD = training.sgd(0.1, momentum=0.5)
N = toy.CLIENTS


def with_test_rows(test_index):
    whole = toy.data()
    dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
    return federated.from_index(dataset, whole.train_index, test_index)


def simulate(build, groups=None, data=None, **settings):
    settings = {"cohort": 5, "dispatch": 2, "plan": parallel.Plan(1, 1)} | settings
    return Simulation(toy.groups(build) if groups is None else groups, toy.data() if data is None else data, **settings)


def tally(task, **changes):
    """A method without a network that writes down what reaches whom. One state per client: [rounds seen, last thing sent]."""

    def client_update(sent, client, data, key):
        mine = {"rounds": client["rounds"] + 1, "sent": sent["mine"], "draw": jax.random.uniform(key)}
        return ClientOutput(mine, {"id": sent["mine"]}, {"size": (data.size.astype(jnp.float32), jnp.float32(1))})

    def server_update(server, collected, cohort, key):
        there = (cohort.examples > 0).astype(jnp.float32)
        seen = server["seen"].at[cohort.ids].add(there, mode="drop")
        return {"seen": seen, "last": server["last"].at[cohort.ids].set(collected["id"] * there, mode="drop")}, {}

    algorithm = Algorithm(
        server_init=lambda key: {"seen": jnp.zeros(N), "last": jnp.zeros(N)},
        client_update=client_update,
        server_update=server_update,
        collect={"id": aggregators.stack},
        predict={"personal": lambda sent, client, x: {"logits": jnp.tile(client["rounds"], (len(x), task.classes))}},
        client_init=lambda key, server, i: {"rounds": jnp.zeros(()), "sent": -jnp.ones(()), "draw": jnp.zeros(())},
        broadcast=lambda server, i: {"mine": i.astype(jnp.float32) * 10 + server["seen"][i]},
    )
    return algorithm._replace(**changes)


def two_groups(build, first=(0, 1, 2, 5), second=(3, 4, 6, 7)):
    return [Group(name, build, toy.task(), np.array(ids)) for name, ids in (("ones", first), ("others", second))]


def of_client(sim, state, i):
    """Client i's state."""
    for group, rows in zip(sim.groups, state.clients, strict=True):
        if i in group.clients:
            return jax.tree.map(lambda x, group=group: np.asarray(x)[list(group.clients).index(i)], rows)
    raise AssertionError


class RefusalTest(chex.TestCase):
    @parameterized.parameters(((0, 1, 2), (3, 4, 6, 7)), ((0, 1, 2, 3, 5), (3, 4, 6, 7)), ((0, 1, 2, 5), (3, 4, 6, 8)))
    def test_groups_must_cover_everybody_once(self, first, second):
        with self.assertRaisesRegex(ValueError, r"the groups' clients must be each of 0 \.\.\. 7 once, found \[0, 1, 2, 3, "):
            simulate(None, two_groups(tally, first, second))

    def test_averaging_needs_one_architecture(self):
        build = functools.partial(fedavg, optimizer=SGD)
        with self.assertRaisesRegex(
            ValueError, r"groups 'narrow' and 'wide' .* one architecture .*'bias'\], float32\[6\] against float32\[7\]"
        ):
            simulate(None, [g._replace(build=build) for g in toy.groups(build, mixed=True)])

    @parameterized.parameters(
        (dict(cohort=9), "cohort=9 is neither"),
        (dict(dropout=1.0), r"dropout=1.0 is not in \[0, 1\)"),
        (dict(dropout=-0.1), r"dropout=-0.1 is not in \[0, 1\)"),
        (dict(hold="attic"), "hold='attic' is not one of device, host, disk"),
        (dict(data_on="attic"), "unknown plan.data 'attic'; allowed: device, host, disk"),
        (
            dict(evaluation=Evaluation(("own", "mine"))),
            "scopes has 'mine', which is not one of global, own, post_local, all",
        ),
        (dict(evaluation=Evaluation(batch=0)), "must be at least 1"),
        (dict(evaluation=Evaluation(clients=0)), "must be at least 1"),
        (dict(dispatch=0), "must be at least 1"),
    )
    def test_settings_out_of_range(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(tally, **settings)

    @parameterized.parameters(
        (lambda mine: mine | {"rounds": jnp.int32(1)}, r"at \['rounds'\], float32\[\] against int32\[\]"),
        (lambda mine: mine | {"new": jnp.zeros(2)}, r"at \['new'\], nothing against float32\[2\]"),
        (lambda mine: {"rounds": mine["rounds"], "sent": mine["sent"]}, r"at \['draw'\], float32\[\] against nothing"),
        (lambda mine: mine | {"more": ()}, "against PyTreeDef"),
    )
    def test_a_client_keeps_its_states_structure(self, change, message):
        def build(task):
            inner = tally(task)

            def client_update(*arguments):
                out = inner.client_update(*arguments)
                return out._replace(state=change(out.state))

            return inner._replace(client_update=client_update)

        with self.assertRaisesRegex(ValueError, f"group 'all': client_update must return .* as client_init made it: .*{message}"):
            simulate(build)

    def test_a_pooled_method_has_no_groups(self):
        with self.assertRaisesRegex(ValueError, "a pooled method trains one network; it cannot have groups"):
            simulate(None, two_groups(functools.partial(tally, pooled=True)))

    @parameterized.parameters("device", "host")
    def test_divergence_names_client_and_round(self, hold):
        """Client 3 fails in the third round in which it takes part."""

        def build(task):
            inner = tally(task)

            def client_update(sent, client, data, key):
                out = inner.client_update(sent, client, data, key)
                bad = (sent["mine"] >= 32) & (sent["mine"] < 40)
                return out._replace(metrics={"loss": (jnp.where(bad, jnp.nan, 1.0), jnp.float32(1))})

            return inner._replace(client_update=client_update)

        sim = simulate(build, hold=hold, dispatch=10)
        taken = [r + 1 for r in range(12) if 3 in naive.cohort(0, r, N, 5)]
        with self.assertRaisesRegex(simulation.Diverged, f"^round {taken[2]}: the training loss of client 3 is not finite"):
            sim.rounds(sim.init(0), 12)


class RoundTest(chex.TestCase):
    @parameterized.parameters((1, 0.0), (2, 0.0), (1, 0.4), (2, 0.4))
    def test_each_client_is_sent_its_own_and_keeps_its_own(self, groups, dropout):
        sim = simulate(tally, None if groups == 1 else two_groups(tally), dropout=dropout)
        state, records = sim.rounds(sim.init(4), 5)
        state = jax.device_get(state)
        seen, rounds, sent, draw = np.zeros(N), np.zeros(N), -np.ones(N), np.zeros(N)
        last = np.zeros(N)
        for r in range(5):
            there = naive.cohort(4, r, N, 5, dropout)
            absent = set(naive.cohort(4, r, N, 5)) - set(there)
            before = seen.copy()
            for i in there:
                rounds[i] += 1
                sent[i] = last[i] = 10 * i + before[i]
                draw[i] = jax.random.uniform(naive.client_key(4, r, i))
                seen[i] += 1
            last[list(absent)] = 0.0  # the server was told that they did not come
            self.assertEqual(records[r]["round"], r + 1)
            self.assertEqual(records[r]["cohort"], len(there))
            self.assertAlmostEqual(records[r]["train/size"], np.mean([len(toy.data().train_index[i]) for i in there]), places=5)
        np.testing.assert_array_equal(state.server["seen"], seen)
        np.testing.assert_array_equal(state.server["last"], last)
        for i in range(N):
            mine = of_client(sim, state, i)
            self.assertEqual((float(mine["rounds"]), float(mine["sent"])), (rounds[i], sent[i]))
            np.testing.assert_allclose(mine["draw"], draw[i])  # whatever the group, the cohort and the place in it

    def test_joins(self):
        """What is added, stacked and stacked by group are three views of the same uplinks."""

        def scaled(part, client):
            return client.examples * part, client.examples

        reduces = {
            "add": Reduce(scaled, "add", lambda total: total[0] / total[1]),
            "stack": Reduce(lambda part, client: (part, client.examples), "stack", lambda parts: (parts[0] * 1.0, parts[1])),
            "group": Reduce(join="group", lower=lambda groups: {f"group {i}": part for i, part in enumerate(groups)}),
            "mean": (aggregators.mean(), {"deep": aggregators.mean(aggregators.uniform)}),
        }

        def build(task):
            def client_update(sent, client, data, key):
                v = jnp.stack([sent, sent**2])
                return ClientOutput((), {"add": v, "stack": v, "group": {"v": v}, "mean": (v, {"deep": v})}, {})

            def server_update(server, collected, cohort, key):
                return server | {"collected": collected, "cohort": cohort._asdict()}, {"mean": (collected["add"][0], 1.0)}

            return Algorithm(
                server_init=lambda key: {"round": jnp.zeros(())},
                client_update=client_update,
                server_update=server_update,
                collect=reduces,
                predict={},
                broadcast=lambda server, i: i.astype(jnp.float32) + 1,
            )

        sim = simulate(None, two_groups(build), cohort=6, dropout=0.3)
        state = sim.init(3)
        drawn = sim._draw(sim.held, state.key, state.round)
        server, _, record = jax.jit(functools.partial(rounds.train, sim._of, scored=False))(sim.held, state, drawn, [(), ()])
        there = naive.cohort(3, 0, N, 6, 0.3)
        self.assertLess(len(there), 6)
        self.assertTrue({0, 1, 2, 5} & set(there) and {3, 4, 6, 7} & set(there))
        v = {i: np.array([i + 1.0, (i + 1.0) ** 2]) for i in there}
        n = {i: len(toy.data().train_index[i]) for i in there}
        by_size = sum(n[i] * v[i] for i in there) / sum(n.values())
        collected, cohort = jax.device_get(server["collected"]), jax.device_get(server["cohort"])
        np.testing.assert_allclose(collected["add"], by_size, rtol=1e-5)
        np.testing.assert_allclose(collected["mean"][0], by_size, rtol=1e-5)
        np.testing.assert_allclose(collected["mean"][1]["deep"], sum(v.values()) / len(there), rtol=1e-5)
        np.testing.assert_allclose(record["server"]["mean"][0], by_size[0], rtol=1e-5)
        values, examples = collected["stack"]
        np.testing.assert_array_equal(examples, cohort["examples"])
        self.assertEqual({int(i): int(k) for i, k in zip(cohort["ids"], examples, strict=True) if k}, n)
        for row, i, k in zip(values, cohort["ids"], examples, strict=True):
            if k:
                np.testing.assert_allclose(row, v[int(i)])
        np.testing.assert_array_equal(np.concatenate([collected["group"][f"group {g}"]["v"] for g in (0, 1)]), values)
        ones = [i for i in cohort["ids"][: len(collected["group"]["group 0"]["v"])] if i < N]
        self.assertLessEqual(set(ones), {0, 1, 2, 5})

    def test_round_index_and_keys_reach_the_method(self):
        def build(task):
            def server_update(server, collected, cohort, key):
                return {"round": server["round"] * 10 + task.round, "key": jax.random.key_data(key)}, {}

            return Algorithm(
                server_init=lambda key: {"round": jnp.zeros((), jnp.int32), "key": jax.random.key_data(key)},
                client_update=lambda sent, client, data, key: ClientOutput((), (), {}),
                server_update=server_update,
                collect=(),
                predict={},
            )

        sim = simulate(build)
        state = sim.init(0)
        np.testing.assert_array_equal(state.server["key"], jax.random.key_data(naive.stream(0, naive.INIT)))
        state, _ = sim.rounds(state, 4)
        self.assertEqual(int(state.server["round"]), 123)
        np.testing.assert_array_equal(state.server["key"], jax.random.key_data(naive.stream(0, 5, 3)))

    def test_learning_rates_follow_the_round(self):
        """At decay d, round r trains with lr * d ** r."""
        build = functools.partial(fedavg, optimizer=training.sgd(0.2, decay=0.5), batch=toy.BATCH)
        sim = simulate(build, cohort=None)
        state = sim.init(0)
        for r in range(2):
            net = tuple(jax.device_get(state.server.net))
            state, _ = sim.rounds(state, 1)
            ends, sizes = [], []
            for i, (x, y) in enumerate(naive.rows(toy.data())):
                end = naive.train(MODEL, *net, x, y, naive.client_key(0, r, i), epochs=1, batch=toy.BATCH, lr=0.2 * 0.5**r)
                ends.append((end.params, end.stats))
                sizes.append(len(y))
            chex.assert_trees_all_close(tuple(state.server.net), naive.mean(ends, sizes), atol=2e-6)

    def test_what_is_known_of_the_traffic(self):
        mixed = simulate(None, toy.groups(functools.partial(local, optimizer=SGD), mixed=True)).shapes
        self.assertEqual((mixed.down, mixed.up), (0.0, 0.0))
        sim = simulate(tally)
        self.assertEqual((sim.shapes.down, sim.shapes.up), (4, 4))

        def heavier(task):
            return tally(task, broadcast=lambda server, i: {"mine": server["seen"][0], "more": jnp.zeros(9)})

        first, second = two_groups(tally, (0, 1), (2, 3, 4, 5, 6, 7))
        shapes = simulate(None, [first, second._replace(build=heavier)]).shapes
        self.assertEqual((shapes.down, shapes.up), ((2 * 4 + 6 * 40) / 8, 4))


class FirstTest(chex.TestCase):
    """`prepare`, before the first round."""

    @parameterized.parameters("device", "host")
    def test_every_client_prepares_once(self, hold):
        def prepare(sent, client, data, key):
            return client | {"rounds": client["rounds"] + 100 + data.size, "sent": sent["mine"], "draw": jax.random.uniform(key)}

        sim = simulate(None, two_groups(functools.partial(tally, prepare=prepare)), hold=hold)
        state = sim.init(5)
        rows = [store.rows for store in sim._stores] if hold == "host" else state.clients
        for i in range(N):
            mine = of_client(sim, state._replace(clients=tuple(rows)), i)
            self.assertEqual((mine["rounds"], mine["sent"]), (100 + len(toy.data().train_index[i]), 10 * i))
            np.testing.assert_allclose(mine["draw"], jax.random.uniform(jax.random.fold_in(naive.stream(5, 1), i)))
        state, _ = sim.rounds(state, 1)
        rows = [store.rows for store in sim._stores] if hold == "host" else state.clients
        for i in range(N):
            mine = of_client(sim, state._replace(clients=tuple(rows)), i)
            self.assertEqual(mine["rounds"], 100 + len(toy.data().train_index[i]) + (i in naive.cohort(5, 0, N, 5)))


def naive_score(model, net, x, y):
    """(accuracy, loss), one example at a time."""
    right, loss = 0, 0.0
    for logits, label in zip(np.asarray(model.apply(net, x)[0]["logits"], np.float64), y, strict=True):
        right += int(logits.argmax() == label)
        loss += np.log(np.exp(logits).sum()) - logits[label]
    return right / len(y), loss / len(y)


def statistics(prefix, scores, weights):
    flat = {}
    for m, metric in enumerate(("accuracy", "loss")):
        values = [s[m] for s in scores]
        flat[f"{prefix}/{metric}/mean"] = sum(values) / len(values)
        flat[f"{prefix}/{metric}/weighted"] = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        flat[f"{prefix}/{metric}/lowest"] = min(values)
        flat[f"{prefix}/{metric}/highest"] = max(values)
    return flat


class EvaluationTest(chex.TestCase):
    TEST = ([0, 1, 2, 3, 4, 5, 6, 7, 8], [9], [], [10, 11, 12], [13, 14], [15, 16, 17, 18], [19, 20, 21], [22, 3, 1])

    def close(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(found[name], value, places=5, msg=name)

    def test_of_a_global_model(self):
        """On all test rows; on each client's own; and, after local training, of the round's cohort."""
        build = functools.partial(fedavg, optimizer=SGD, epochs=1, batch=toy.BATCH)
        data = with_test_rows(self.TEST)
        sim = simulate(build, data=data, evaluation=Evaluation(("global", "own", "post_local"), batch=4))
        state = sim.init(0)
        before = tuple(jax.device_get(state.server.net))
        state, records = sim.rounds(state, 1, scored=True)
        net, (x, y) = jax.device_get(state.server.net), data.test
        accuracy, loss = naive_score(MODEL, net, x, y)
        expected = {"test/global/accuracy": accuracy, "test/global/loss": loss}
        tested = [i for i in range(N) if self.TEST[i]]
        scores = [naive_score(MODEL, net, x[self.TEST[i]], y[self.TEST[i]]) for i in tested]
        self.close(sim.evaluate(state), expected | statistics("test/global/own", scores, [len(self.TEST[i]) for i in tested]))
        scores, weights = [], []
        for i in naive.cohort(0, 0, N, 5):
            if self.TEST[i]:
                rows = naive.rows(data)[i]
                end = naive.train(MODEL, *before, *rows, naive.client_key(0, 0, i), epochs=1, batch=toy.BATCH, lr=0.1, momentum=0.5)
                scores.append(naive_score(MODEL, Net(end.params, end.stats), x[self.TEST[i]], y[self.TEST[i]]))
                weights.append(len(self.TEST[i]))
        found = {name: value for name, value in records[0].items() if name.startswith("test/")}
        self.close(found, statistics("test/global/post_local", scores, weights))

    def test_of_personal_models(self):
        """Of two architectures: on their own test rows, on all, and right after training; absent clients have no such score."""
        build = functools.partial(local, optimizer=SGD, epochs=1, batch=toy.BATCH)
        data = with_test_rows(self.TEST)
        scopes = Evaluation(("global", "own", "all", "post_local"), batch=7)
        sim = simulate(None, toy.groups(build, mixed=True), data, evaluation=scopes, dropout=0.3)
        state, records = sim.rounds(sim.init(1), 3, scored=True)
        models, (x, y) = (toy.model(6), toy.model(7)), data.test
        nets = [of_client(sim, state, i) for i in range(N)]
        own = {i: naive_score(models[i % 2], nets[i], x[self.TEST[i]], y[self.TEST[i]]) for i in range(N) if self.TEST[i]}
        whole = [naive_score(models[i % 2], nets[i], x, y) for i in range(N)]
        weights = {i: len(self.TEST[i]) for i in own}
        expected = statistics("test/personal/own", list(own.values()), list(weights.values()))
        expected |= statistics("test/personal/all", whole, [len(y)] * N)
        self.close(sim.evaluate(state), expected)
        there = [i for i in naive.cohort(1, 2, N, 5, 0.3) if i in own]
        self.assertTrue(there)
        found = {name: value for name, value in records[2].items() if name.startswith("test/")}
        self.close(found, statistics("test/personal/post_local", [own[i] for i in there], [weights[i] for i in there]))
        self.assertFalse([name for record in records[:2] for name in record if name.startswith("test/")])

    def test_a_global_model_has_no_score_of_each_client_on_all_rows(self):
        """It would be the same for all: scope "global" has it."""
        _, _, after = toy.reference("fedavg")
        every = simulate(functools.partial(fedavg, optimizer=SGD), evaluation=Evaluation(("global", "all")))
        scores = every.evaluate(every.put(after))
        self.assertEqual(set(scores), {"test/global/accuracy", "test/global/loss"})

    def test_scopes_do_not_hide_one_another(self):
        """A method with both predictors has all scores of both, but for that of the global one on all rows."""
        predict = {name: lambda sent, client, x: {"logits": jnp.zeros((len(x), 3))} for name in ("global", "personal")}
        sim = simulate(functools.partial(tally, predict=predict), evaluation=Evaluation(("global", "own", "all")))
        found = {name.rpartition("/accuracy")[0] for name in sim.evaluate(sim.init(0)) if "accuracy" in name}
        self.assertEqual(found, {"test/global", "test/global/own", "test/personal/own", "test/personal/all"})

    def test_scores_stand_in_the_order_of_the_ids(self):
        """Whatever the groups: a client's own number is its score's weight."""
        sim = simulate(None, two_groups(tally, (0, 7, 2, 5), (6, 4, 3, 1)), with_test_rows(self.TEST))
        scores = sim.client_scores(sim.init(0))["own"]["personal"]["accuracy"]
        np.testing.assert_array_equal(scores[1], [len(rows) for rows in self.TEST])

    def test_at_most_so_many_clients(self):
        sim = simulate(tally, evaluation=Evaluation(("own",), clients=3))
        chosen = sim.scored_clients()
        self.assertLen(set(chosen.tolist()), 3)
        scores = sim.client_scores(sim.init(0))["own"]["personal"]["accuracy"]
        np.testing.assert_array_equal(scores[1], [len(toy.data().test_index[i]) for i in chosen])

    def test_personalise_is_scored_and_dropped(self):
        """It changes the personal predictor only, draws by client, and leaves the state alone."""

        def personalise(sent, client, data, key):
            return {"mine": sent["mine"] + 1000}, client | {"rounds": client["rounds"] + data.size}

        def answer(sent, client, x):
            """The class is 2 for a client that has personalised, 0 for others; the loss tells the data's size."""
            size = client["rounds"]
            first = jnp.where(sent["mine"] >= 1000, 0.0, 9.0)
            return {"logits": jnp.tile(jnp.stack([first, jnp.zeros(()), size]), (len(x), 1))}

        def of_all(sent, client, x):
            scores = jnp.where(sent["mine"] >= 1000, jnp.asarray([0.0, 9.0, 0.0]), jnp.asarray([9.0, 0.0, 0.0]))
            return {"logits": jnp.tile(scores, (len(x), 1))}

        build = functools.partial(tally, personalise=personalise, predict={"personal": answer, "global": of_all})
        sim = simulate(build, evaluation=Evaluation(("own",)))
        state = sim.init(0)
        before = jax.device_get(state)
        scores = sim.client_scores(state)["own"]
        for i in range(N):
            labels = toy.data().test.y[toy.data().test_index[i]]
            self.assertEqual(scores["personal"]["accuracy"][0][i], np.sum(labels == 2))
            self.assertEqual(scores["global"]["accuracy"][0][i], np.sum(labels == 0))
            logits = np.array([0.0, 0.0, len(toy.data().train_index[i])])
            expected = sum(np.log(np.exp(logits).sum()) - logits[label] for label in labels)
            np.testing.assert_allclose(scores["personal"]["loss"][0][i], expected, rtol=1e-5)
        view = sim.view(state, 3)  # the same, of one client
        found = {
            name: np.asarray(view.predict(name, held, toy.data().test.x[:1])["logits"])[0] for name, held in view.holds.items()
        }
        chex.assert_trees_all_close(found, {"personal": np.array([0.0, 0.0, 7.0]), "global": np.array([9.0, 0.0, 0.0])})
        chex.assert_trees_all_equal(jax.device_get(state), before)

    def test_first_to_reach(self):
        self.assertEqual(simulation.first_to_reach([(5, 0.3), (10, float("nan")), (15, 0.5), (20, 0.7)], 0.5), 15)
        self.assertIsNone(simulation.first_to_reach([(5, 0.3)], 0.5))


class StartTest(chex.TestCase):
    def test_the_first_round_compiles_the_round_and_a_copy_of_the_state(self):
        """One program for all of it."""
        build = functools.partial(fedavg, optimizer=SGD, batch=toy.BATCH)
        sim = simulate(None, simulation.one_group(build, toy.task(13), N), plan=parallel.Plan(1, 1))
        state = sim.init(0)
        with jax.log_compiles(), self.assertLogs("jax", "WARNING") as logs:
            sim.rounds(state, 1)
        found = [match[1] for record in logs.records if (match := re.match(r"Compiling jit\((\w+)\)", record.getMessage()))]
        self.assertEqual(found, ["_copied", "many"])


ROWS = 997  # a size that nothing else has


class ConstantsTest(chex.TestCase):
    def build(self, task):
        """FedAvg that also learns from public data."""
        inner = fedavg(task, optimizer=SGD, batch=toy.BATCH)

        def client_update(sent, client, data, key):
            out = inner.client_update(sent, client, data, key)
            hint = jnp.mean(task.public.x) + 0 * jnp.mean(task.public.y)
            moved = out.uplink.params | {"head": jax.tree.map(lambda d: d + hint, out.uplink.params["head"])}
            return out._replace(uplink=out.uplink._replace(params=moved))

        return inner._replace(client_update=client_update)

    def test_frozen_and_public_arrays_are_arguments(self):
        rng = np.random.default_rng(0)
        frozen = rng.normal(size=(ROWS, toy.INPUTS)).astype(np.float32)
        public = Examples(rng.normal(size=(ROWS, 3)).astype(np.float32), np.zeros(ROWS, np.int32))

        def network(frozen):
            """The toy model behind a fixed projection."""
            inner = toy.model()
            project = jnp.transpose(frozen) @ frozen / ROWS

            def features(net, x, *rest, **more):
                return inner.features(net, x @ project, *rest, **more)

            def apply(net, x, *rest, **more):
                return inner.apply(net, x @ project, *rest, **more)

            return inner._replace(apply=apply, features=features)

        def baked(task):
            """The same, its arrays closed over."""
            return self.build(dataclasses.replace(task, network=lambda _: network(jnp.asarray(frozen)), public=constant(public)))

        def constant(tree):
            return jax.tree.map(jnp.asarray, tree)

        ends, texts = [], []
        task = Task(network, toy.CLASSES, N, frozen=frozen, public=public)
        for build, given in [(self.build, task), (baked, dataclasses.replace(task, frozen=(), public=()))]:
            sim = simulate(None, simulation.one_group(build, given, N))
            state = sim.init(0)
            texts.append(sim._many.lower(sim.held, state, sim.put(np.int32(1))).as_text())
            state, _ = sim.rounds(state, 2)
            ends.append(jax.device_get(state.server.net))
        chex.assert_trees_all_close(*ends, atol=1e-6)
        large = re.compile(rf"constant dense<\S*> : tensor<{ROWS}x")
        self.assertIsNone(large.search(texts[0]))
        self.assertIsNotNone(large.search(texts[1]))

    def test_nor_are_the_data(self):
        sim, before, _ = toy.reference("fedavg")
        text = sim._many.lower(sim.held, sim.put(before), sim.put(np.int32(1))).as_text()
        rows = len(toy.data().train.y)
        self.assertIsNone(re.search(rf"constant dense<\S*> : tensor<{rows}x", text))
        self.assertIn(f"tensor<{rows}x{toy.INPUTS}xf32>", text)


class HostTest(chex.TestCase):
    def test_a_huge_population_costs_what_it_touches(self):
        population, cohort = 100_000, 6
        whole = toy.data()
        dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
        lists = [np.array([i % 30, i % 7 + 32], np.int32) for i in range(population)]
        data = federated.from_index(dataset, lists, [np.zeros(0, np.int32)] * population)
        build = functools.partial(scaffold, optimizer=SGD, batch=toy.BATCH)
        task = dataclasses.replace(toy.task(200), population=population)
        sim = Simulation(simulation.one_group(build, task, population), data, cohort=cohort, plan=parallel.Plan(1, 1), hold="host")
        state = sim.init(0)
        expected = set()
        for _ in range(3):
            ((drawn, _),) = sim._draw(sim.held, state.key, state.round)
            expected |= set(np.asarray(drawn.ids).tolist())
            state, _ = sim.rounds(state, 1)
        (store,) = sim._stores
        self.assertEqual(set(np.flatnonzero(store.touched).tolist()), expected)
        self.assertBetween(len(expected), 2 * cohort, 3 * cohort)
        kept = sum(x.nbytes for x in jax.tree.leaves(store.packed()))
        self.assertLess(kept, 3 * cohort * 10_000)
        self.assertEqual(sim.touched(), [len(expected)])
        # the server's control is the mean over the whole population, of which all others' are zero
        mean = jax.tree.map(lambda x: x[store.touched].sum(0) / population, store.rows)
        chex.assert_trees_all_close(jax.device_get(state.server.c), mean, atol=1e-8)

    def test_absent_clients_stay_untouched(self):
        sim = simulate(tally, hold="host", dropout=0.5)
        sim.rounds(sim.init(3), 1)
        there = naive.cohort(3, 0, N, 5, 0.5)
        self.assertBetween(len(there), 1, 4)
        np.testing.assert_array_equal(np.flatnonzero(sim._stores[0].touched), sorted(there))
