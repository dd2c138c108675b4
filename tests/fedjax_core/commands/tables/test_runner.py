"""Which runs a table does and which it keeps, and what ends it."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs.tables.base import Column, Measure
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.commands.tables import runner
from fedjax_core.data import digest as contents
from fedjax_core.data import federated_data
from fedjax_core.reporting import reporter as report
from fedjax_core.run import CallbackFailed
from fedjax_core.storage.json_files import write_json
from fedjax_core.storage.workdir import DirectoryInUse
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, run


def test_one_seed_of_everything_comes_before_the_next(tmp_path, fake):
    run(tmp_path)
    names = ["fedavg--iid", "uniform-co--iid", "fedavg--skewed", "uniform-co--skewed"]
    assert fake.done == [f"{name}--seed{seed}" for seed in (0, 1, 2) for name in names]
    assert fake.data[0] is fake.data[1], "data are made once for a column"
    assert fake.data[1] is not fake.data[2]


def test_finished_runs_are_not_run_again_and_a_change_runs_its_row_only(tmp_path, fake):
    run(tmp_path, seeds=[0])
    run(tmp_path, seeds=[0])
    assert len(fake.done) == 4
    changed = definition(
        rows=(definition().rows[0], dataclasses.replace(definition().rows[1], changes={"compression.downlink": "float16"}))
    )
    outcome, said = run(tmp_path, changed, seeds=[0])
    assert fake.done[4:] == ["uniform-co--iid--seed0", "uniform-co--skewed--seed0"]
    assert said[0] == "2 of 4 runs are finished, 2 to do"
    assert len(outcome.results) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 6, "nothing is lost"
    run(tmp_path, seeds=[0])
    assert len(fake.done) == 6, "the old setting is still there"


def test_a_folder_with_other_files_is_left_alone(tmp_path, fake):
    (tmp_path / "table.tex").write_text("my own")
    (tmp_path / "trials.csv").write_text("my own")
    with pytest.raises(ValueError, match=r"is not empty and holds no table \(it has table.tex, trials.csv\); give a new or"):
        run(tmp_path, seeds=[0])
    assert {path.read_text() for path in tmp_path.iterdir()} == {"my own"}
    (tmp_path / "stopped" / "runs").mkdir(parents=True)
    run(tmp_path / "stopped", seeds=[0])
    assert len(fake.done) == 4


def test_a_tilde_is_the_users_home(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run("~/table", seeds=[0])
    assert len(list((tmp_path / "table" / "runs").iterdir())) == 4
    assert not (tmp_path / "~").exists()


def test_a_new_measure_or_target_runs_nothing(tmp_path, fake):
    run(tmp_path, seeds=[0])
    best = definition(measures=(GLOBAL, Measure("best", GLOBAL.scores, "best")), targets=(0.6,))
    run(tmp_path, best, seeds=[0])
    assert len(fake.done) == 4


@pytest.mark.parametrize("changed", ["owners", "public"])
def test_finished_runs_of_other_clients_or_another_public_set_are_not_taken_up(tmp_path, fake, changed):
    """The columns of clients and the public set stand in files; inputs and targets are the same."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    arrays = {"train_features": x, "train_labels": y, "test_features": x[:20], "test_labels": y[:20]}
    owners = {"train_clients": np.arange(40) % 4, "test_clients": np.arange(20) % 4}
    np.savez(tmp_path / "x.npz", **arrays, **owners)
    np.savez(tmp_path / "public.npz", **arrays)
    changes = {"data.source": f"npz:{tmp_path / 'x.npz'}", "public": f"npz:{tmp_path / 'public.npz'}"}
    columns = (Column("natural", {"data.partition": "natural", "data.clients": None}),)
    table = definition(columns=columns, changes=changes)
    run(tmp_path / "table", table, seeds=[0])
    cell = tables.build_cells(table, "smoke", [0])[0]
    data = experiment.dataset(cell.config)
    public = contents.digest_examples("public", experiment.read_public(cell.config, data)).digest
    records = {"data": {"digest": contents.digest_data(data).digest, "public": public}, "partition": {"hash": data.partition_hash}}
    for folder in (tmp_path / "table" / "runs").iterdir():
        write_json(folder / "run.json", records)
    assert not run(tmp_path / "table", table, seeds=[0])[0].failures
    if changed == "owners":
        np.savez(tmp_path / "x.npz", **arrays, **{name: column[::-1] for name, column in owners.items()})
    else:
        np.savez(tmp_path / "public.npz", **arrays | {"train_features": -x})
    failures = run(tmp_path / "table", table, seeds=[0])[0].failures.values()
    what = {"owners": "its partition hash is", "public": "the digest of its public examples is"}[changed]
    assert len(failures) == 2
    assert all("holds a run on other data: " in why and what in why for why in failures)


