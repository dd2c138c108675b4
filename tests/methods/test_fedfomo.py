"""FedFomo in loops over pairs of clients, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from methods.fedfomo import choose_models, fedfomo, split_rows
from tests import naive, toy
from tests.methods.test_fedamp import flat
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, ended, made, one, simulate
from tests.methods.test_ifca import risk

SERVER = 5  # stream
SPLIT = 0x666F6D6F  # key of the choice of validation examples


def shuffled_rows():
    """Each client's (x, y), validation examples last."""
    places = [naive.permutation(jax.random.key(SPLIT), len(y)) for _, y in naive.rows(toy.data())]
    return [(x[order], y[order]) for (x, y), order in zip(naive.rows(toy.data()), map(np.array, places), strict=True)]


def chosen(preference, known, number, epsilon, key):
    """Lists of clients, shorter than `number` where not as many are known."""
    ties, order, coins = (np.asarray(jax.random.uniform(k, preference.shape)) for k in jax.random.split(key, 3))
    lists = []
    for i in range(len(preference)):
        others = sorted((j for j in known if j != i), key=lambda j: (-preference[i, j], ties[i, j]))
        best, rest = others[:number], sorted(others[number:], key=lambda j: order[i, j])
        lists.append([rest[m] if coins[i, m] < epsilon and m < len(rest) else best[m] for m in range(len(best))])
    return lists


def mixed(theta, received, x, y, share, distance):
    """(Theta_i after mixing, the ratios, its training examples), of shuffled rows."""
    held_out = int(share * len(y))
    rows = slice(len(y) - held_out)
    if not held_out or not received:
        return theta, [0.0] * len(received), rows
    check = x[rows.stop :], y[rows.stop :]
    ratios = []
    for other in received:
        apart = distance(flat(other[0]) - flat(theta[0]))
        ratios.append((risk(theta, *check) - risk(other, *check)) / apart if apart else 0.0)
    good = [max(0.0, ratio) for ratio in ratios]
    end = theta
    for w, other in zip(good, received, strict=True):
        end = naive.plus(end, naive.minus(other, theta), w / sum(good)) if w else end
    return end, ratios, rows


def oracle(rounds, number, epsilon, decay, share, distance=np.linalg.norm):
    """All clients' models, the preferences, and the lists of the next round."""
    clients = shuffled_rows()
    n = len(clients)
    theta = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * n
    sent, preference, lists = {}, np.zeros((n, n)), [[] for _ in range(n)]
    for r in range(rounds):
        came = {}
        for i in naive.cohort(0, r, n, 5):
            x, y = clients[i]
            start, ratios, rows = mixed(theta[i], [sent[j] for j in lists[i]], x, y, share, distance)
            for j, ratio in zip(lists[i], ratios, strict=True):
                preference[i, j] += ratio
            end = naive.train(MODEL, *start, x[rows], y[rows], naive.client_key(0, r, i), epochs=2, **STEPS)
            theta[i] = came[i] = end.params, end.stats
        sent |= came
        lists = chosen(preference, sorted(sent), number, max(0, epsilon - decay * r), naive.stream(0, SERVER, r))
    return theta, preference, lists


def agree(state, theta, preference, lists):
    for i, net in enumerate(theta):
        chex.assert_trees_all_close(tuple(one(state.clients[0], i)), net, atol=1e-5)
        ids = state.server.chosen[i].tolist()
        assert ids == lists[i] + [i] * (len(ids) - len(lists[i]))
    np.testing.assert_allclose(state.server.preference, preference, atol=1e-4)


