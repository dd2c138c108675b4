"""Compiled programs: how many there are, and what is never baked into one."""

import dataclasses
import functools
import os
import re
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.engine import client_loop, dispatch, rounds, simulator
from fedjax_core.task import Task
from methods.fedavg import fedavg
from tests import toy
from tests.fedjax_core.engine.tallied import SGD, N, simulate, tally, two_groups


class StartTest(chex.TestCase):
    def test_the_first_round_compiles_the_round_and_a_copy_of_the_state(self):
        """One program for all of it."""
        build = functools.partial(fedavg, optimizer=SGD, batch=toy.BATCH)
        sim = simulate(None, simulator.one_group(build, toy.task(13), N), plan=client_loop.Plan(1, 1))
        state = sim.init(0)
        with jax.log_compiles(), self.assertLogs("jax", "WARNING") as logs:
            sim.run_rounds(state, 1)
        found = [match[1] for record in logs.records if (match := re.match(r"Compiling jit\((\w+)\)", record.getMessage()))]
        self.assertEqual(found, ["_copy", "run_resident_rounds"])

    def test_the_first_state_is_compiled_at_a_lower_level(self):
        """At XLA's own level a small kernel with four axes takes seconds: its draws are unrolled. A level of the user's stays."""
        build = functools.partial(fedavg, optimizer=SGD, batch=toy.BATCH)
        sim = simulate(None, simulator.one_group(build, toy.task(13), N), plan=client_loop.Plan(1, 1))
        given = sim.compiled.device_arrays, jax.random.key_data(jax.random.key(5))
        states = []
        for flags, level in (("", 2), (f"--{dispatch.LEVEL}=3", 3)):
            with mock.patch.dict(os.environ, {"XLA_FLAGS": flags}):
                self.assertEqual(dispatch.start_options(sim.spec), {dispatch.LEVEL: level} if level == 2 else {})
            program = jax.jit(functools.partial(rounds.init_state, sim.spec), compiler_options={dispatch.LEVEL: level})
            states.append(program(*given).server)
        chex.assert_trees_all_close(*states, rtol=1e-6)


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
            sim = simulate(None, simulator.one_group(build, given, N))
            state = sim.init(0)
            texts.append(
                sim.compiled.programs.run_resident_rounds.lower(
                    sim.compiled.device_arrays, state, sim.compiled.put(np.int32(1))
                ).as_text()
            )
            state, _ = sim.run_rounds(state, 2)
            ends.append(jax.device_get(state.server.net))
        chex.assert_trees_all_close(*ends, atol=1e-6)
        large = re.compile(rf"constant dense<\S*> : tensor<{ROWS}x")
        self.assertIsNone(large.search(texts[0]))
        self.assertIsNotNone(large.search(texts[1]))

    def test_nor_are_the_data(self):
        sim, before, _ = toy.reference("fedavg")
        text = sim.compiled.programs.run_resident_rounds.lower(
            sim.compiled.device_arrays, sim.compiled.put(before), sim.compiled.put(np.int32(1))
        ).as_text()
        rows = len(toy.data().train.y)
        self.assertIsNone(re.search(rf"constant dense<\S*> : tensor<{rows}x", text))
        self.assertIn(f"tensor<{rows}x{toy.INPUTS}xf32>", text)

    def test_nor_is_who_has_which_network(self):
        sim = simulate(None, two_groups(tally))
        text = sim.compiled.programs.run_resident_rounds.lower(
            sim.compiled.device_arrays, sim.init(0), sim.compiled.put(np.int32(1))
        ).as_text()
        self.assertIsNone(re.search(r"constant dense<\[[0-7, ]+\]> : tensor<\d+xi32>", text))