def test_runs_of_a_version_that_divides_otherwise_are_not_compared(tmp_path, fake):
    """A table that was begun before an upgrade: rows of one column would have other clients."""
    run(tmp_path, seeds=[0])
    folders = sorted((tmp_path / "runs").iterdir())
    for folder in folders:
        column = "iid" if "iid" in folder.name else "skewed"
        write_json(folder / "run.json", {"partition": {"hash": column}, "data": {"digest": ""}})
    outcome, _ = run(tmp_path, seeds=[0])
    assert (len(outcome.results), len(outcome.failures)) == (4, 0)
    write_json(folders[-1] / "run.json", {"partition": {"hash": "another"}, "data": {"digest": ""}})
    outcome, _ = run(tmp_path, seeds=[0])
    assert len(outcome.results) == 3
    (failed,) = outcome.failures.values()
    assert failed.startswith(f"{folders[-1]} and ")
    assert "other partitions (hashes another and " in failed


def test_the_one_client_of_a_pooled_method_is_not_compared_with_clients(tmp_path, fake):
    run(tmp_path, seeds=[0])
    pooled, *rest = sorted((tmp_path / "runs").iterdir())
    write_json(pooled / "run.json", {"partition": {"hash": "pooled", "label_table": [[4, 4]]}, "data": {"digest": ""}})
    for folder in rest:
        write_json(folder / "run.json", {"partition": {"hash": "divided", "label_table": [[4, 0], [0, 4]]}, "data": {"digest": ""}})
    outcome, _ = run(tmp_path, seeds=[0])
    assert not outcome.failures


def test_a_traceback_that_cannot_be_written_ends_nothing(tmp_path, fake, monkeypatch):
    def act(name):
        if name == "uniform-co--iid--seed0":
            raise FileNotFoundError(2, "no data set here", "x.npz")

    def refuse(path, text):
        raise OSError(28, "No space left on device", str(path))

    fake.act = act
    monkeypatch.setattr(runner, "write_text", refuse)
    outcome, said = run(tmp_path, seeds=[0])
    assert len(outcome.results) == 3
    assert list(outcome.failures.values()) == ["no data set here: x.npz"]
    assert any(line.startswith("its traceback is not kept: No space left on device") for line in said)


def test_pooled_clients_of_columns_are_the_same_clients(tmp_path, fake):
    """Their run.json has the hash of the one client."""
    x, owners = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 4
    arrays = {"train_features": x, "train_labels": np.arange(40) % 2, "test_features": x[:20], "test_labels": np.arange(20) % 2}
    np.savez(tmp_path / "x.npz", **arrays, train_clients=owners, test_clients=owners[:20])
    changes = {"data.source": f"npz:{tmp_path / 'x.npz'}", "data.partition": "natural", "data.clients": None}
    table = definition(columns=(Column("natural", changes),))
    run(tmp_path / "table", table, seeds=[0])
    data = experiment.dataset(tables.build_cells(table, "smoke", [0])[0].config)
    for folder, divided in zip((tmp_path / "table" / "runs").iterdir(), (data, federated_data.pool_clients(data)), strict=True):
        partition = {"hash": divided.partition_hash, "label_table": divided.label_table.tolist()}
        write_json(folder / "run.json", {"data": {"digest": contents.digest_data(data).digest}, "partition": partition})
    assert not run(tmp_path / "table", table, seeds=[0])[0].failures