class FedFomoTest(chex.TestCase):
    def test_equals_the_loops(self):
        sim, _, two = toy.reference("fedfomo")
        settings = dict(number=3, epsilon=0.4, decay=0.1, share=0.4)
        agree(two, *oracle(2, **settings))
        theta, preference, lists = oracle(4, **settings)
        agree(jax.device_get(sim.run_rounds(sim.compiled.put(two), 2)[0]), theta, preference, lists)
        self.assertGreater(np.sum(preference > 0), 2)
        self.assertGreater(np.sum(preference < 0), 2)

    def test_distances_may_be_sums_of_absolute_values(self):
        state = ended(made(fedfomo, epochs=2, models=3, epsilon=0.0, validation=0.4, norm="l1"))
        agree(state, *oracle(2, number=3, epsilon=0.0, decay=0.0, share=0.4, distance=lambda x: np.sum(np.abs(x))))

    def test_without_models_it_is_local_on_what_is_not_held_out(self):
        clients = ended(made(fedfomo, epochs=2, models=0, validation=0.4)).clients[0]
        theta, _, _ = oracle(2, 0, 0.0, 0.0, 0.4)
        for i, net in enumerate(theta):
            chex.assert_trees_all_close(tuple(one(clients, i)), net, atol=2e-6)

    def test_of_others_the_better_one_alone_is_used(self):
        """No epochs: what is left is the mixture. The first is better, the second its own, the third worse."""
        x, y = shuffled_rows()[0]
        nets = [MODEL.init(jax.random.key(k)) for k in range(30)]
        check = x[len(y) - 4 :], y[len(y) - 4 :]
        best, *_, worst = sorted(nets, key=lambda net: risk(net, *check))
        own = sorted(nets, key=lambda net: risk(net, *check))[15]
        received = jax.tree.map(lambda *leaves: jnp.stack(leaves), best, own, worst)
        out = toy.update_client(made(fedfomo, validation=0.5, epochs=0)(toy.task()), received, own)
        chex.assert_trees_all_close(out.state.params, jax.device_get(best.params), atol=1e-6)
        ratios = out.uplink[1]
        self.assertGreater(ratios[0], 0)
        self.assertEqual(ratios[1], 0)
        self.assertLess(ratios[2], 0)

    def test_validation_examples_of_rows_sorted_by_class_have_every_class(self):
        y, size = np.repeat(np.arange(5), 20), 100
        data = toy.client_data(0)._replace(index=jnp.pad(jnp.arange(size), (0, 28)), size=jnp.int32(size))
        rows, check = split_rows(data, 0.25)
        ids = [np.asarray(part.index[: int(part.size)]) for part in (rows, check)]
        self.assertEqual([len(part) for part in ids], [75, 25])
        self.assertCountEqual(np.concatenate(ids), range(size))
        for part in ids:
            self.assertCountEqual(np.unique(y[part]), range(5))

    def test_padding_changes_no_validation_example(self):
        data = toy.client_data(0)
        padded = data._replace(index=jnp.pad(data.index, (0, 9)))
        for part, same in zip(split_rows(data, 0.4), split_rows(padded, 0.4), strict=True):
            size = int(part.size)
            self.assertEqual(int(same.size), size)
            np.testing.assert_array_equal(part.index[:size], same.index[:size])

    def test_choices_are_those_of_loops(self):
        preference = np.random.default_rng(0).integers(0, 3, (8, 8)).astype(np.float32)
        for epsilon, known in ((0.0, [0, 2, 3, 5, 7]), (1.0, [0, 2, 3, 5, 7]), (0.5, list(range(8))), (0.5, [4]), (0.5, [])):
            mask, key = jnp.isin(jnp.arange(8), jnp.asarray(known, int)), jax.random.key(3)
            ids = choose_models(jnp.asarray(preference), mask, 3, jnp.float32(epsilon), key).tolist()
            for i, those in enumerate(chosen(preference, known, 3, epsilon, key)):
                self.assertEqual(ids[i], those + [i] * (3 - len(those)))

    def test_what_travels(self):
        shapes = toy.reference("fedfomo")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (3 * 4 * numbers, 4 * numbers + 3 * 4))

    @parameterized.parameters(
        (dict(models=-1), "^models=-1 must be at least 0$"),
        (dict(validation=1.0), r"^validation=1.0 must be in \[0, 1\)$"),
        (dict(norm="max"), "^norm='max' must be one of 'l2', 'l1'$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedfomo, **arguments))
