"""Forms of JSON values: what fits, and what is said of what does not."""

import re

import pytest

from fedjax_core.storage.forms import Positive, check


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"a": 1, "more": None}, {"a": int}),
        ({}, {"a?": int}),
        ({"x": [1, 2], "y": []}, {str: [int]}),
        ([1.5, 2, "NaN", "-Infinity"], [float]),
        (0.5, (float, [float])),
        ([0.5], (float, [float])),
        ({"chunk": 1}, {"chunk": Positive}),
        (True, bool),
        (None, (str, type(None))),
    ],
)
def test_what_fits(value, form):
    check(value, form, "x.json")


@pytest.mark.parametrize(
    ("value", "form", "said"),
    [
        (True, int, "x.json is true or false (True), expected a whole number!"),
        (1, bool, "x.json is a whole number (1), expected true or false!"),
        ("much", float, "x.json is text ('much'), expected a number!"),
        ([[1], [2, "b"]], [[int]], "[1][1] of x.json is text ('b'), expected a whole number!"),
        ({"plan": {"chunk": 1.5}}, {"plan?": {"chunk": int}}, "plan.chunk of x.json is a number (1.5), expected a whole number!"),
        ({"chunk": 0}, {"chunk": Positive}, "chunk of x.json is a whole number (0), expected a whole number of at least 1!"),
        ({"chunk": True}, {"chunk": Positive}, "chunk of x.json is true or false (True), expected a whole number of at least 1!"),
        ({"plan": {}}, {"plan": {"chunk": int}}, "plan of x.json has no chunk, expected a whole number!"),
        ({}, {"a": [int]}, "x.json has no a, expected a list!"),
        ({"a": {"b": 1}}, {str: {str: str}}, "a.b of x.json is a whole number (1), expected text!"),
        ("s", (float, [float]), "x.json is text ('s'), expected a number or a list!"),
        (["s"], (float, [float]), "[0] of x.json is text ('s'), expected a number!"),
        ("x" * 1000, int, "x.json is text ('" + "x" * 39 + "...), expected a whole number!"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(value, form, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check(value, form, "x.json", "!")
