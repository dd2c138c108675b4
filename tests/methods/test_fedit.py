"""FedIT: uniform FedAvg of whatever a network trains."""

import functools

import chex
import jax
from absl.testing import parameterized

from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import aggregators
from fedjax_core.training.metrics import nbytes
from methods.fedit import fedit
from tests import naive, toy
from tests.methods.test_fedper import made, simulate


@functools.cache
def adapted():
    """Two rounds on an adapter without dropout."""
    groups = simulator.one_group(made(fedit, epochs=2), toy.task_adapted(dropout=0.0), toy.CLIENTS)
    sim = simulator.Simulator(simulator.build_spec(groups, toy.data(), plan=client_loop.Plan(1, 1), rounds_per_dispatch=2))
    state, _ = sim.run_rounds(sim.init(0), 2)
    return sim, jax.device_get(state)


class FedITTest(chex.TestCase):
    def test_is_uniform_fedavg(self):
        chex.assert_trees_all_equal(toy.reference("fedit")[2].server.net, toy.reference("fedavg_uniform")[2].server.net)

    def test_on_an_adapter_it_is_the_loop(self):
        """The frozen body stands in the loops' model."""
        model = toy.task_adapted(dropout=0.0).model
        _, state = adapted()
        w = model.init(naive.stream(0, naive.INIT))
        for r in range(2):
            deltas = []
            for i, (x, y) in enumerate(naive.rows(toy.data())):
                key = naive.client_key(0, r, i)
                end = naive.train(model, *w, x, y, key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
                deltas.append(naive.minus(end.params, w.params))
            w = w._replace(params=naive.plus(w.params, naive.mean(deltas, [1] * len(deltas))))
        chex.assert_trees_all_close(state.server.net, w, atol=5e-6)

    def test_the_body_neither_changes_nor_travels(self):
        sim, state = adapted()
        body = toy.task_adapted().frozen
        chex.assert_trees_all_equal(sim.spec.host_arrays.tasks[0][0], body)
        numbers = (5 * 2 + 2 * 6) + (6 * 3 + 3)
        self.assertEqual((sim.spec.shapes.down, sim.spec.shapes.up), (4 * numbers, 4 * numbers))
        self.assertEqual(nbytes(state.server), 4 * numbers)
        self.assertEqual(nbytes(state.clients), 0)

    def test_weights(self):
        for name, weight_fn in aggregators.WEIGHT_FNS.items():
            self.assertIs(made(fedit, weights=name)(toy.task()).collect.weight_fn, weight_fn)

    @parameterized.parameters((dict(weights="sample"), "weights='sample'"), (dict(epochs=-1), "epochs=-1"))
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedit, **arguments))
