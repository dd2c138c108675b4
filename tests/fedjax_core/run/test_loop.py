"""Where time goes: the trace of one round; and callbacks that a config names."""

from pathlib import Path
from typing import ClassVar

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.storage.json_files import read_jsonl


class Heard:
    rounds: ClassVar[list[int]] = []

    def round(self, record):
        self.rounds.append(record["round"])


def test_one_round_is_traced_and_nothing_else_changes(tmp_path: Path):
    records = []
    for profile in (True, False):
        config = fedavg.get_config("smoke")
        config.rounds, config.profile = 3, profile
        config.callbacks = (f"{__name__}:Heard",)
        workdir = tmp_path / str(profile)
        experiment.execute(config, str(workdir), progress=False)
        traces = list(workdir.glob("profile/**/*.xplane.pb"))
        assert len(traces) == profile
        assert all(trace.stat().st_size > 1000 for trace in traces)
        records.append([record["train/loss"] for record in read_jsonl(workdir / "metrics.jsonl")])
    assert len(records[0]) == 3
    assert records[0] == records[1]
    assert Heard.rounds == 2 * [1, 2, 3]
