"""Resolves names in configs to functions and classes, and checks their options.

A name is built in ("fedavg"), is announced by an installed package (an entry point), or says where
it is defined:

  "package.module:name(option=1)"     a function or class of an importable module, or of one in the working directory
  "path/to/file.py:name(option=1)"    of a file

Options are checked against the signature: their names, and their values against the annotations
(`option_types.py`). Resolving a name imports what it names, so a config is as trustworthy as the
code that it points to.

A package announces its own functions in its pyproject.toml; configs then name them like built-in
ones:

  [project.entry-points."fedjax_core.methods"]
  feddyn = "my_package.feddyn:feddyn"
"""

import ast
import contextlib
import contextvars
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedjax_core import option_types
from fedjax_core.option_types import did_you_mean

T = TypeVar("T", bound=NamedTuple)
BUILT_IN = "built in"
GIVEN = "given"  # the module of a function that this process registered (`register_in_process`)
LONGEST = 20_000  # characters of a spec
# of a suggestion, at least: most methods begin with "fed", another one is no misspelling
SIMILARITY = {"method": 0.85, "config": 0.85}
ENTRY_POINT_GROUPS = {  # by kind
    "method": "fedjax_core.methods",
    "model": "fedjax_core.models",
    "data set": "fedjax_core.sources",
    "partition": "fedjax_core.partitions",
    "optimizer": "fedjax_core.optimizers",
    "augmentation": "fedjax_core.augmentations",
    "loss": "fedjax_core.losses",
    "regularizer": "fedjax_core.regularizers",
    "score": "fedjax_core.scores",
    "callback": "fedjax_core.callbacks",
    "rule": "fedjax_core.rules",
    "attack": "fedjax_core.attacks",
    "compressor": "fedjax_core.compressors",
    "device profile": "fedjax_core.device_profiles",
    "availability": "fedjax_core.availabilities",
    "sampler": "fedjax_core.samplers",
}
PYTHON_ARGUMENTS = {"method": "method", "model": "model", "loss": "loss", "score": "scores"}  # of `experiment.build`, by kind
IMPORT_PATH = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(\.\w+)*):(?P<name>[^\W\d]\w*)")
_CALL = re.compile(r"\s*[\w.:]+\s*\(\s*[^\W\d]\w*\s*=")  # how name(option=... begins
_SIGNATURES: weakref.WeakKeyDictionary[Callable, tuple[dict[str, inspect.Parameter], bool]] = weakref.WeakKeyDictionary()
_REGISTERED: dict[tuple[str, str], Callable] = {}
_records: contextvars.ContextVar[tuple[list[tuple[Callable, str]], ...]] = contextvars.ContextVar("lists of lookups", default=())
_refusal: contextvars.ContextVar[str | None] = contextvars.ContextVar("why nothing is imported", default=None)


class ResolvedSpec(NamedTuple):
    """A spec of a config, resolved.

    Attributes:
      what: its kind: "method", "model", ...
      spec: as the config has it.
      function: the builder, or what else the name stands for.
      origin: `BUILT_IN`, or the package, module or file that defines it.
    """

    what: str
    spec: str
    name: str
    options: dict[str, Any]
    function: Callable
    origin: str = BUILT_IN

    def __call__(self, **given: Any) -> Any:
        """Calls the function with the options, and with those of `given` that it takes."""
        return call_checked(f"{self.what} {self.name!r}", self.function, given, self.options)

    def option(self, name: str, absent: Any = None) -> Any:
        """Returns an option's value, by default its default; `absent` if the function does not take it."""
        takes, _ = read_parameters(self.function)
        return self.options.get(name, takes[name].default if name in takes else absent)


# specs


def check_choice(what: str, name: str, allowed: Iterable[str]) -> str:
    """Returns `name` if it is allowed.

    Raises:
      ValueError: it is not; the message has the value, the allowed ones and the closest of them.
    """
    names = list(allowed)
    if name not in names:
        hint = suggest_name(what, str(name), names)
        raise ValueError(f"unknown {what} {option_types.shorten(name)}; allowed: {', '.join(names)}.{hint}")
    return name


