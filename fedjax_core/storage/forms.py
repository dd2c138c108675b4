"""What form a JSON value must have: checked as it is read, so that another one ends in one line."""

import math
from typing import Any


class Positive:
    """The form of a whole number of at least 1."""


NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # how our files say them

_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    Positive: "a whole number of at least 1",
}


def check(value: Any, form: Any, what: str, end: str = "", field: str = "") -> None:
    """Raises an error unless a value that JSON can hold has a form.

    Args:
      value: as `json.loads` gives it.
      form: `dict`, `list`, `str`, `int`, `Positive`, `float` (any, finite or not), `bool` or `type(None)`; `[form]`, a list;
        `{str: form}`, an object of such; `{"field": form, "other?": form}`, an object with at least the fields without a "?";
        `(form, form)`, one or the other.
      what: what the value is, such as the name of a file; begins the message.
      end: ends the message.
      field: where in it the value stands.

    Raises:
      ValueError: one line: what, which field, what was found there and what is expected.
    """
    if isinstance(form, tuple):
        if not any(_is(value, _kind(one)) for one in form):
            raise ValueError(_unlike(value, " or ".join(_NAMES[_kind(one)] for one in form), what, end, field))
        form = next(one for one in form if _is(value, _kind(one)))
    if not _is(value, _kind(form)):
        raise ValueError(_unlike(value, _NAMES[_kind(form)], what, end, field))
    if isinstance(form, list):
        for place, item in enumerate(value):
            check(item, form[0], what, end, f"{field}[{place}]")
    if isinstance(form, dict):
        for key, inner in form.items():
            if key is str:
                for name, item in value.items():
                    check(item, inner, what, end, f"{field}.{name}" if field else name)
            elif (name := key.removesuffix("?")) in value:
                check(value[name], inner, what, end, f"{field}.{name}" if field else name)
            elif name == key:
                there = f"{field} of {what}" if field else what
                raise ValueError(f"{there} has no {name}, expected {_NAMES[_kind(inner)]}{end}")


def _kind(form: Any) -> type:
    """The type of values of a form, of its first alternative."""
    if isinstance(form, tuple):
        return _kind(form[0])
    return type(form) if isinstance(form, (dict, list)) else form


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return (isinstance(value, (int, float)) and not isinstance(value, bool)) or (isinstance(value, str) and value in NOT_FINITE)
    if kind is Positive:
        return _is(value, int) and value >= 1
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _unlike(value: Any, expected: str, what: str, end: str, field: str) -> str:
    found = _NAMES.get(type(value), type(value).__name__)
    if isinstance(value, (str, int, float)):
        shown = repr(value)
        found += f" ({shown if len(shown) <= 40 else shown[:40] + '...'})"
    return f"{field} of {what} is {found}, expected {expected}{end}" if field else f"{what} is {found}, expected {expected}{end}"
