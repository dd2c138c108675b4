"""Rounds against loops: who is sent what, what the server sees, and how states begin."""

import functools
import types
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Algorithm, ClientOutput, Reduce
from fedjax_core.engine import rounds
from fedjax_core.engine.divergence import ClientChecks
from fedjax_core.reporting.summary import summarize_records
from fedjax_core.training import aggregators, local_training
from methods.fedavg import fedavg
from methods.local import local
from tests import naive, toy
from tests.fedjax_core.engine.tallied import SGD, N, of_client, simulate, tally, two_groups
from tests.methods.test_fedavg import MODEL


class RoundTest(chex.TestCase):
    @parameterized.parameters((1, 0.0), (2, 0.4))
    def test_each_client_is_sent_its_own_and_keeps_its_own(self, groups, dropout):
        sim = simulate(tally, None if groups == 1 else two_groups(tally), dropout=dropout)
        state, records = sim.run_rounds(sim.init(4), 5)
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
        """What is added and what is stacked are two views of the same uplinks."""

        def scaled(part, client):
            return client.examples * part, client.examples

        reduces = {
            "add": Reduce(scaled, "add", lambda total: total[0] / total[1]),
            "stack": Reduce(lambda part, client: (part, client.examples), "stack", lambda parts: (parts[0] * 1.0, parts[1])),
            "mean": (aggregators.mean(), {"deep": aggregators.mean(aggregators.weight_uniformly)}),
        }

        def build(task):
            def client_update(sent, client, data, key):
                v = jnp.stack([sent, sent**2])
                return ClientOutput((), {"add": v, "stack": v, "mean": (v, {"deep": v})}, {})

            def server_update(server, collected, cohort, key):
                received.update(collected=collected, cohort=cohort._asdict())
                return server, {"mean": (collected["add"][0], 1.0)}

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
        drawn = sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, state.key, state.round)

        def receive(arrays, state, drawn):
            _, _, record = rounds.run_round(sim.spec, arrays, state, drawn, [(), ()], scored=False)
            return received["collected"], received["cohort"], record

        received = {}
        collected, cohort, record = jax.device_get(jax.jit(receive)(sim.compiled.device_arrays, state, drawn))
        there = naive.cohort(3, 0, N, 6, 0.3)
        self.assertLess(len(there), 6)
        self.assertTrue({0, 1, 2, 5} & set(there) and {3, 4, 6, 7} & set(there))
        v = {i: np.array([i + 1.0, (i + 1.0) ** 2]) for i in there}
        n = {i: len(toy.data().train_index[i]) for i in there}
        by_size = sum(n[i] * v[i] for i in there) / sum(n.values())
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

    def test_round_index_and_keys_reach_the_method(self):
        def build(task):
            def server_update(server, collected, cohort, key):
                return {"round": server["round"] * 10 + task.round_num, "key": jax.random.key_data(key)}, {}

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
        state, _ = sim.run_rounds(state, 4)
        self.assertEqual(int(state.server["round"]), 123)
        np.testing.assert_array_equal(state.server["key"], jax.random.key_data(naive.stream(0, 5, 3)))

    def test_learning_rates_follow_the_round(self):
        """At decay d, round r trains with lr * d ** r."""
        build = functools.partial(fedavg, optimizer=local_training.sgd(0.2, decay=0.5), batch=toy.BATCH)
        sim = simulate(build, cohort=None)
        state = sim.init(0)
        for r in range(2):
            net = tuple(jax.device_get(state.server.net))
            state, _ = sim.run_rounds(state, 1)
            ends, sizes = [], []
            for i, (x, y) in enumerate(naive.rows(toy.data())):
                end = naive.train(MODEL, *net, x, y, naive.client_key(0, r, i), epochs=1, batch=toy.BATCH, lr=0.2 * 0.5**r)
                ends.append((end.params, end.stats))
                sizes.append(len(y))
            chex.assert_trees_all_close(tuple(state.server.net), naive.mean(ends, sizes), atol=2e-6)

    def test_what_is_known_of_the_traffic(self):
        mixed = simulate(None, toy.groups(functools.partial(local, optimizer=SGD), mixed=True)).spec.shapes
        self.assertEqual((mixed.down, mixed.up), (0.0, 0.0))
        sim = simulate(tally)
        self.assertEqual((sim.spec.shapes.down, sim.spec.shapes.up), (4, 4))

        def heavier(task):
            return tally(task, broadcast=lambda server, i: {"mine": server["seen"][0], "more": jnp.zeros(9)})

        first, second = two_groups(tally, (0, 1), (2, 3, 4, 5, 6, 7))
        shapes = simulate(None, [first, second._replace(build=heavier)]).spec.shapes
        self.assertEqual((shapes.down, shapes.up), ((2 * 4 + 6 * 40) / 8, 4))


class FirstTest(chex.TestCase):
    """`prepare`, before the first round."""

    @parameterized.parameters("device", "host")
    def test_every_client_prepares_once(self, hold):
        def prepare(sent, client, data, key):
            return client | {"rounds": client["rounds"] + 100 + data.size, "sent": sent["mine"], "draw": jax.random.uniform(key)}

        sim = simulate(None, two_groups(functools.partial(tally, prepare=prepare)), hold=hold)
        state = sim.init(5)
        rows = [store.states for store in sim.offloaded_states.stores] if hold == "host" else state.clients
        for i in range(N):
            mine = of_client(sim, state._replace(clients=tuple(rows)), i)
            self.assertEqual((mine["rounds"], mine["sent"]), (100 + len(toy.data().train_index[i]), 10 * i))
            np.testing.assert_allclose(mine["draw"], jax.random.uniform(jax.random.fold_in(naive.stream(5, 1), i)))
        state, _ = sim.run_rounds(state, 1)
        rows = [store.states for store in sim.offloaded_states.stores] if hold == "host" else state.clients
        for i in range(N):
            mine = of_client(sim, state._replace(clients=tuple(rows)), i)
            self.assertEqual(mine["rounds"], 100 + len(toy.data().train_index[i]) + (i in naive.cohort(5, 0, N, 5)))


NOBODY = {
    "ids": np.array([-1, -1]),
    "checks": ClientChecks(jnp.zeros(2, jnp.int32), jnp.zeros((2, 1))),
    "server_diverged": np.False_,
    "cohort": np.int32(0),
    "train": {"loss": (np.float32(0), np.float32(0)), "accuracy": (np.float32(0), np.float32(0))},
    "server": {"clipped": (np.float32(0), np.float32(0)), "left_out": (np.float32(0), np.float32(1))},
}
SOME = NOBODY | {"ids": np.array([4, -1]), "cohort": np.int32(1), "train": {"loss": (np.float32(3), np.float32(6))}}
SPEC: Any = types.SimpleNamespace(targets="classes", groups=(), asynchrony=None, data=toy.data())


def test_a_round_that_nobody_comes_to_has_no_means():
    record = rounds.flatten_record(SPEC, NOBODY, 2)
    assert record == {"round": 2, "cohort": 0, "train/examples": 0.0, "server/left_out": 0.0}
    entry = summarize_records([rounds.flatten_record(SPEC, SOME, 1), record])["metrics"]["train/loss"]
    assert (entry["last"], entry["last_round"], entry["mean_last_k"]) == (0.5, 1, 0.5)


def test_sums_are_divided_by_their_weights():
    assert rounds.flatten_record(SPEC, SOME, 1) == {
        "round": 1,
        "cohort": 1,
        "train/loss": 0.5,
        "train/examples": 6.0,
        "server/left_out": 0.0,
    }
