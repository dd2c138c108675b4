"""Calls by name from a configuration: a misspelt name or argument is refused, with what it may have meant."""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=NamedTuple)


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


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its keyword arguments, as configs write them.

    Args:
      text: "name" or "name(key=literal, ...)".

    Returns:
      (name, arguments).

    Raises:
      ValueError: the text has another form.

    Example:
      >>> parse("dirichlet(alpha=0.5, min_size=2)")
      ('dirichlet', {'alpha': 0.5, 'min_size': 2})
      >>> parse("tfds:cifar10")
      ('tfds:cifar10', {})
    """
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.args
            or any(k.arg is None for k in call.keywords)
        ):
            raise ValueError
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is not of the form name(key=value, ...), its values Python literals") from None


def check(what: str, function: Callable, given: Iterable[str], options: Iterable[str]) -> None:
    """Raises TypeError for an option that `function` does not take, one that it needs and that is missing, or one of `given`.

    Args:
      what: what the error messages call the function, such as "partition 'dirichlet'".
      function: takes named arguments only known by its signature.
      given: names of arguments that the caller passes itself.
      options: names of what the user wrote.
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


def call(what: str, function: Callable, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `given` that it takes, and with all of `options`, checked by `check`."""
    check(what, function, given, options)
    parameters = inspect.signature(function).parameters
    return function(**{name: given[name] for name in parameters if name in given}, **options)


def options(what: str, default: T, *given: Mapping[str, Any] | None) -> T:
    """A NamedTuple of options with those that are given; a later mapping counts more, and None in place of a value leaves it.

    Raises:
      ValueError: there is no such option.
    """
    found: dict[str, Any] = {}
    for some in given:
        for name, value in (some or {}).items():
            choose(f"option of {what}", name, default._fields)
            if value is not None:
                found[name] = value
    return default._replace(**found)