def test_partitions_are_not_compared_with_that_of_a_run_on_other_data(tmp_path, fake):
    run(tmp_path, seeds=[0])
    config = tables.build_cells(definition(), "smoke", [0])[0].config
    digest = contents.digest_data(experiment.dataset(config)).digest
    first, *rest = sorted((tmp_path / "runs").iterdir())
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    write_json(first / "run.json", {"partition": {"hash": "before"}, "data": {"digest": other}})
    for folder in rest:
        write_json(folder / "run.json", {"partition": {"hash": "now"}, "data": {"digest": digest}})
    outcome, _ = run(tmp_path, seeds=[0])
    (failed,) = outcome.failures.values()
    assert failed.startswith(f"{first} holds a run on other data: the digest")
    assert len(outcome.results) == 3


def test_finished_runs_of_other_data_are_not_taken_up(tmp_path, fake, monkeypatch):
    """As after a file was made anew under its name: the table would average both."""
    run(tmp_path, seeds=[0])
    config = tables.build_cells(definition(), "smoke", [0])[0].config
    digest, loaded = contents.digest_data(experiment.dataset(config)).digest, []
    folders = sorted((tmp_path / "runs").iterdir())
    for folder in folders:
        write_json(folder / "run.json", {"data": {"digest": digest}})
    real = experiment.dataset
    monkeypatch.setattr(experiment, "dataset", lambda config: loaded.append(config) or real(config))
    outcome, _ = run(tmp_path, seeds=[0])
    assert (len(outcome.results), len(outcome.failures), len(loaded)) == (4, 0, 1)  # columns differ in their partition alone
    write_json(folders[0] / "run.json", {"data": {"digest": digest[:-1] + ("0" if digest[-1] != "0" else "1")}})
    outcome, said = run(tmp_path, seeds=[0])
    (failed,) = outcome.failures.values()
    assert failed.startswith(f"{folders[0]} holds a run on other data: the digest of its inputs or targets is ")
    assert len(outcome.results) == 3
    assert len(fake.done) == 4

    def gone(config):
        raise FileNotFoundError(2, "no data set here", "x.npz")

    monkeypatch.setattr(experiment, "dataset", gone)
    outcome, said = run(tmp_path, seeds=[0])
    assert len(outcome.results) == 4
    what = "its finished runs are taken up without comparing their data, which cannot be read"
    assert [line for line in said if "comparing" in line] == [f"IID: {what}: no data set here: x.npz"]


def test_runs_that_fail_for_one_reason_say_it_once(tmp_path, fake):
    def act(name):
        raise FileNotFoundError(2, "no data set here", "x.npz")

    fake.act = act
    _, said = run(tmp_path, seeds=[0])
    first = "FedAvg / IID / seed 0"
    assert [line for line in said if line.startswith("failed")] == [
        f"failed: {first}: no data set here: x.npz",
        *(
            f"failed: {run}: as {first}"
            for run in ("Uniform & co. / IID / seed 0", "FedAvg / Skewed / seed 0", "Uniform & co. / Skewed / seed 0")
        ),
    ]
    assert f"- {first} and 3 more: no data set here: x.npz\n" in (tmp_path / "table.md").read_text()


def test_a_failure_does_not_end_the_others_and_names_its_cell(tmp_path, fake):
    def act(name):
        if name == "uniform-co--iid--seed0":
            raise FileNotFoundError(2, "no data set here", "x.npz")

    fake.act = act
    outcome, said = run(tmp_path, seeds=[0])
    assert len(fake.done) == 4
    assert list(outcome.failures.values()) == ["no data set here: x.npz"]
    assert "failed: Uniform & co. / IID / seed 0: no data set here: x.npz" in said
    assert "1 of 4 runs failed" in said
    text = (tmp_path / "table.md").read_text()
    assert "| Uniform & co. | failed | 80.00 |" in text
    assert "- Uniform & co. / IID / seed 0: no data set here: x.npz" in text
    assert "FileNotFoundError" in next((tmp_path / "runs").glob("*.error.txt")).read_text()
    fake.act = lambda name: False
    outcome, _ = run(tmp_path, seeds=[0])
    assert fake.done[4:] == ["uniform-co--iid--seed0"]
    assert not outcome.failures
    assert not list((tmp_path / "runs").glob("*.error.txt"))