def parse_spec(text: str, field: str = "") -> tuple[str, dict[str, Any]]:
    """Parses a spec into its name and its keyword arguments.

    Args:
      field: of the config, with which error messages begin.

    Example:
      >>> parse_spec("dirichlet(alpha=0.5, min_size=2)")
      ('dirichlet', {'alpha': 0.5, 'min_size': 2})
      >>> parse_spec("tfds:cifar10")
      ('tfds:cifar10', {})
    """
    start = f"{field}: " if field else ""
    if not isinstance(text, str) or len(text) > LONGEST:
        limit = "must be a string" if not isinstance(text, str) else f"must have at most {LONGEST} characters"
        raise ValueError(f"{start}{option_types.shorten(text)} {limit}, such as 'name(option=1)'")
    is_call = text.rstrip().endswith(")") and _CALL.match(text)  # an option may hold a file too
    file, colon, rest = (text, "", "") if is_call else text.partition(".py:")  # a folder may have brackets in its name
    name, bracket, rest = rest.partition("(") if colon else text.partition("(")
    name = f"{file}{colon}{name}".strip() if colon else name.strip()
    if not bracket:
        return name, {}
    try:
        with warnings.catch_warnings(action="ignore"):
            node = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            raise ValueError
        if not all(keyword.arg for keyword in node.keywords):
            raise ValueError
        options = [(str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in node.keywords]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        form = "is not of the form name(key=value, ...), its values Python literals"
        raise ValueError(f"{start}{option_types.shorten(text)} {form}") from None
    if repeated := [key for i, (key, _) in enumerate(options) if key in dict(options[:i])]:
        raise ValueError(f"{start}{option_types.shorten(text)} has the option {repeated[0]!r} twice")
    return name, dict(options)


def spell(name: str, options: Mapping[str, Any]) -> str:
    """Returns the spec of a name with options; the inverse of `parse_spec`.

    >>> spell("dirichlet", {"alpha": 0.5}), spell("iid", {})
    ('dirichlet(alpha=0.5)', 'iid')
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name


def resolve_spec(
    what: str,
    spec: str,
    builtin: Mapping[str, Callable],
    *,
    given: Iterable[str] = (),
    placed: Sequence[str] = (),
    prefixes: Container[str] = (),
    field: str = "",
    options: Mapping[str, Any] | None = None,
) -> ResolvedSpec:
    """Resolves a spec and checks its options.

    Args:
      what: its kind, one of `ENTRY_POINT_GROUPS`, or another one, for which packages cannot
        announce names.
      spec: "name(option=value, ...)", see the module.
      builtin: by name.
      given: names of the arguments that the caller passes by name.
      placed: the arguments that the caller passes by position, first; the function may have other
        names for them.
      prefixes: names of `builtin` that may be followed by a colon and more, such as "tfds:mnist".
      field: of the config, with which messages about a malformed spec begin.
      options: in addition to the spec's own.

    Raises:
      ValueError: there is no such name, or an option has a value that is not allowed.
      TypeError: there is no such option, or a required one is missing; or the function does not
        take `placed`.
    """
    name, own = parse_spec(spec, field)
    if repeated := own.keys() & (options or {}).keys():
        raise ValueError(f"{what} {option_types.shorten(spec)} has the option {min(repeated)!r}, which is also given beside it")
    function, origin = find_builder(what, name, builtin, prefixes)
    resolved = ResolvedSpec(what, spec, name, own | dict(options or {}), function, origin)
    given = (*given, *positional_names(f"{what} {name!r}", function, placed))
    prefix = f"{what}." if options else None
    check_call(f"{what} {name!r}", function, given, resolved.options, prefix, is_external=origin != BUILT_IN)
    return resolved


# functions by name


def spell_name(name: str) -> str:
    """Returns a paper's spelling of a method as its name here.

    >>> spell_name("LG-FedAvg")
    'lg_fedavg'
    """
    return name.lower().replace("-", "_")


def suggest_name(what: str, name: str, names: Iterable[str]) -> str:
    """Returns the end of an error message, " Did you mean 'x'?", or ""."""
    return did_you_mean(spell_name(name) if what in SIMILARITY else name, names, SIMILARITY.get(what, 0.6))


def find_builder(what: str, name: str, builtin: Mapping[str, Callable], prefixes: Container[str] = ()) -> tuple[Callable, str]:
    """Returns (the function or class that a name without options stands for, its origin); see
    `resolve_spec`."""
    first = name.partition(":")[0]
    if name in builtin or (first in builtin and first in prefixes):
        return builtin[name if name in builtin else first], BUILT_IN
    if IMPORT_PATH.fullmatch(name):
        return _record(*import_member(what, name))
    announced = find_entry_points(what)
    if name in announced:
        return _record(*load_entry_point(what, name))
    names = [*builtin, *announced]
    searched = ""
    if what in ENTRY_POINT_GROUPS:
        searched = f" Looked in those built in and in entry points of the group {ENTRY_POINT_GROUPS[what]!r}; "
        searched += "others are named 'package.module:name' or 'path/to/file.py:name'."
    hint = suggest_name(what, name, names)
    raise ValueError(f"unknown {what} {option_types.shorten(name)}; allowed: {', '.join(names)}.{hint}{searched}")


@contextlib.contextmanager
def record_lookups() -> Iterator[list[tuple[Callable, str]]]:
    """Yields a list that collects (function, origin) of every lookup inside the context that is not
    built in."""
    record: list[tuple[Callable, str]] = []
    token = _records.set((*_records.get(), record))
    try:
        yield record
    finally:
        _records.reset(token)


def _record(function: Callable, origin: str) -> tuple[Callable, str]:
    for record in _records.get():
        record.append((function, origin))
    return function, origin


@functools.cache
def find_entry_points(what: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of installed packages for a kind, by name."""
    points: dict[str, importlib.metadata.EntryPoint] = {}
    group = ENTRY_POINT_GROUPS.get(what)
    for point in importlib.metadata.entry_points(group=group) if group else ():
        if point.name in points and points[point.name].value != point.value:
            both = f"{points[point.name].value!r} and as {point.value!r}"
            raise ValueError(f"{what} {point.name!r} is announced twice, as {both}")
        points[point.name] = point
    return points


def load_entry_point(what: str, name: str) -> tuple[Callable, str]:
    """Returns (the object of an entry point, its origin)."""
    point = find_entry_points(what)[name]
    try:
        return _load_installed(point), f"{point.value} of {point.dist.name if point.dist else 'a package'}"
    except Exception as error:  # importing somebody else's module may raise anything
        message = f"{what} {name!r}: its entry point {point.value!r} cannot be loaded: {_one_line(error)}"
        raise ValueError(message) from error


def _load_installed(point: importlib.metadata.EntryPoint) -> Callable:
    """Loads an entry point, even if the current folder has a folder of its module's name."""
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if entry not in ("", os.getcwd())]
    try:
        return point.load()
    except ModuleNotFoundError:  # it is installed from the current folder
        sys.path[:] = path
        return point.load()
    finally:
        sys.path[:] = path


