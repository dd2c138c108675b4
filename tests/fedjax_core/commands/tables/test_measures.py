"""Wrong searches: each ends before anything runs."""

import pytest

from configs.tables.base import LogUniform, Measure, Row, Uniform
from fedjax_core.commands import table as command
from fedjax_core.commands import tables
from fedjax_core.commands.tables import measures
from fedjax_core.reporting import console
from tests.fedjax_core.commands.tables.searches import BY, definition, get_config, run

PRIVATE = {"privacy.mechanism": "gaussian", "privacy.clip": 1.0, "privacy.delta": 1e-3, "normalise": "unit"}
CALIBRATED, FIXED = PRIVATE | {"privacy.epsilon": 8.0}, PRIVATE | {"privacy.noise": 1.0}


@pytest.mark.parametrize(
    ("of", "changes", "said"),
    [
        (
            {"measure": "test/global/accuracy"},
            {},
            "measure 'test/global/accuracy' is scored on test examples; settings are chosen by",
        ),
        ({"measure": (BY, "test/global/accuracy")}, {}, "is scored on test examples"),
        ({"measure": "train/loss"}, {}, "search: measure 'train/loss': settings are chosen by scores such as 'validation/"),
        ({"measure": (BY, "validation/global/loss")}, {}, "all of them losses or none"),
        ({"measure": "validation/personal/own/accuracy/mean"}, {"changes": {"evaluation.scopes": ("global",)}}, "no run has the"),
        ({"measure": "validation/global/acuracy"}, {}, "unknown score in 'validation/global/acuracy' of .*'accuracy'"),
        ({"measure": "validation/global/own/accuracy/last"}, {}, "unknown statistic in 'validation/.*/last' of the search's"),
        ({"trials": 1}, {}, "search: trials=1 must be an int of at least 2"),
        ({"halving": 1.5}, {}, "search: halving=1.5 must be an int of at least 2 or None"),
        ({"halving": 2}, {"changes": CALIBRATED}, "A / IID: halving=2 .* the noise of privacy.epsilon=8 is made for a number of"),
        (
            {"halving": 2},
            {"changes": FIXED | {"privacy.mechanism": "tree", "cohort.sampling": "cyclic"}},
            "the noise of privacy.mechanism='tree' is made for a number of rounds; leave halving out, or set privacy.noise",
        ),
        ({"rounds": 9}, {}, "A / IID: the search's rounds=9 must not be more than the run's 4"),
        ({"sampler": "randm"}, {}, "unknown sampler of the search 'randm'.*'random'"),
        ({"sampler": "grid"}, {}, "LogUniform.* is no tuple of values, as a grid needs"),
        ({"seeds": ()}, {}, "search: seeds .* must be one or more"),
        ({"fewer": ("D",)}, {}, "unknown row in the search's fewer 'D'"),
        ({}, {"rows": (Row("A", get_config),)}, "row 'A' has no space for 4 trials; give it one, or name it"),
        (
            {},
            {"rows": (Row("A", get_config, space={"optimizer.lr": (0.1, 0.2)}),)},
            "1 points beside the row's own settings, too few",
        ),
        (
            {"trials": 8},
            {"rows": (Row("A", get_config, space={"optimizer.lr": Uniform(0.1, 0.1004)}),)},
            "A / IID: the space of optimizer.lr has [34] points beside the row's own settings, too few for 8 trials",
        ),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lrr": (0.1, 0.2, 0.3, 0.4)}),)}, "trial 1: .*no field optimizer.lrr"),
        ({}, {"rows": (Row("A", get_config, space={"method.batch": Uniform(1, 9)}),)}, "A / IID / trial 1: .*method.batch"),
        ({}, {"rows": (Row("A", get_config, space={"data.clients": (2, 3, 4, 5)}),)}, "data.clients is not the row's to choose"),
        ({}, {"rows": (Row("A", get_config, space={"devices.wait_for": (0.5, 1.0)}),)}, "devices.wait_for is not the row's"),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lr": 0.1}),)}, "optimizer.lr=0.1 must be a tuple of values"),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lr": (1, 1.0)}),)}, "has a value twice"),
        (
            {},
            {"rows": (Row("A", get_config, space={"optimizer.lr": LogUniform(0, 1)}),)},
            "needs low < high, both finite, both pos",
        ),
        (
            {},
            {"rows": (Row("A", get_config, space={"privacy.noise": (0.5, 1.0, 2.0)}),)},
            "row 'A': privacy.noise is not the row's to choose",
        ),
        (
            {},
            {"changes": {"evaluation.until": "test/global/accuracy >= 0.9"}},
            "A / IID: evaluation.until='test/global/accuracy >= 0.9' ends trials by a score on test examples",
        ),
        ({}, {"changes": {"data.validation": None}}, "A / IID: the search needs validation examples; set data.validation"),
        ({}, {"search": None}, "row 'A' has a space, and the table no search"),
        ({}, {"measures": (Measure("n", ("analysis:trained",)),)}, "a table of counts trains nothing"),
        (
            {},
            {"measures": (Measure("n", ("test/global/all/loss/mean",)),), "changes": {"evaluation.scopes": ("global", "all")}},
            "measure 'n': there is no 'test/global/all/loss/mean': it is the same for all clients; take test/global/loss",
        ),
        (
            {},
            {"measures": (Measure("n", ("test/global/gap/loss",)),), "changes": {"data.unseen_clients": 1}},
            "unknown score in 'test/global/gap/loss' of measure 'n' 'loss'; allowed: accuracy, average_precision, r2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_a_wrong_search_ends_before_anything_runs(tmp_path, fake_search, of, changes, said):
    with pytest.raises(ValueError, match=said) as caught:
        run(tmp_path / "table", definition(of, **changes))
    assert "\n" not in console.one_line(caught.value)
    assert not fake_search.done
    assert not (tmp_path / "table").exists()


def test_searches_with_noise_that_halts_leave_as_it_is():
    for of, changes in (({"halving": 2}, FIXED), ({}, CALIBRATED), ({"halving": 2, "rounds": 1}, CALIBRATED)):
        assert tables.plan_searches(definition(of, changes=changes), "smoke")


def test_the_command_refuses_too(tmp_path, capsys, fake_search):
    file = tmp_path / "t.py"
    file.write_text(
        "from tests.fedjax_core.commands.tables import searches\n\n"
        "def get_table(variant):\n    return searches.definition({'measure': 'test/global/accuracy'})\n"
    )
    assert command.main([f"--table={file}", f"--workdir={tmp_path / 'w'}"]) == 2
    assert "scored on test examples" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"--set=optimizer\.lr=0\.5: the search chooses it for row 'A'"):
        tables.apply_settings(definition(), ["optimizer.lr=0.5"])


def test_a_gap_is_in_the_unit_of_its_score():
    assert measures.is_percent(Measure("gap", ("test/global/gap/accuracy",)))
    assert not measures.is_percent(Measure("gap", ("test/global/gap/r2",)))
