"""Calls by name from a configuration: a misspelt name or argument is refused, with what it may have meant."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: " Did you mean 'x'?", or nothing if no allowed name is close."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def choose(what: str, name: str, allowed: Iterable[str]) -> str:
    """Returns `name` if it is allowed.

    Raises:
      ValueError: it is not; the message has the value, the allowed ones and the closest of them.
    """
    names = list(allowed)
    if name not in names:
        hint = did_you_mean(str(name), names)
        raise ValueError(f"unknown {what} {name!r}; allowed: {', '.join(names)}.{hint}")
    return name


def call(what: str, function: Callable, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `given` that it takes, and with all of `options`.

    Args:
      what: what the error messages call the function, such as "partition 'dirichlet'".
      function: takes named arguments only known by its signature.
      given: what the caller has; arguments that the function lacks are left out.
      options: what the user wrote; every one must be an argument.

    Raises:
      TypeError: an option that the function does not take, one that it needs and that is missing, or one that the user
        does not set.
    """
    parameters = inspect.signature(function).parameters
    settable = [name for name in parameters if name not in given]
    for name in options:
        if name not in settable:
            listed = ", ".join(settable) or "none"
            raise TypeError(f"{what} has no option {name!r}; it takes: {listed}.{did_you_mean(name, settable)}")
    for name in settable:
        if name not in options and parameters[name].default is inspect.Parameter.empty:
            raise TypeError(f"{what} needs the option {name!r}; it takes: {', '.join(settable)}.")
    return function(**{name: given[name] for name in parameters if name in given}, **options)
