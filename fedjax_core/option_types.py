"""Checks values of options against the annotations of their parameters: types, finite numbers,
ranges.

  def build(*, lr: Positive, epochs: AtLeastZero = 1, mu: Fraction | None = None,
            weights: Annotated[str, one_of("a", "b")] = "a")

Annotations that are no types of plain values (`Any`, a type of a library) allow everything.
"""

import collections.abc
import dataclasses
import difflib
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

LONGEST = 120  # characters of a value in a message
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)  # control characters, and those of text direction
LARGEST = 3.4e38  # of float32, in which programs compute


@dataclasses.dataclass(frozen=True)
class Limit:
    """A restriction of a type's values, for `Annotated`.

    Attributes:
      says: what a value must be, in words.
      holds: value of that type -> whether it is allowed.
      is_listed: whether a description of the type has it; False for bounds that hardly a value meets.
    """

    says: str
    holds: Callable[[Any], bool]
    is_listed: bool = True


def one_of(*names: str) -> Limit:
    """Returns the limit to some strings."""
    return Limit(f"one of {', '.join(map(repr, names))}", lambda value: value in names)


def is_number(value: Any) -> bool:
    """Returns whether a value is an int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_part(value: float) -> bool:
    """Returns whether a number is a fraction in (0, 1), or an int of at least 1."""
    return 0 < value < 1 or (isinstance(value, numbers.Integral) and value >= 1)


Positive = Annotated[float, Limit("positive", lambda v: v > 0)]
NonNegative = Annotated[float, Limit("at least 0", lambda v: v >= 0)]
Fraction = Annotated[float, Limit("in [0, 1]", lambda v: 0 <= v <= 1)]
PositiveFraction = Annotated[float, Limit("in (0, 1]", lambda v: 0 < v <= 1)]
Part = Annotated[float, Limit("a fraction in (0, 1), or an int of at least 1", is_part)]
OpenFraction = Annotated[float, Limit("in (0, 1)", lambda v: 0 < v < 1)]
BelowOne = Annotated[float, Limit("in [0, 1)", lambda v: 0 <= v < 1)]
FloatFromOne = Annotated[float, Limit("at least 1", lambda v: v >= 1)]
_OF_32_BITS = Limit("below 2**31", lambda v: v < 2**31, is_listed=False)  # ints of programs
AtLeastOne = Annotated[int, Limit("at least 1", lambda v: v >= 1), _OF_32_BITS]
AtLeastZero = Annotated[int, Limit("at least 0", lambda v: v >= 0), _OF_32_BITS]
People = Annotated[int, Limit("at least 1", lambda v: v >= 1)]  # no program has their number
Width = Annotated[int, Limit("in [1, 2**20]", lambda v: 1 <= v <= 2**20)]
Seed = Annotated[int, Limit("in [0, 2**32)", lambda v: 0 <= v < 2**32)]


def shorten(value: Any) -> str:
    """Returns a value as messages show it: on one line, of at most `LONGEST` characters."""
    try:
        text = repr(value)
    except Exception as error:  # an int of thousands of digits, or whatever an object's own repr does
        text = f"<{type(value).__name__} without a repr: {error}>"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text)} characters)"


def escape_unprintable(text: str) -> str:
    """Returns a string with unprintable characters, such as terminal escapes and line ends, escaped
    as Python does.

    >>> escape_unprintable("cat\\x1b[31m\\n")
    'cat\\\\x1b[31m\\\\n'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def escape_controls(text: str) -> str:
    """Returns a string of one or several lines with control characters, which a terminal would
    obey, escaped as Python does.

    >>> escape_controls("cat\\x1b[31m\\n\\tdog")
    'cat\\\\x1b[31m\\n\\tdog'
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def did_you_mean(name: str, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the end of an error message, " Did you mean 'x'?"; "" if no allowed name is close.

    Args:
      name: the unknown one.
      allowed: names.
      cutoff: the least similarity, from 0 to 1.
    """
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_value(field: str, value: Any, wanted: Any) -> Any:
    """Returns the value if the annotation `wanted` allows it.

    Raises:
      ValueError: it does not; the message names the field, the value and what is allowed.
    """
    problem = describe_mismatch(value, wanted)
    if problem:
        raise ValueError(f"{field}={shorten(value)} must be {problem}")
    return value


