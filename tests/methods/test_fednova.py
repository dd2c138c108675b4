"""FedNova in loops, with effective steps by the paper's formulas, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from fedjax_core.algorithm import ClientSettings
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fednova import fednova
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL, divided


def effective(steps, momentum=0.0):
    """|a|_1 of SGD with momentum: how often the gradients count in its change."""
    return sum(sum(momentum**age for age in range(steps - k)) for k in range(steps))


def oracle(seed, rounds, *, cohort=5, epochs=2, batch=toy.BATCH, momentum=0.5):
    """x and its statistics after some rounds, with normalised changes."""
    clients = naive.rows(toy.data())
    x, stats = MODEL.init(naive.stream(seed, naive.INIT))
    for r in range(rounds):
        directions, drifts, share, counts = [], [], [], []
        for i in naive.cohort(seed, r, len(clients), cohort):
            key = naive.client_key(seed, r, i)
            passes = epochs if isinstance(epochs, int) else epochs[i]
            y = naive.train(MODEL, x, stats, *clients[i], key, epochs=passes, batch=batch, lr=0.1, momentum=momentum)
            counts.append(effective(len(y.gradients), momentum))
            directions.append(jax.tree.map(lambda d, a=counts[-1]: d / a, naive.minus(y.params, x)))
            drifts.append(naive.minus(y.stats, stats))
            share.append(len(clients[i][1]))
        tau = np.average(counts, weights=share)
        x = naive.plus(x, naive.mean(directions, share), tau)
        stats = naive.plus(stats, naive.mean(drifts, share))
    return x, stats


class FedNovaTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fednova")
        chex.assert_trees_all_close(tuple(after.server.net), oracle(0, 2), atol=1e-5)

    def test_clients_with_their_own_epochs_count_by_their_own_steps(self):
        epochs = [1, 4, 2, 1, 3, 5, 2, 1]
        case = toy.Case(functools.partial(fednova, epochs=local_training.EpochsByClient(2), batch=toy.BATCH), task=toy.task)
        simulation = case.simulate(client_settings=ClientSettings(epochs=np.array(epochs, np.int32)))
        after, _ = simulation.run_rounds(simulation.init(0), 2)
        chex.assert_trees_all_close(tuple(after.server.net), oracle(0, 2, epochs=epochs), atol=1e-5)

    @parameterized.parameters(
        (dict(), 0.0, 5.0),
        (dict(momentum=0.9), 0.0, 13.1441),
        (dict(), 0.25, (1 - (1 - 0.1 * 0.25) ** 5) / (0.1 * 0.25)),  # 4.75617
        (dict(clip=0.5), 0.0, 5.0),
        (dict(anneal="linear"), 0.0, 1 + 0.8 + 0.6 + 0.4 + 0.2),
    )
    def test_measured_steps_are_the_closed_forms(self, options, mu, expected):
        chain = optax.chain(local_training.add_proximal_term(mu), local_training.sgd(0.1, **options)(0))
        optimizer, params = local_training.measure_steps(chain), {"w": jnp.ones(3)}
        state = optimizer.init(params)
        for k in range(5):
            updates, state = optimizer.update({"w": jnp.full(3, 0.7)}, state, params, progress=k / 5)
            params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(state.moved / 0.1, expected, rtol=1e-4)
        self.assertEqual(float(state.steps), 5)
        np.testing.assert_allclose(state.unit, 0.1, rtol=1e-5)

    @parameterized.parameters(0.0, 0.9)
    def test_with_as_many_steps_for_all_it_is_fedavg(self, momentum):
        settings = dict(optimizer=local_training.sgd(0.1, momentum=momentum), epochs=3, batch=6)  # one step an epoch for all
        ours, theirs = (quadratics.run(functools.partial(method, **settings), 2).server.net for method in (fednova, fedavg))
        np.testing.assert_allclose(quadratics.weights(ours), quadratics.weights(theirs), atol=1e-5)

    @parameterized.parameters("mean_a", "mean_steps")
    def test_constant_gradients_count_by_their_clients_examples_alone(self, tau_eff):
        """FedAvg weighs them by their numbers of steps, too."""
        rate, share = 0.1, np.array(quadratics.SIZES) / sum(quadratics.SIZES)
        steps = np.array([2 * -(-n // 2) for n in quadratics.SIZES])
        c = np.array(quadratics.constant_gradients(alike=True))
        settings = dict(optimizer=local_training.sgd(rate), epochs=2, batch=2)
        run = lambda method: quadratics.run(method, 1, loss=quadratics.linear, alike=True).server.net
        ours = run(functools.partial(fednova, tau_eff=tau_eff, **settings))
        mean = np.tensordot(share, c, 1)
        np.testing.assert_allclose(quadratics.weights(ours), quadratics.first() - rate * (share @ steps) * mean, rtol=1e-5)
        plain = run(functools.partial(fedavg, **settings))
        np.testing.assert_allclose(
            quadratics.weights(plain), quadratics.first() - rate * np.tensordot(share * steps, c, 1), rtol=1e-5
        )

    def test_server_momentum_repeats_a_part_of_the_last_step(self):
        settings = dict(optimizer=local_training.sgd(0.1), epochs=2, batch=2, server_momentum=0.5)
        run = lambda n: quadratics.run(functools.partial(fednova, **settings), n, loss=quadratics.linear, alike=True).server.net
        w = [quadratics.weights(run(n)) for n in (1, 2)]
        np.testing.assert_allclose(w[1] - w[0], 1.5 * (w[0] - quadratics.first()), rtol=1e-4)

    def test_what_travels(self):
        shapes = toy.reference("fednova")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * (numbers + 1)))

    @parameterized.parameters(optax.adam, optax.adagrad, optax.rmsprop, optax.lion, optax.yogi)
    def test_adam_and_its_like_are_refused(self, rule):
        with self.assertRaisesRegex(ValueError, "^FedNova needs an optimizer whose steps are proportional .* not adam$"):
            fednova(toy.task(), optimizer=lambda round_num: rule(0.1))

    @parameterized.parameters(
        (lambda rule, i: rule(0.1 * jnp.minimum(i / 5, 1)),),  # rises from round to round
        (lambda rule, i: rule(optax.linear_schedule(0.0, 0.1, 5)),),  # from step to step
    )
    def test_a_rate_that_rises_from_0_hides_no_adam(self, warm_up):
        with self.assertRaisesRegex(ValueError, "proportional to its gradients: sgd, not adam$"):
            fednova(toy.task(), optimizer=functools.partial(warm_up, optax.adam))
        fednova(toy.task(), optimizer=functools.partial(warm_up, optax.sgd))

    def test_a_first_step_of_rate_0_is_no_unit(self):
        """With it as the unit of "mean_steps", the server stood still."""
        settings = dict(optimizer=lambda round_num: optax.sgd(optax.linear_schedule(0.0, 0.1, 5)), epochs=2, batch=2)
        run = quadratics.run(functools.partial(fednova, tau_eff="mean_steps", **settings), 1, loss=quadratics.linear, alike=True)
        self.assertGreater(np.abs(quadratics.weights(run.server.net) - quadratics.first()).max(), 1e-3)

    def test_sgd_is_accepted_with_all_that_bounds_or_bends_it(self):
        every = {"momentum": 0.9, "nesterov": True, "clip": 0.5, "weight_decay": 0.1, "decay": 0.9, "anneal": "linear"}
        fednova(toy.task(), optimizer=local_training.sgd(0.1, **every))

    @parameterized.parameters(
        (dict(mu=-1.0), "^mu=-1.0 must be .*at least 0$"),
        (dict(tau_eff="steps"), "tau_eff='steps' must be one of 'mean_a', 'mean_steps'"),
        (dict(server_momentum=1.0), r"^server_momentum=1.0 must be .*in \[0, 1\)$"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fednova(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    @parameterized.parameters(0.0, 0.9)
    def test_one_client_trains_as_if_alone(self, momentum):
        """Its effective steps are divided out and multiplied in again."""
        index = np.arange(4, 17)
        optimizer = local_training.sgd(0.1, momentum=momentum)
        build = functools.partial(fednova, optimizer=optimizer, epochs=2, batch=toy.BATCH)
        groups = simulator.one_group(build, toy.task(), 1)
        sim = simulator.Simulator(simulator.build_spec(groups, divided(index), plan=client_loop.Plan(1, 1), rounds_per_dispatch=3))
        state, _ = sim.run_rounds(sim.init(1), 3)
        x, y = toy.data().train.x[index], toy.data().train.y[index]
        w = tuple(MODEL.init(naive.stream(1, naive.INIT)))
        for r in range(3):
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=momentum)
            trained = naive.train(MODEL, *w, x, y, naive.client_key(1, r, 0), **settings)
            w = trained.params, trained.stats
        chex.assert_trees_all_close(tuple(jax.device_get(state.server.net)), w, atol=5e-6)
