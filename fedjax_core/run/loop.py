"""The loop of a run: rounds, and between them evaluation, records and checkpoints.

`run` trains one run. `run_seeds` trains several runs of one config, whose rounds are one program.
Both use the steps of `training_run.TrainingRun`, to which callbacks, early stopping and signals are
attached.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_core.engine.simulator import Simulator
from fedjax_core.engine.vmapped_runs import Result, VmappedSeeds
from fedjax_core.run.measurement import measure_time
from fedjax_core.run.settings import Finished, Interrupted, RunSettings
from fedjax_core.run.signals import StopRequest, lenient_console
from fedjax_core.run.training_run import TrainingRun, open_run

Outcome = Finished | Exception | Interrupted  # of one of several runs: what it returned or raised
RunArguments = tuple[Simulator, str, Mapping[str, Any], RunSettings]  # what `run` takes


def run(simulator: Simulator, directory: str, config: Mapping[str, Any], settings: RunSettings) -> Finished:
    """Trains a run to its last round, from the last checkpoint of its directory if it has one.

    A run that is killed at any moment and called again ends bit for bit as if it had not been: the
    plan is recorded and used again.

    Args:
      config: all that defines the run, as plain values. In the directory only fields of
        `MAY_DIFFER` may differ.

    Raises:
      ValueError: the directory holds another run, or this run on other data.
      OSError: the directory cannot be written.
      Diverged: something was not finite; earlier checkpoints are intact.
      Interrupted: SIGINT, SIGTERM or SIGHUP came, and a checkpoint was written.
      CallbackFailed: a callback raised; a checkpoint was written, if a round was done.
    """
    with lenient_console(), open_run(simulator, directory, config, settings) as training:
        for stop_round in training.round_boundaries():
            training.complete(training.train_to(stop_round))
        return training.finish()


def run_seeds(runs: Sequence[RunArguments], vmapped: VmappedSeeds) -> list[Outcome]:
    """Trains runs that differ in their seed together, as `run` does each.

    Each has its own records, evaluations and checkpoints. One that ends or fails leaves the others
    as they are. Between rounds each is what it is alone; its rounds agree with those of the run
    alone to rounding.

    Args:
      runs: the arguments of `run` for each; their simulators are those of `vmapped`.
    """
    outcomes: dict[int, Outcome] = {}
    training: dict[int, TrainingRun] = {}
    open_runs = [contextlib.ExitStack() for _ in runs]

    @contextlib.contextmanager
    def step_of(i: int) -> Iterator[None]:
        """Runs a step of run i, and closes the run if it is over or failed; the others go on."""
        try:
            with open_runs[i] as opened:
                yield
                if training[i].is_over:
                    outcomes[i] = training[i].finish()
                else:
                    open_runs[i] = opened.pop_all()
        except (Exception, Interrupted) as error:
            outcomes[i] = error
        if i in outcomes:
            training.pop(i, None)

    with lenient_console(), StopRequest() as stop:
        try:
            for i, arguments in enumerate(runs):
                with step_of(i):
                    training[i] = open_runs[i].enter_context(open_run(*arguments, stop))
            while training:
                n = min(seed.next_stop() - seed.done for seed in training.values())
                groups: dict[bool, list[int]] = {}
                for i, seed in training.items():
                    groups.setdefault(seed.scores_clients_in(seed.done + n), []).append(i)
                for scored, group in groups.items():
                    seeds = [training[i] for i in group]
                    results, *seconds = measure_time(lambda: _advance_seeds(vmapped, seeds, n, scored))  # noqa: B023
                    for i, seed, result in zip(group, seeds, results, strict=True):
                        with step_of(i):
                            if isinstance(result, Exception):
                                raise result
                            seed.complete(seed.accept_rounds(result, *seconds))
        except BaseException as error:
            for opened in open_runs:  # each run ends by this error, as it would alone
                with contextlib.suppress(BaseException), opened:
                    raise error
            raise
    return [outcomes[i] for i in range(len(runs))]


def _advance_seeds(vmapped: VmappedSeeds, seeds: Sequence[TrainingRun], n: int, scored: bool) -> Sequence[Result]:
    """Does n rounds of each. An error of the whole program is an error of each."""
    try:
        return vmapped.advance_seeds([(seed.simulator, seed.state) for seed in seeds], n, scored)
    except Exception as error:
        return [error] * len(seeds)