def check_arguments(function: Callable, **given: Any) -> None:
    """Checks arguments of a function against its annotations, for callers without a config."""
    named = inspect.signature(function).parameters
    for name, value in given.items():
        check_value(name, value, named[name].annotation)


def describe_mismatch(value: Any, wanted: Any) -> str | None:
    """Returns what a value must be by an annotation, in words; None if it is allowed."""
    origin, inside = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        base, *limits = inside
        if describe_mismatch(value, base):
            return _describe(wanted)
        return next((limit.says for limit in limits if isinstance(limit, Limit) and not limit.holds(value)), None)
    if origin in (typing.Union, types.UnionType):
        problems = []
        for each in inside:
            if (problem := describe_mismatch(value, each)) is None:
                return None
            problems.append(problem)
        return " or ".join(dict.fromkeys(problems))
    if origin is Literal:
        return None if any(type(value) is type(each) and value == each for each in inside) else _describe(wanted)
    if origin in (tuple, list, collections.abc.Sequence, collections.abc.Iterable):
        return _describe_sequence(value, inside, exact=origin is tuple and inside[-1] is not ...)
    if origin is collections.abc.Callable or wanted is collections.abc.Callable:
        return None if callable(value) else "a function"
    return _describe_plain(value, origin or wanted)


def _describe_sequence(value: Any, inside: tuple[Any, ...], exact: bool) -> str | None:
    if not isinstance(value, list | tuple) or (exact and len(value) != len(inside)):
        each = inside if exact else inside[:1]
        return f"a tuple of {len(inside)}: {', '.join(map(_describe, each))}" if exact else f"a tuple, each {_describe(each[0])}"
    wanted = inside if exact else inside[:1] * len(value)
    problem = next((text for each, kind in zip(value, wanted, strict=True) if (text := describe_mismatch(each, kind))), None)
    return problem and f"a tuple, each {problem}"


def _describe_plain(value: Any, wanted: Any) -> str | None:
    is_bool = isinstance(value, bool)
    if wanted is float:
        fits = isinstance(value, numbers.Real) and not is_bool and _is_finite(value)
        if fits and abs(float(value)) >= (2**63 if isinstance(value, numbers.Integral) else LARGEST):
            return "a number of 32 bits: a float below 3.4e+38, or an int below 2**63"
    elif wanted is int:
        fits = isinstance(value, numbers.Integral) and not is_bool and -(2**63) <= int(value) < 2**63
    elif wanted is bool:
        fits = is_bool
    elif wanted is str:
        fits = isinstance(value, str)
    elif wanted in (None, type(None)):
        fits = value is None
    elif wanted is collections.abc.Mapping or wanted is dict:
        fits = isinstance(value, collections.abc.Mapping)
    elif isinstance(wanted, type) and wanted not in (Any, inspect.Parameter.empty):
        fits = not isinstance(value, int | float | str | bytes | list | tuple | dict) or isinstance(value, wanted)
    else:
        fits = True
    return None if fits else _describe(wanted)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond floats
        return False


def _describe(wanted: Any) -> str:
    """Returns what an annotation allows, in words."""
    names = {
        float: "a finite number",
        int: "an int",
        bool: "True or False",
        str: "a string",
        None: "None",
        type(None): "None",
    }
    if typing.get_origin(wanted) is Annotated:
        base, *limits = typing.get_args(wanted)
        return ", ".join([_describe(base), *(limit.says for limit in limits if isinstance(limit, Limit) and limit.is_listed)])
    if typing.get_origin(wanted) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(wanted)))}"
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, typing.get_args(wanted)))
    if wanted in (dict, collections.abc.Mapping):
        return "a mapping of options"
    return names.get(wanted) or getattr(wanted, "__name__", str(wanted))
