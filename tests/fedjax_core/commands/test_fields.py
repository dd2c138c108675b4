"""What `fedjax-core list fields` shows."""

import pytest
from ml_collections import ConfigDict

from configs import base
from fedjax_core.commands import list_names
from fedjax_core.experiment.schema import FIELDS


def names(config, above=""):
    for name, value in config.items():
        yield from names(value, f"{above}{name}.") if isinstance(value, ConfigDict) else [f"{above}{name}"]


def test_every_field_is_listed_with_a_comment():
    found = {field.name: field for field in list_names.read_fields()}
    assert set(found) == set(names(base.get_config("small")))
    assert set(FIELDS) - {"method.name"} <= set(found)
    assert not [field.name for field in found.values() if len(field.comment) < 5]
    assert not [field for field in found.values() if "#" in field.comment or "get_config" in field.comment]


def test_one_field_with_what_is_above_and_behind_it():
    text = list_names.describe_fields("config.privacy.cohort")
    assert text.startswith("privacy.cohort = None\n    Clients in a round of the deployment, for which noise")
    assert text.endswith("allowed: an int, at least 1; or None")
    assert list_names.describe_fields("data.seed").startswith("data.seed = 0\n    Seed of the partition")


def test_a_part_and_all_of_them(capsys):
    assert list_names.main(["fields", "checkpoint"]) == 0
    assert [line.split(" = ")[0] for line in capsys.readouterr().out.splitlines() if " = " in line] == [
        "checkpoint.seconds",
        "checkpoint.keep",
    ]
    assert list_names.main(["fields"]) == 0
    assert "list methods NAME" in capsys.readouterr().out
    assert list_names.main(["fields", "checkpoit"]) == 2
    assert "Did you mean 'checkpoint'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"unknown field 'data\.sed'"):
        list_names.describe_fields("data.sed")
