"""Definitions whose parts have a wrong type: one line each that names the part, the field and the value."""

import dataclasses
import math

import pytest

from configs.tables.base import Column, Row, Search
from fedjax_core.commands import tables
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config

ROW, COLUMN, SEARCH = Row("A", get_config), Column("IID", {}), Search("validation/global/accuracy", 2)


def of_measure(**changes):
    return {"measures": (dataclasses.replace(GLOBAL, **changes),)}


def of_row(**changes):
    return {"rows": (dataclasses.replace(ROW, **changes),)}


def of_search(**changes):
    return {"search": dataclasses.replace(SEARCH, **changes)}


WRONG = [
    (of_measure(unit=0), "measure 'global': unit=0 must be positive"),
    (of_measure(unit=math.nan), "measure 'global': unit=nan must be a finite number"),
    (of_measure(digits=-1), "measure 'global': digits=-1 must be in [0, 12] or None"),
    (of_measure(digits=1.5), "measure 'global': digits=1.5 must be an int"),
    (of_measure(label=3), "measure 1: label=3 must be a string"),
    (of_measure(label="a\nb"), "measure 'a\\nb': label='a\\nb' must be of printable characters"),
    (of_measure(percent="yes"), "measure 'global': percent='yes' must be True or False or None"),
    (of_measure(statistic=3), "measure 'global': statistic=3 must be a string"),
    (of_measure(scores=(3,)), "measure 'global': scores=(3,) must be a tuple, each a string"),
    ({"rows": "abc"}, "rows='abc' must be a tuple, each Row(...)"),
    ({"rows": 3}, "rows=3 must be a tuple, each Row(...)"),
    ({"rows": ({},)}, "row 1 of rows is {}, not Row(...)"),
    ({"columns": "abc"}, "columns='abc' must be a tuple, each Column(...)"),
    ({"measures": GLOBAL.scores}, "measure 1 of measures is 'test/global/accuracy', not Measure"),
    ({"paper": [1]}, "paper=[1] must be {row: {column: number}}"),
    ({"paper": {"FedAvg": 3}}, "paper must be {row: {column: number}}"),
    ({"search": "x"}, "search='x' must be Search(...) or None"),
    (of_search(seed="a"), "search: seed='a' must be an int"),
    (of_search(seeds=3), "search: seeds=3 must be a tuple"),
    (of_search(measure=3), "search: measure=3 must be a string or a tuple"),
    (of_search(fewer="A"), "search: fewer='A' must be a tuple"),
    ({"seeds": "012"}, "seeds='012' must be a tuple"),
    ({"seeds": (1.5,)}, "seeds=(1.5,) must be a tuple, each an int"),
    ({"targets": 0.5}, "targets=0.5 must be a tuple"),
    ({"title": 3}, "title=3 must be a string"),
    ({"differ": "cohort"}, "differ='cohort' must be a tuple"),
    ({"new_partitions": "yes"}, "new_partitions='yes' must be True or False"),
    ({"changes": {3: 1}}, "changes: 3 is no field such as 'optimizer.lr'"),
    (of_row(label=3), "row 1: label=3 must be a string"),
    (of_row(config=3), "row 'A': config=3 must be a function"),
    (of_row(config=lambda variant: None), "A / IID: the row's config is None; get_config() must return a config"),
    (of_row(changes=3), "row 'A': changes=3 must be a mapping"),
    (of_row(space=3), "row 'A': space=3 must be a mapping"),
    ({"columns": (Column(None, {}),)}, "column 1: label=None must be a string"),
    ({"columns": (Column("IID", {}, 3),)}, "column 'IID': targets=3 must be a tuple"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG, ids=[said.partition(" must")[0] for _, said in WRONG])
def test_a_part_of_a_wrong_type_is_one_clear_error(changes, said):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        tables.build_cells(definition(**changes), "smoke", [0])
    assert str(error.value).startswith(said)