def test_code_that_changes_meanwhile_does_not_get_its_results_under_the_old_name(tmp_path, fake):
    mine = tmp_path / "mine.py"
    mine.write_text("def loss(logits, y, mask):\n    return 0.0\n")

    def act(name):
        mine.write_text("def loss(logits, y, mask):\n    return 1.0\n")

    fake.act = act
    rows = (definition().rows[0], dataclasses.replace(definition().rows[1], changes={"loss": f"{mine}:loss"}))
    outcome, _ = run(tmp_path / "table", definition(rows=rows), seeds=[0])
    assert fake.done == ["fedavg--iid--seed0", "fedavg--skewed--seed0"]
    assert len(outcome.failures) == 2
    assert all(f"{mine} has changed since this command began" in why for why in outcome.failures.values())
    outcome, _ = run(tmp_path / "table", definition(rows=rows), seeds=[0])
    assert not outcome.failures
    assert len(fake.done) == 4


def test_an_interruption_leaves_the_table_of_what_is_finished(tmp_path, fake):
    def act(name):
        if name == "fedavg--skewed--seed0":
            raise KeyboardInterrupt

    fake.act = act
    (tmp_path / "runs").mkdir()
    for ending in ("png", "csv"):
        (tmp_path / f"differences.{ending}").touch()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert "2 of 12 runs are finished" in (tmp_path / "table.md").read_text()
    assert not list(tmp_path.glob("differences.*")), "it would be of earlier settings"
    fake.act = lambda name: name == "uniform-co--skewed--seed0"  # asked to stop, but finished before it could
    with pytest.raises(KeyboardInterrupt, match=r"after Uniform & co\. / Skewed / seed 0"):
        run(tmp_path)
    assert fake.done[2:] == ["fedavg--skewed--seed0", "fedavg--skewed--seed0", "uniform-co--skewed--seed0"]
    assert "4 of 12 runs are finished" in (tmp_path / "table.md").read_text()


def test_an_interruption_keeps_what_another_process_has_finished(tmp_path, fake):
    def act(name):
        if name == "fedavg--skewed--seed0":
            fake.act = lambda name: False
            run(tmp_path, only=["uniform-co"], seeds=[0, 1, 2])
            raise KeyboardInterrupt

    fake.act = act
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, only=["fedavg"])
    assert "7 of 12 runs are finished" in (tmp_path / "table.md").read_text()


def test_a_slow_table_is_not_written_after_every_run(tmp_path, fake, monkeypatch):
    done_at, write = [], runner.write_tables

    def write_slowly(*given):
        done_at.append(len(fake.done))
        time.sleep(0.2)
        return write(*given)

    monkeypatch.setattr(runner, "write_tables", write_slowly)
    run(tmp_path)
    assert done_at[0] == 0
    assert done_at[-1] == 12
    assert len(done_at) < 8, "a run here takes milliseconds, a writing 0.2 s, of which 5 % may be in between"
    assert "of 12 runs are finished" not in (tmp_path / "table.md").read_text()


def test_only_and_seeds(tmp_path, fake):
    run(tmp_path, only=["fedavg", "Uniform & co./skewed"], seeds=[5])
    assert fake.done == ["fedavg--iid--seed5", "fedavg--skewed--seed5", "uniform-co--skewed--seed5"]
    every = tables.build_cells(definition(), "smoke")
    for only, said in {"fedaavg": "unknown row 'fedaavg'.*'fedavg'", "fedavg/idd": "unknown column 'idd'.*'iid'"}.items():
        with pytest.raises(ValueError, match=said):
            tables.select_cells(every, [only])