def register_in_process(what: str, name: str, function: Callable) -> str:
    """Registers a function for as long as this process runs, and returns the name by which a config
    finds it.

    A later function of the same kind and name replaces it.
    """
    name = re.sub(r"\W", "_", name)
    _REGISTERED[what, name] = function
    return f"{GIVEN}:{name}"


@contextlib.contextmanager
def refuse_imports(why: str) -> Iterator[None]:
    """Refuses imports of modules and files by name inside the context; entry points of installed
    packages still load."""
    token = _refusal.set(why)
    try:
        yield
    finally:
        _refusal.reset(token)


def import_member(what: str, name: str) -> tuple[Callable, str]:
    """Returns (a function or class of a module or a file, the module or file), from a name of the
    form `IMPORT_PATH`.

    Raises:
      ValueError: there is no such module, file or member; importing it failed; or imports are
        refused (`refuse_imports`).
    """
    module, _, own = name.rpartition(":")
    if module == GIVEN:
        return _find_registered(what, name, own), "given in Python"
    if (why := _refusal.get()) is not None:
        raise ValueError(f"{what} {name!r} is code from outside: {why}")
    holder = _import_file(what, name, module) if module.endswith(".py") else _import_module(what, name, module)
    if not hasattr(holder, own):
        if module == "__main__" and what in PYTHON_ARGUMENTS:
            raise ValueError(f"{what} {name!r} was given in Python, in another notebook or script; {_give_again(what)}")
        public = [key for key, value in vars(holder).items() if callable(value) and not key.startswith("_")]
        defined = [key for key in public if getattr(vars(holder)[key], "__module__", None) == holder.__name__]
        hint = did_you_mean(own, public)
        raise ValueError(f"{what} {name!r}: {module} has no {own!r}; it has: {', '.join(defined) or 'nothing'}.{hint}")
    member = getattr(holder, own)
    if not callable(member):
        raise ValueError(f"{what} {name!r}: {own} of {module} is {option_types.shorten(member)}, not a function or class")
    return member, module


