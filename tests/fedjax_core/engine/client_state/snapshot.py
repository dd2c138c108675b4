"""Snapshots of simulations whose client states are off the devices, in memory."""

import jax
import numpy as np


def take(sim, state):
    """(what `to_host` returns, the parts of the client states)."""
    offloaded = sim.offloaded_states
    return jax.tree.map(np.copy, (sim.to_host(state), list(offloaded.read_parts(offloaded.plan_parts(None)))))


def restore(sim, taken):
    """The state of a snapshot, whose client states are the simulation's from now on."""
    saved, parts = taken
    return sim.from_host(saved, lambda wanted: enumerate(parts))
