"""A run on a table: its clients are all that the table has, and keep their names in whatever it writes."""

import csv
import json

from configs import fedavg
from fedjax_core import experiment


def test_a_run_calls_clients_as_the_table_does(tmp_path):
    lines = [f"ward_{i % 4:02},{i},{i % 7 / 7},{('no', 'yes')[i % 3 == 0]}" for i in range(120)]
    (tmp_path / "t.csv").write_text("ward,a,b,ill\n" + "\n".join(lines))
    config = fedavg.get_config("smoke")
    config.data.dir = str(tmp_path)
    config.data.source = "csv(path='t.csv', x=('a', 'b'), y='ill', clients='ward', test_fraction=0.25)"
    config.data.partition, config.data.unseen_clients, config.rounds = "natural", 1, 1
    said = []
    experiment.execute(config, tmp_path / "run", progress=False, console=said.append)
    known = json.loads((tmp_path / "run" / "run.json").read_text())
    names = known["partition"]["client_names"] + known["unseen"]["client_names"]
    assert sorted(names) == [f"ward_{i:02}" for i in range(4)]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["clients"] is None
    with open(tmp_path / "run" / "clients.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == names
    with open(tmp_path / "run" / "partition.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == names[:3]
    assert names[0] in "\n".join(said)
    experiment.execute(config, tmp_path / "run", progress=False, console=said.append)  # as a run that is done


def test_a_config_of_no_number_of_clients_is_one_of_twenty(tmp_path):
    """So that runs from before the default was None are taken up."""
    config = fedavg.get_config("smoke")
    config.rounds, config.models, config.data.examples = 1, ("mlp(widths=(2,))",), 200
    experiment.execute(config, tmp_path, progress=False)
    assert json.loads((tmp_path / "config.json").read_text())["data"]["clients"] == 20
    config.data.clients = 20
    config.rounds = 2
    experiment.execute(config, tmp_path, progress=False)