def is_imported(origin: str) -> bool:
    """Returns whether an origin is a module or a file that a config names: not built in, installed
    or given in Python."""
    return IMPORT_PATH.fullmatch(f"{origin}:name") is not None


def _find_registered(what: str, name: str, own: str) -> Callable:
    if what not in PYTHON_ARGUMENTS:
        kinds = ", ".join(f"{kind}s" for kind in PYTHON_ARGUMENTS if kind != "loss")
        also = "; data are given as data=..." if what == "data set" else ""
        raise ValueError(f"{what} {option_types.shorten(name)}: 'given:' stands for {kinds} and losses given in Python{also}.")
    if (what, own) not in _REGISTERED:
        raise ValueError(f"{what} {name!r} was given in Python; {_give_again(what)}")
    return _REGISTERED[what, own]


def _give_again(what: str) -> str:
    return f"give it again: experiment.load(..., {PYTHON_ARGUMENTS[what]}=...)"


def _import_module(what: str, name: str, module: str) -> types.ModuleType:
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # as `python -m` has it; last, so that it hides nothing
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            where = f"looked on Python's path and in {os.getcwd()}"
            raise ValueError(f"{what} {name!r}: there is no module {error.name!r}; {where}") from None
        raise ValueError(f"{what} {name!r}: importing {module} failed: {_one_line(error)}") from error
    except Exception as error:  # importing somebody else's module may raise anything
        raise ValueError(f"{what} {name!r}: importing {module} failed: {_one_line(error)}") from error


def _import_file(what: str, name: str, file: str) -> types.ModuleType:
    """Returns a file as a module, which is read again only if it changed: its classes stay the same
    ones."""
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{what} {name!r}: there is no file {str(path)!r}")
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]
    module_name = f"fedjax_core_file_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # of somebody else's file
        del sys.modules[module_name]
        if not isinstance(error, Exception):
            raise
        raise ValueError(f"{what} {name!r}: importing {file} failed: {_one_line(error)}") from error
    return module


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


# signatures


