"""What a configuration names, with its options: found, and checked before it is called.

A name is built in ("fedavg"), announced by an installed package (an entry point, see `outside.py`), or says where it stands:

  "package.module:name(option=1)"        a function or class of a module that Python finds, or that lies in the working directory
  "path/to/file.py:name(option=1)"       of a file

Whichever it is, its options are checked by its signature: their names, and their values by the annotations (`option_types.py`).
Finding a name imports what it names, so a configuration is as trustworthy as the code that it points to.
"""

import ast
import contextlib
import functools
import inspect
import re
import types
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fedjax_core import option_types, outside
from fedjax_core.option_types import did_you_mean

T = TypeVar("T", bound=NamedTuple)
BUILT_IN = "built in"
LONGEST = 20_000  # signs of a spec
_CALLED = re.compile(r"\s*[\w.:]+\s*\(\s*[^\W\d]\w*\s*=")  # how name(option=... begins
_noting: list[list[tuple[Callable, str]]] = []
_READ: weakref.WeakKeyDictionary[Callable, tuple[dict[str, inspect.Parameter], bool]] = weakref.WeakKeyDictionary()


class Found(NamedTuple):
    """What a spec names.

    Attributes:
      what: "method", "model", ...
      spec: as it was written.
      name: without options.
      options: by name, checked.
      function: the builder, or what else the name stands for.
      origin: `BUILT_IN`, or the package, module or file it comes from.
    """

    what: str
    spec: str
    name: str
    options: dict[str, Any]
    function: Callable
    origin: str = BUILT_IN

    def __call__(self, **given: Any) -> Any:
        """Calls the function with those of `given` that it takes, and with the options."""
        return call(f"{self.what} {self.name!r}", self.function, given, self.options)


def choose(what: str, name: str, allowed: Iterable[str]) -> str:
    """Returns `name` if it is allowed.

    Raises:
      ValueError: it is not; the message has the value, the allowed ones and the closest of them.
    """
    names = list(allowed)
    if name not in names:
        hint = did_you_mean(str(name), names)
        raise ValueError(f"unknown {what} {option_types.short(name)}; allowed: {', '.join(names)}.{hint}")
    return name


