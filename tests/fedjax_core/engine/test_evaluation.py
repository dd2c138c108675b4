"""Scores against loops: of whom, on which rows, in which order."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Net
from fedjax_core.engine import evaluation, evaluation_step
from fedjax_core.engine.simulator import Evaluation, Group
from methods.fedavg import fedavg
from methods.local import local
from tests import naive, toy
from tests.fedjax_core.engine.tallied import SGD, N, of_client, simulate, tally, two_groups, with_test_rows
from tests.methods.test_fedavg import MODEL


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


def test_what_a_client_has_no_score_of_is_nan():
    values = evaluation_step.divide_by_weights({"a": (np.float32([1, 0]), np.float32([2, 0]))})["a"]
    first = evaluation_step.ClientScores(np.array([0, 1]), np.array([2, 0]), {"a": values})
    joined = evaluation_step.concatenate_clients(first, first._replace(ids=np.array([4, 5]), scores={"b": values}))
    assert (joined.ids.tolist(), joined.rows.tolist()) == ([0, 1, 4, 5], [2, 0, 2, 0])
    np.testing.assert_array_equal(joined.scores["a"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(joined.scores["b"], [np.nan, np.nan, 0.5, np.nan])


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
        state, records = sim.run_rounds(state, 1, scored=True)
        net, (x, y) = jax.device_get(state.server.net), data.test
        accuracy, loss = naive_score(MODEL, net, x, y)
        expected = {"test/global/accuracy": accuracy, "test/global/loss": loss}
        tested = [i for i in range(N) if self.TEST[i]]
        scores = [naive_score(MODEL, net, x[self.TEST[i]], y[self.TEST[i]]) for i in tested]
        self.close(
            sim.evaluate(state).metrics, expected | statistics("test/global/own", scores, [len(self.TEST[i]) for i in tested])
        )
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
        state, records = sim.run_rounds(sim.init(1), 3, scored=True)
        models, (x, y) = (toy.model(6), toy.model(7)), data.test
        nets = [of_client(sim, state, i) for i in range(N)]
        own = {i: naive_score(models[i % 2], nets[i], x[self.TEST[i]], y[self.TEST[i]]) for i in range(N) if self.TEST[i]}
        whole = [naive_score(models[i % 2], nets[i], x, y) for i in range(N)]
        weights = {i: len(self.TEST[i]) for i in own}
        expected = statistics("test/personal/own", list(own.values()), list(weights.values()))
        expected |= statistics("test/personal/all", whole, [len(y)] * N)
        self.close(sim.evaluate(state).metrics, expected)
        there = [i for i in naive.cohort(1, 2, N, 5, 0.3) if i in own]
        self.assertTrue(there)
        found = {name: value for name, value in records[2].items() if name.startswith("test/")}
        self.close(found, statistics("test/personal/post_local", [own[i] for i in there], [weights[i] for i in there]))
        self.assertFalse([name for record in records[:2] for name in record if name.startswith("test/")])

    def test_a_global_model_has_no_score_of_each_client_on_all_rows(self):
        """It would be the same for all: scope "global" has it."""
        _, _, after = toy.reference("fedavg")
        every = simulate(functools.partial(fedavg, optimizer=SGD), evaluation=Evaluation(("global", "all")))
        scores = every.evaluate(every.compiled.put(after)).metrics
        self.assertEqual(set(scores), {"test/global/accuracy", "test/global/loss"})

    def test_scopes_do_not_hide_one_another(self):
        """A method with both predictors has all scores of both, but for that of the global one on all rows."""
        predict = {name: lambda sent, client, x: {"logits": jnp.zeros((len(x), 3))} for name in ("global", "personal")}
        sim = simulate(functools.partial(tally, predict=predict), evaluation=Evaluation(("global", "own", "all")))
        scores = sim.evaluate(sim.init(0)).metrics
        self.assertEqual(set(evaluation.list_test_scores(sim.spec)), set(scores))
        found = {name.rpartition("/accuracy")[0] for name in scores if "accuracy" in name}
        self.assertEqual(found, {"test/global", "test/global/own", "test/personal/own", "test/personal/all"})

    def test_a_score_of_no_row_is_left_out(self):
        """Such as a precision of a class that nothing was taken for."""

        def of_class(outputs, x, y, mask, label):
            chosen = mask & (jnp.argmax(outputs["logits"], -1) == label)
            return jnp.sum(chosen & (y == label), dtype=jnp.float32), jnp.sum(chosen, dtype=jnp.float32)

        predict = {"global": lambda sent, client, x: {"logits": jnp.tile(jnp.array([0.0, 1.0, 0.0]), (len(x), 1))}}
        own = {f"precision_{label}": functools.partial(of_class, label=label) for label in (0, 1)}
        group = Group("all", functools.partial(tally, predict=predict), dataclasses.replace(toy.task(), scores=own), np.arange(N))
        sim = simulate(None, [group], evaluation=Evaluation(("global",)))
        found = sim.evaluate(sim.init(0)).metrics
        self.assertEqual(set(found), {"test/global/accuracy", "test/global/loss", "test/global/precision_1"})
        self.assertEqual(found["test/global/precision_1"], found["test/global/accuracy"])

    def test_scores_stand_in_the_order_of_the_ids(self):
        """Whatever the groups: a client's own number is its score's weight."""
        sim = simulate(None, two_groups(tally, (0, 7, 2, 5), (6, 4, 3, 1)), with_test_rows(self.TEST))
        scores = sim.client_scores(sim.init(0))["own"]["personal"]["accuracy"]
        np.testing.assert_array_equal(scores[1], [len(rows) for rows in self.TEST])

    def test_at_most_so_many_clients(self):
        sim = simulate(tally, evaluation=Evaluation(("own",), clients=3))
        chosen = sim.spec.scored_clients()
        self.assertLen(set(chosen.tolist()), 3)
        scores = sim.client_scores(sim.init(0))["own"]["personal"]["accuracy"]
        np.testing.assert_array_equal(scores[1], [len(toy.data().test_index[i]) for i in chosen])

    def test_a_group_may_have_no_client_that_is_scored(self):
        """Where rows are streamed too."""
        of, found = two_groups(tally, (0, 7, 2, 5), (6, 4, 3, 1)), []
        for where in ("device", "host"):
            sim = simulate(None, of, evaluation=Evaluation(("own",), clients=1), data_on=where)
            self.addCleanup(sim.close)
            found.append(sim.evaluate(sim.init(0)).metrics)
        chex.assert_trees_all_equal(*found)

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
        view = sim.client_view(state, 3)  # the same, of one client
        found = {
            name: np.asarray(view.predict(name, held, toy.data().test.x[:1])["logits"])[0] for name, held in view.holds.items()
        }
        chex.assert_trees_all_close(found, {"personal": np.array([0.0, 0.0, 7.0]), "global": np.array([9.0, 0.0, 0.0])})
        chex.assert_trees_all_equal(jax.device_get(state), before)