def check_call(
    what: str,
    function: Callable,
    given: Iterable[str],
    options: Mapping[str, Any],
    prefix: str | None = None,
    *,
    is_external: bool = False,
) -> None:
    """Raises what `call_checked` would, without calling.

    Args:
      what: what error messages call the function, such as "partition 'dirichlet'".
      given: names of arguments that the caller passes itself.
      prefix: what precedes an option's name where its value is refused; None: "`what`: ".
      is_external: whether the function is not built in: it may then have another name for one of `given`.

    Raises:
      TypeError: an option that `function` does not take, one that it needs and that is missing, or
        one of `given`.
      ValueError: an option whose value its annotation does not allow.
    """
    takes, takes_any = read_parameters(function)
    given = tuple(given)
    settable = [name for name in takes if name not in given]
    for name, value in options.items():
        if name in settable:
            wanted = takes[name].annotation
            if wanted is inspect.Parameter.empty and isinstance(takes[name].default, bool) and isinstance(value, str):
                wanted = bool  # the command line's "false" is true in an `if`
            option_types.check_value(f"{what}: {name}" if prefix is None else f"{prefix}{name}", value, wanted)
        elif not takes_any or name in given:
            listed = ", ".join(settable) or "none"
            raise TypeError(f"{what} has no option {name!r}; it takes: {listed}.{did_you_mean(name, settable)}")
    for name in settable:
        if name not in options and takes[name].default is inspect.Parameter.empty:
            given_hint = f"It is given those that it names of: {', '.join(given)}."
            hint = given_hint if given else "It is called with options alone; what it returns is used."
            raise TypeError(
                f"{what} needs the option {name!r}; it takes: {', '.join(settable)}.{f' {hint}' if is_external else ''}"
            )


def positional_names(what: str, function: Callable, placed: Sequence[str]) -> tuple[str, ...]:
    """Returns a function's own names for the arguments `placed`, which its caller passes by
    position.

    Args:
      what: what the error message calls the function.

    Raises:
      TypeError: it does not take so many; or one of them would be taken for an option, which has a
        default and another name.
    """
    if not placed or (signature := _read_signature(function)) is None:
        return tuple(placed)
    takes = [p for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = [p for p, name in zip(takes, placed, strict=False) if p.name == name or p.default is p.empty]
    if len(taken) < len(placed) and not any(p.kind is p.VAR_POSITIONAL for p in signature):
        listed = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in takes) or "none"
        hint = " One with a default must have the name above." if len(takes) >= len(placed) else ""
        raise TypeError(f"{what} is called with ({', '.join(placed)}) by position; it takes by position: {listed}.{hint}")
    return tuple(p.name for p in taken)


def read_parameters(function: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
    """Returns (named parameters, whether it has `**kwargs`); of a class those of its `__init__`.

    The signature of a function or class is read once.
    """
    if not isinstance(function, types.FunctionType | type):
        return _read_parameters(function)
    if function not in _SIGNATURES:
        _SIGNATURES[function] = _read_parameters(function)
    named, takes_any = _SIGNATURES[function]
    return dict(named), takes_any


def _read_signature(function: Callable) -> list[inspect.Parameter] | None:
    """Returns a function's parameters; None of one without a signature."""
    if isinstance(function, type) and not hasattr(function, "_fields"):
        function = functools.partial(function.__init__, None)  # self; flax's metaclass hides the signature
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, AttributeError, SyntaxError):  # annotations for type checkers only
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return None


def _read_parameters(function: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
    if (signature := _read_signature(function)) is None:
        return {}, True
    named = {p.name: p for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in signature)


def call_checked(what: str, function: Callable, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Calls `function` with those of `given` that it takes, and with `options`, checked."""
    check_call(what, function, given, options)
    named, _ = read_parameters(function)
    return function(**{name: given[name] for name in named if name in given}, **options)


def replace_options(what: str, default: T, *given: Mapping[str, Any] | None) -> T:
    """Returns a NamedTuple of options with those that are given replaced.

    A later mapping overrides an earlier one; a value of None leaves an option as it is.

    Raises:
      ValueError: there is no such option, or its value is not what the NamedTuple's annotation
        allows.
    """
    replaced: dict[str, Any] = {}
    named, _ = read_parameters(type(default))
    for mapping in given:
        for name, value in (mapping or {}).items():
            check_choice(f"option of {what}", name, default._fields)
            if value is not None:
                replaced[name] = option_types.check_value(f"{what}.{name}", value, named[name].annotation)
    return default._replace(**replaced)