def parse(text: str, field: str = "") -> tuple[str, dict[str, Any]]:
    """A name and its keyword arguments, as configs write them.

    Args:
      text: "name" or "name(key=literal, ...)".
      field: of the config, with which error messages begin.

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
    start = f"{field}: " if field else ""
    if not isinstance(text, str) or len(text) > LONGEST:
        limit = "must be a text" if not isinstance(text, str) else f"must not be longer than {LONGEST} signs"
        raise ValueError(f"{start}{option_types.short(text)} {limit}, such as 'name(option=1)'")
    whole = text.rstrip().endswith(")") and _CALLED.match(text)  # a file may also stand in an option
    file, colon, rest = (text, "", "") if whole else text.partition(".py:")  # a folder may have brackets in its name
    name, bracket, rest = rest.partition("(") if colon else text.partition("(")
    name = f"{file}{colon}{name}".strip() if colon else name.strip()
    if not bracket:
        return name, {}
    try:
        with warnings.catch_warnings(action="ignore"):
            call = ast.parse(f"f({rest}", mode="eval").body
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.args
            or not all(k.arg for k in call.keywords)
        ):
            raise ValueError
        options = [(str(k.arg), ast.literal_eval(k.value)) for k in call.keywords]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        form = "is not of the form name(key=value, ...), its values Python literals"
        raise ValueError(f"{start}{option_types.short(text)} {form}") from None
    if twice := [key for i, (key, _) in enumerate(options) if key in dict(options[:i])]:
        raise ValueError(f"{start}{option_types.short(text)} has the option {twice[0]!r} twice")
    return name, dict(options)


def find(
    what: str,
    spec: str,
    builtin: Mapping[str, Callable],
    *,
    given: Iterable[str] = (),
    placed: Sequence[str] = (),
    prefixes: Container[str] = (),
    field: str = "",
    options: Mapping[str, Any] | None = None,
) -> Found:
    """What a spec names, with its options checked.

    Args:
      what: it is, one of `outside.GROUPS`, or of another kind, of which there are only those built in.
      spec: "name(option=value, ...)", see the module.
      builtin: by name.
      given: names of the arguments that the caller passes by name.
      placed: what the caller passes by place, before all else; the function may call these as it likes.
      prefixes: names of `builtin` that may be followed by a colon and more, such as "tfds:mnist".
      field: of the config, with which messages about a spec that cannot be read begin.
      options: given beside the spec's own.

    Raises:
      ValueError: there is no such name, or an option has a value that it may not have.
      TypeError: there is no such option, or one is missing; the function does not take what is `placed`.
    """
    name, own = parse(spec, field)
    if twice := own.keys() & (options or {}).keys():
        raise ValueError(f"{what} {option_types.short(spec)} has the option {min(twice)!r}, which is also given beside it")
    function, origin = lookup(what, name, builtin, prefixes)
    found = Found(what, spec, name, own | dict(options or {}), function, origin)
    given = (*given, *by_place(f"{what} {name!r}", function, placed))
    check(f"{what} {name!r}", function, given, found.options, f"{what}." if options else None, brought=origin != BUILT_IN)
    return found


def lookup(what: str, name: str, builtin: Mapping[str, Callable], prefixes: Container[str] = ()) -> tuple[Callable, str]:
    """(what a name without options stands for, its origin); see `find`."""
    first = name.partition(":")[0]
    if name in builtin or (first in builtin and first in prefixes):
        return builtin[name if name in builtin else first], BUILT_IN
    if outside.PLACE.fullmatch(name):
        return _noted(*outside.member(what, name))
    brought = outside.announced(what)
    if name in brought:
        return _noted(*outside.load(what, name))
    names = [*builtin, *brought]
    looked = (
        f" Looked in those built in and in entry points of the group {outside.GROUPS[what]!r}; " if what in outside.GROUPS else ""
    )
    others = "others are named 'package.module:name' or 'path/to/file.py:name'." if looked else ""
    raise ValueError(
        f"unknown {what} {option_types.short(name)}; allowed: {', '.join(names)}.{did_you_mean(name, names)}{looked}{others}"
    )


@contextlib.contextmanager
def noting() -> Iterator[list[tuple[Callable, str]]]:
    """A list of what is found meanwhile that is not built in, with its origin."""
    found: list[tuple[Callable, str]] = []
    _noting.append(found)
    try:
        yield found
    finally:
        _noting.remove(found)


def _noted(function: Callable, origin: str) -> tuple[Callable, str]:
    for found in _noting:
        found.append((function, origin))
    return function, origin


def check(
    what: str,
    function: Callable,
    given: Iterable[str],
    options: Mapping[str, Any],
    prefix: str | None = None,
    *,
    brought: bool = False,
) -> None:
    """Raises what `call` would, without calling.

    Args:
      what: what the error messages call the function, such as "partition 'dirichlet'".
      function: takes named arguments only known by its signature.
      given: names of arguments that the caller passes itself.
      options: what the user wrote, by name.
      prefix: what stands before an option's name where its value is refused; None: "`what`: ".
      brought: whether it is from outside: an argument that is missing may then be one of `given` under another name.

    Raises:
      TypeError: an option that `function` does not take, one that it needs and that is missing, or one of `given`.
      ValueError: an option whose value its annotation does not allow.
    """
    named, others = parameters(function)
    given = tuple(given)
    settable = [name for name in named if name not in given]
    for name, value in options.items():
        if name in settable:
            option_types.check(f"{what}: {name}" if prefix is None else f"{prefix}{name}", value, named[name].annotation)
        elif not others or name in given:
            listed = ", ".join(settable) or "none"
            raise TypeError(f"{what} has no option {name!r}; it takes: {listed}.{did_you_mean(name, settable)}")
    for name in settable:
        if name not in options and named[name].default is inspect.Parameter.empty:
            may = f" It is given those that it names of: {', '.join(given)}." if brought and given else ""
            raise TypeError(f"{what} needs the option {name!r}; it takes: {', '.join(settable)}.{may}")


def by_place(what: str, function: Callable, placed: Sequence[str]) -> tuple[str, ...]:
    """What a function that is called with `placed` by place calls them itself.

    Args:
      what: what the error message calls the function.
      function: it.
      placed: what its caller means by the arguments, in their order.

    Raises:
      TypeError: it does not take so many; or one of them would land on an option, which has a default and another name.
    """
    if not placed or (every := _signature(function)) is None:
        return tuple(placed)
    takes = [p for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    here = [p for p, name in zip(takes, placed, strict=False) if p.name == name or p.default is p.empty]
    if len(here) < len(placed) and not any(p.kind is p.VAR_POSITIONAL for p in every):
        listed = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in takes) or "none"
        own = " One with a default must have the name that stands here." if len(takes) >= len(placed) else ""
        raise TypeError(f"{what} is called with ({', '.join(placed)}) by place; what it takes by place: {listed}.{own}")
    return tuple(p.name for p in here)


def parameters(function: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
    """(those that have names, whether others are taken as well); of a class those of its making. A function's are read once."""
    if not isinstance(function, types.FunctionType | type):
        return _parameters(function)
    if function not in _READ:
        _READ[function] = _parameters(function)
    named, others = _READ[function]
    return dict(named), others


def _signature(function: Callable) -> list[inspect.Parameter] | None:
    """What a function takes; None of one that is built into Python without a signature."""
    if isinstance(function, type) and not hasattr(function, "_fields"):
        function = functools.partial(function.__init__, None)  # self; flax's classes hide the signature behind a metaclass
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, AttributeError, SyntaxError):  # annotations for type checkers alone
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return None


def _parameters(function: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
    if (found := _signature(function)) is None:
        return {}, True
    named = {p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in found)


def call(what: str, function: Callable, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `given` that it takes, and with all of `options`, checked by `check`."""
    check(what, function, given, options)
    named, _ = parameters(function)
    return function(**{name: given[name] for name in named if name in given}, **options)


def options(what: str, default: T, *given: Mapping[str, Any] | None) -> T:
    """A NamedTuple of options with those that are given; a later mapping counts more, and None in place of a value leaves it.

    Raises:
      ValueError: there is no such option, or its value is not what the NamedTuple's annotation allows.
    """
    found: dict[str, Any] = {}
    named, _ = parameters(type(default))
    for some in given:
        for name, value in (some or {}).items():
            choose(f"option of {what}", name, default._fields)
            if value is not None:
                found[name] = option_types.check(f"{what}.{name}", value, named[name].annotation)
    return default._replace(**found)
