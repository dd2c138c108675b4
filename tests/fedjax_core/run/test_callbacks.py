"""Callbacks: what they are told, and how they stop a run. One compiled round for all."""

import copy
import dataclasses
import functools
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from fedjax_core import run as runs
from fedjax_core.devices import parse_schedule
from fedjax_core.run.callbacks import Callbacks, Ended, Started, StateReader
from fedjax_core.storage.checkpoints import Checkpoints
from tests import toy

SETTINGS = runs.RunSettings(seed=0, rounds=4, eval_every=2, progress=False)


class Listener:
    """Writes down what it is told, and answers as it is told to."""

    def __init__(self, **answers):
        self.heard, self.answers = [], answers

    def _told(self, what, number):
        self.heard.append((what, number))
        answer = self.answers.get(f"{what}{number}")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def start(self, started: Started):
        return self._told("start", started.done)

    def round(self, record):
        return self._told("round", record["round"])

    def evaluation(self, record):
        assert "test/global/accuracy" in record
        return self._told("evaluation", record["round"])

    def end(self, ended: Ended):
        self.ended = ended
        return self._told(ended.status, ended.done)


@functools.cache
def simulation():
    return toy.simulate("fedavg")


def go(directory, *callbacks, of=simulation):
    said = []
    settings = dataclasses.replace(SETTINGS, callbacks=callbacks, console=said.append)
    done = runs.run(of(), str(directory), {}, settings)
    return done, "\n".join(said)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run that nobody stops: (its callback, what it returned)."""
    listener = Listener()
    return listener, go(tmp_path_factory.mktemp("alone") / "run", listener)[0]


def test_a_run_tells_its_callbacks_everything(alone):
    listener, done = alone
    assert listener.heard == [
        ("start", 0),
        ("round", 1),
        ("round", 2),
        ("evaluation", 2),
        ("round", 3),
        ("round", 4),
        ("evaluation", 4),
        ("finished", 4),
    ]
    assert listener.ended.summary["rounds"] == 4
    assert (done.stopped, done.ended_by) == (False, "")


def test_one_that_asks_stops_the_run_which_goes_on_when_called_again(alone, tmp_path):
    listener, other = Listener(evaluation2="good enough"), Listener()
    done, said = go(tmp_path / "run", listener, other)
    assert (int(done.state.round), done.stopped, done.ended_by) == (2, False, "Listener: good enough")
    assert "stopped after round 2 by callback Listener: good enough; the same command resumes from there" in said
    assert listener.heard[-1] == other.heard[-1] == ("stopped", 2)
    assert listener.ended.why == "Listener: good enough"
    again = Listener()
    done, said = go(tmp_path / "run", again)
    assert "after round 2" in said
    assert again.heard[0] == ("start", 2)
    assert again.heard[-1] == ("finished", 4)
    chex.assert_trees_all_equal(jax.device_get(done.state), jax.device_get(alone[1].state))


def test_one_that_fails_ends_the_run_by_name_and_leaves_a_checkpoint(tmp_path):
    listener, other = Listener(round1=KeyError("x")), Listener()
    with pytest.raises(
        runs.CallbackFailed,
        match=r"^callback Listener failed in round\(\): KeyError: 'x' "
        r"\(the last checkpoint is of round 1\)$",
    ) as raised:
        go(tmp_path / "run", listener, other)
    assert isinstance(raised.value.__cause__, KeyError)
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == 1
    assert listener.heard[-1] == other.heard[-1] == ("failed", 1)
    with pytest.raises(runs.CallbackFailed, match=r"failed in start\(\)"):
        go(tmp_path / "run", Listener(start1=ValueError("no server")))
    fails_at_the_end = Listener(finished4=OSError("gone"))
    with pytest.raises(runs.CallbackFailed, match=r"failed in end\(\): OSError: gone \(the run itself is complete\)"):
        go(tmp_path / "run", fails_at_the_end)
    assert fails_at_the_end.heard.count(("finished", 4)) == 1
    assert ("failed", 4) not in fails_at_the_end.heard
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == 4


class Meddler(Listener):
    """Changes all that it is given."""

    def start(self, started):
        started.config["method"]["lr"] = 9.0

    def round(self, record):
        record["test/global/accuracy"] = 2.0
        record["round"] = 7

    def evaluation(self, record):
        self.round(record)

    def end(self, ended):
        ended.summary["metrics"].clear()


def test_what_a_callback_changes_is_its_own(alone, tmp_path):
    """A score that it makes up does not end the run, nor reach the files or another callback."""
    config, listener = {"method": {"lr": 0.1}}, Listener()
    until, callbacks = "test/global/accuracy >= 1.0", [Meddler(), listener]
    settings = dataclasses.replace(SETTINGS, until=until, console=lambda text: None, callbacks=callbacks)
    done = runs.run(simulation(), str(tmp_path / "run"), config, settings)
    assert listener.heard == alone[0].heard
    assert listener.ended.summary["metrics"] == done.summary["metrics"] == alone[1].summary["metrics"]
    assert config == {"method": {"lr": 0.1}}
    assert done.history["test/global/accuracy"].values.max() <= 1.0
    assert repr(done).startswith("Finished(test/global/accuracy 0.")
    assert len(repr(done)) < 200


class Abort(BaseException):
    """What is no Exception."""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (SystemExit(0), "SystemExit: 0 "),
        (Abort("enough"), "Abort: enough "),
    ],
    ids=["exit", "other"],
)
def test_one_that_exits_ends_the_run_by_name_and_leaves_a_checkpoint(tmp_path, raised, said):
    with pytest.raises(runs.CallbackFailed, match=rf"^callback Listener failed in round\(\): {said}.*of round 1\)$"):
        go(tmp_path / "run", Listener(round1=raised))
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == 1


def test_what_is_no_callback_is_refused():
    for wrong in (print, Listener, object()):
        with pytest.raises(
            TypeError, match=r"callbacks\[0\]=.* is no object with one of the methods start, round, evaluation, end"
        ):
            Callbacks([wrong])


def test_one_is_found_by_name():
    (found,) = Callbacks([f"{__name__}:Listener(round1=True)"])._callbacks
    assert found.answers == {"round1": True}
    with pytest.raises(ValueError, match=r"unknown callback 'wand'; allowed: wandb, mlflow\. Did you mean 'wandb'\?"):
        Callbacks(["wand(project='x')"])
    with pytest.raises(TypeError, match="callback 'wandb' has no option 'projekt'; it takes: project, name, mode, directory"):
        Callbacks(["wandb(projekt='x')"])


def test_an_answer_is_none_true_or_a_text():
    answers = ((None, ""), (False, ""), (np.False_, ""), (True, "Listener"), (np.True_, "Listener"), ("why", "Listener: why"))
    for answer, asked in answers:
        hooks = Callbacks([Listener(round1=answer)])
        hooks.rounds([{"round": 1}], False)
        assert (hooks.stop_reason, hooks.failed) == (asked, None)
    hooks = Callbacks([Listener(round1=0.3)])
    hooks.rounds([{"round": 1}], False)
    assert "round() returned 0.3; allowed are None, True, or a string" in str(hooks.failed)


def test_other_processes_call_none():
    listener = Listener()
    Callbacks([listener], writer=False).rounds([{"round": 1}], False)
    assert not listener.heard


class Reader:
    """Reads the state after each evaluation."""

    def __init__(self):
        self.found = []

    def start(self, started: Started):
        self.look = started.look
        assert (self.look.done, self.look.clients) == (started.done, simulation().spec.population)

    def evaluation(self, record):
        view, scores = self.look.view(3), self.look.client_scores()
        self.found.append((self.look.done, record, view, scores))
        for leaf in jax.tree.leaves((view.holds, view.task.frozen)):
            with pytest.raises((ValueError, TypeError)):
                leaf[...] = 0


def test_a_callback_reads_the_state_and_changes_nothing(alone, tmp_path):
    reader, sim = Reader(), simulation()
    done, _ = go(tmp_path / "run", reader)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), done.state.server, alone[1].state.server))
    assert [entry[0] for entry in reader.found] == [2, 4]
    for number, record, view, scores in reader.found:
        state = sim.run_rounds(sim.init(0), number)[0]
        chex.assert_trees_all_close(view.holds, sim.client_view(state, 3).holds, atol=1e-6)
        x = sim.spec.data.test.x[:5]
        assert view.predict("global", view.holds["global"], x)["logits"].shape == (5, toy.CLASSES)
        for model, each in scores["own"].items():
            assert each["accuracy"].shape == reader.look.scored_clients().shape
            mean = record[f"test/{model}/own/accuracy/mean"]
            assert np.nanmean(each["accuracy"]) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedavg", {"schedule": parse_schedule("fedbuff(buffer=2)")}), ("fedper", {"hold": "disk"}), ("fedper", {"hold": "host"})],
    ids=["asynchronous", "disk", "host"],
)
def test_a_callback_reads_the_newest_state_wherever_it_is(tmp_path, method, settings):
    reader, sim = Reader(), toy.simulate(method, mixed=False, **settings)
    done, _ = go(tmp_path / "run", reader, of=lambda: sim)
    assert [entry[0] for entry in reader.found] == [2, 4]
    chex.assert_trees_all_equal(reader.found[-1][2].holds, sim.client_view(done.state, 3).holds)


def test_what_reads_the_state_is_not_copied():
    look = StateReader(simulation(), lambda: (None, 0))
    assert copy.deepcopy(Started(Path(), {}, 4, 0, look)).look is look


def test_the_state_of_several_processes_is_not_read(monkeypatch):
    look = StateReader(simulation(), lambda: (None, 0))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for ask in (lambda: look.view(0), look.client_scores):
        with pytest.raises(ValueError, match="on 2 processes cannot be read by a callback"):
            ask()