def test_the_last_of_two_processes_writes_the_whole_table(tmp_path, fake):
    def act(name):
        fake.act = lambda name: False
        run(tmp_path, seeds=[0], only=["uniform-co"])  # another process, meanwhile

    fake.act = act
    outcome, _ = run(tmp_path, seeds=[0], only=["fedavg"])
    assert len(fake.done) == len(outcome.results) == 4
    assert "| Uniform & co. | 80.00 | 80.00 |" in (tmp_path / "table.md").read_text().replace("**", "")


def test_a_cell_that_another_process_runs_is_waited_for(tmp_path, fake, monkeypatch):
    def act(name):
        if name == "fedavg--iid--seed0":
            raise DirectoryInUse(11, "another process runs there (pid 7)")

    def other(seconds):
        fake.act = lambda name: False
        run(tmp_path, seeds=[0], only=["fedavg/iid"])

    fake.act = act
    monkeypatch.setattr(runner.time, "sleep", other)
    outcome, said = run(tmp_path, seeds=[0], only=["fedavg"])
    assert "left for later: FedAvg / IID / seed 0: another process runs there (pid 7)" in said
    assert not outcome.failures
    assert len(outcome.results) == 2
    assert said[-2] == "all 2 runs are finished"
    text = (tmp_path / "table.md").read_text()
    assert "failed" not in text.lower()
    assert "2 of 4 runs are finished." in text
    assert not list((tmp_path / "runs").glob("*.error.txt"))


def test_a_cell_of_a_process_that_died_is_tried_again(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.0)
    left = [DirectoryInUse(11, "another process runs there (pid 7)")] * 3

    def act(name):
        if name == "fedavg--iid--seed0" and left:
            raise left.pop()

    fake.act = act
    outcome, said = run(tmp_path, seeds=[0], only=["fedavg"])
    assert not left
    assert not outcome.failures
    assert len([text for text in said if text.startswith("left for later")]) == 3
    assert said[-2] == "all 2 runs are finished"


def test_a_callback_that_fails_is_a_failure_though_the_run_is_complete(tmp_path, fake, monkeypatch):
    del fake
    execute = experiment.execute

    def failing(config, workdir, *args, **kwargs):
        execute(config, workdir, *args, **kwargs)
        raise CallbackFailed("callback mine failed in end() (the run itself is complete)")

    monkeypatch.setattr(experiment, "execute", failing)
    outcome, said = run(tmp_path, seeds=[0], only=["fedavg/iid"])
    assert len(outcome.failures) == 1
    assert said[-2] == "1 of 1 runs failed"


def test_a_run_that_a_callback_ends_early_is_no_result(tmp_path, fake, monkeypatch):
    del fake

    def execute(config, workdir, progress, *, data, console, draws):
        Path(workdir).mkdir(parents=True)
        with report.Reporter(workdir, config.rounds, progress=False) as reporter:
            for i in range(1, config.rounds):
                reporter.log({"round": i, "seconds": 2.0, "test/global/accuracy": 0.5})
        return SimpleNamespace(stopped=False)

    monkeypatch.setattr(experiment, "execute", execute)
    outcome, _ = run(tmp_path, seeds=[0], only=["fedavg/iid"])
    assert list(outcome.failures.values()) == ["a callback ended the run before round 3: its scores are of no round to compare"]
    assert not outcome.results


def test_labels_may_hold_commas():
    cell = tables.build_cells(definition(), "smoke")[0]
    every = [cell._replace(row=row, column=column) for row in ("A", "A, b", "C") for column in ("IID, x", "y")]
    assert tables.split_cell_selectors(every, "A, b/IID, x, C ,a-b/y,,A") == ["A, b/IID, x", "C", "a-b/y", "A"]
    assert tables.split_cell_selectors(every, "A, c") == ["A", "c"]
    assert tables.split_cell_selectors(every, "") == []
