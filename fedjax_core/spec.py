"""Names with arguments, as configs write them: "dirichlet(alpha=0.5)"."""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its keyword arguments, which are Python literals.

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
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is not of the form name(key=value, ...), its values Python literals") from None


def suggestion(found: str, allowed: Iterable[str]) -> str:
    """How an error message ends that found a word outside a list: the nearest word of it, and the list."""
    allowed = sorted(allowed)
    near = difflib.get_close_matches(found, allowed, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"Allowed: {', '.join(allowed)}"


def check_arguments(what: str, fn: Callable, arguments: Iterable[str], given: Iterable[str] = ()) -> None:
    """Raises ValueError for an argument that `fn` does not take or one that it needs and did not get.

    Args:
      what: how messages call it, such as "method fedavg".
      fn: takes keyword arguments.
      arguments: names that will be passed.
      given: names of parameters that the caller passes itself.
    """
    parameters = inspect.signature(fn).parameters
    allowed = set(parameters) - set(given)
    for name in arguments:
        if name not in allowed:
            raise ValueError(f"{what} takes no {name!r}; {suggestion(name, allowed)}")
    needed = {n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD} - set(given)
    if missing := needed - set(arguments):
        raise ValueError(f"{what} needs {', '.join(sorted(missing))}")
