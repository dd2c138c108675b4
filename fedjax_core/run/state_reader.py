"""Read access of callbacks to the state of a run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_core.engine.client_view import ClientView
from fedjax_core.engine.simulator import Simulator, State


class StateReader:
    """The read-only state of a run between rounds.

    A callback has it from `Started.look`, and may use it in `start`, `round` and `evaluation`. It
    shows the newest state: if several rounds were computed together, that after the last of them.
    """

    def __init__(self, simulation: Simulator, newest: Callable[[], tuple[State, int]]):
        """Stores where to read.

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
        """Number of clients N, without unseen ones."""
        return self._simulation.spec.population

    def view(self, client: int) -> ClientView:
        """Returns the state and models of one client: `client_view.predict(name, view.holds[name],
        x)`.

        Args:
          client: its id.

        Raises:
          ValueError: there is no such client, or the run has several processes.
        """
        self._check_alone()
        view = self._simulation.client_view(self._newest()[0], client)
        task = dataclasses.replace(view.task, frozen=_read_only(view.task.frozen), public=_read_only(view.task.public))
        return view._replace(task=task, holds={name: _read_only(model) for name, model in view.holds.items()})

    def scored_clients(self) -> np.ndarray:
        """Returns the ids of the clients that are scored, sorted: all, or
        `config.evaluation.clients` of them.
        """
        return self._simulation.spec.scored_clients()

    def client_scores(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Returns scores by client, {scope: {model: {score: [E]}}}, in the order of
        `scored_clients`.

        Scopes are "own" and "all" of `config.evaluation.scopes`, and "validation" if clients have
        such examples. A client without examples of a scope has NaN. A call takes as long as an
        evaluation.

        Raises:
          ValueError: the run has several processes.
        """
        self._check_alone()
        sums = self._simulation.client_scores(self._newest()[0])
        return {
            scope: {model: {score: _mean(*pair) for score, pair in pairs.items()} for model, pairs in models.items()}
            for scope, models in sums.items()
        }

    def _check_alone(self) -> None:
        """Raises ValueError in a run of several processes, which would all have to call."""
        if jax.process_count() > 1:
            raise ValueError(
                f"the state of a run on {jax.process_count()} processes cannot be read by a callback, which is called "
                "in one of them; experiment.load reads its checkpoints"
            )


def _mean(total: Any, weight: Any) -> np.ndarray:
    """Returns sums [E] divided by weights [E]; NaN where the weight is zero."""
    weight = np.asarray(weight, np.float64)
    mean = np.full(weight.shape, np.nan)
    np.divide(np.asarray(total, np.float64), weight, out=mean, where=weight > 0)
    return mean


def _read_only(tree: Any) -> Any:
    """Returns read-only views of the arrays of a tree."""

    def lock(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = leaf.view()
            leaf.flags.writeable = False
        return leaf

    return jax.tree.map(lock, tree)
