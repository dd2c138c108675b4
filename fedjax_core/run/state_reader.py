"""What callbacks may read of a run while it goes on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_core.engine.client_view import View
from fedjax_core.engine.simulator import Simulation, State


class Look:
    """The state of a run as it is between rounds, to read only: nothing that is done with it changes the run.

    A callback has it from `Started.look`, and may ask it in `start`, `round` and `evaluation`. It shows the newest
    state: where several rounds were computed together, that after the last of them.
    """

    def __init__(self, simulation: Simulation, newest: Callable[[], tuple[State, int]]):
        """Keeps what is read.

        Args:
          simulation: of the run.
          newest: () -> (state, rounds done).
        """
        self._simulation, self._newest = simulation, newest

    @property
    def done(self) -> int:
        """Rounds done."""
        return self._newest()[1]

    @property
    def clients(self) -> int:
        """N, how many clients there are, those aside that are unseen."""
        return self._simulation.spec.population

    def view(self, client: int) -> View:
        """Returns what one client holds, and its models: `client_view.predict(name, view.holds[name], x)`.

        Args:
          client: its id.

        Raises:
          ValueError: there is no such client, or the run has several processes.
        """
        self._check_alone()
        seen = self._simulation.view(self._newest()[0], client)
        held = dataclasses.replace(seen.task, frozen=_read_only(seen.task.frozen), public=_read_only(seen.task.public))
        return seen._replace(task=held, holds={name: _read_only(held) for name, held in seen.holds.items()})

    def scored_clients(self) -> np.ndarray:
        """Returns the ids of the clients that are scored, sorted: all, or `config.evaluation.clients` of them."""
        return self._simulation.spec.scored_clients()

    def client_scores(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Returns scores by client, {scope: {model: {score: [E]}}}, in the order of `scored_clients`.

        Scopes are "own" and "all" of `config.evaluation.scopes`, and "validation" where clients have such rows. A
        client without rows for it has NaN. It takes as long as an evaluation.

        Raises:
          ValueError: the run has several processes.
        """
        self._check_alone()
        found = self._simulation.client_scores(self._newest()[0])
        return {
            scope: {model: {score: _mean(*pair) for score, pair in pairs.items()} for model, pairs in models.items()}
            for scope, models in found.items()
        }

    def _check_alone(self) -> None:
        """Raises ValueError in a run of several processes, which would have to ask together."""
        if jax.process_count() > 1:
            raise ValueError(
                f"the state of a run on {jax.process_count()} processes cannot be read by a callback, which is called "
                "in one of them; experiment.load reads its checkpoints"
            )


def _mean(total: Any, weight: Any) -> np.ndarray:
    """[E] sums over their weights; NaN where the weight is zero."""
    weight = np.asarray(weight, np.float64)
    mean = np.full(weight.shape, np.nan)
    np.divide(np.asarray(total, np.float64), weight, out=mean, where=weight > 0)
    return mean


def _read_only(tree: Any) -> Any:
    """The same arrays, into which nobody can write."""

    def locked(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        seen = leaf.view()
        seen.flags.writeable = False
        return seen

    return jax.tree.map(locked, tree)
