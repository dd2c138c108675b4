"""Command lines with a config: its name or file, changes of its fields, and another method than its own."""

import ast
import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_core import code_fingerprint, option_types
from fedjax_core.commands import shipped
from fedjax_core.experiment import schema

MORE = "--help tells more"
HELP = {"--help", "-h", "-help", "--helpshort", "--helpfull"}
LONGEST = 400  # characters of what a config's own code raises
SWITCHES = {"distributed", "nodistributed", "fresh", "nofresh"}  # flags of the commands that take no value
_METHOD = re.compile(r"--?config\.method\.(.+)")
_FIELD = re.compile(r"--?config\.([\w.]+)")
_FLAG = re.compile(r"--?[^\W\d]")  # not a number below 0


class _Word(NamedTuple):
    """A part of a line.

    Attributes:
      words: as they stand there: one, or a flag of the method and the value behind it.
      field: of such a flag, below config.method; () of everything else.
      value: of such a flag.
    """

    words: list[str]
    field: tuple[str, ...]
    value: Any


def read(arguments: Sequence[str], command: str, flags_of: Callable[[Sequence[str]], Any]) -> tuple[Any, dict[str, Any]]:
    """Parses a command line with a config. Options of the method that the config does not list are flags too.

    Args:
      arguments: without the program's name.
      command: its name.
      flags_of: line -> the command's flags with "config", not yet parsed.

    Returns:
      (the flags, what the line says of the method for `experiment.switch`: of another one, or options that the config does not
      list; {} if nothing).

    Raises:
      ValueError: there is no such config, or not one; it lacks a field.
      Exception: as `flags_of` and its flags raise it.
    """
    with _silent():
        line, other = line_of(arguments, command)
        line, nones = _without_none(line)
        try:
            given = _parsed(flags_of, line)
        except (AttributeError, KeyError):  # a field that the config does not have
            parts = _parts(line)
            config = _parsed(flags_of, _words(part for part in parts if not part.field)).config
            schema.check_complete(config, parted(arguments)[0])
            more = [part for part in parts if part.field and not _lists(config.method, part.field)]
            if not more:
                raise
            given, other = _parsed(flags_of, _words(part for part in parts if part not in more)), _said(more)
    schema.check_complete(given.config, parted(arguments)[0])
    for field in nones:
        *above, last = field.split(".")
        with given.config.unlocked(), given.config.ignore_type():
            functools.reduce(lambda at, name: at[name], above, given.config)[last] = None
    return given, other


def _without_none(line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns a line without the flags that set a field to None where it may be that, which absl takes for a text, and these
    fields."""
    last: dict[str, str] = {}
    for word in line:
        name, equals, value = word.partition("=")
        if equals and (found := _FIELD.fullmatch(name)):
            last[found[1]] = value
    free = {field for field in last if _may_be_none(field)}
    nones = [field for field, value in last.items() if value == "None" and field in free]
    drops = lambda word: (found := _FIELD.match(word)) and found[1] in free and (found[1] in nones or word.endswith("=None"))
    return [word for word in line if not drops(word)], nones


def _may_be_none(field: str) -> bool:
    of_optimizer = field.startswith("optimizer.") and field not in schema.FIELDS  # which then has its own default
    return of_optimizer or (field in schema.FIELDS and option_types.must_be(None, schema.FIELDS[field]) is None)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Inside, absl warns of nothing: what it warns of is an error here."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def line_of(arguments: Sequence[str], command: str) -> tuple[list[str], dict[str, Any]]:
    """What `flags` reads of a command line: the config's file first, since what follows changes it.

    Args:
      arguments: without the program's name.
      command: its name.

    Returns:
      (the line, what it says of another method, for `experiment.switch`; {} if it names none).

    Raises:
      ValueError: there is no such config, or not one.
    """
    asked, rest = parted(arguments)
    name, colon, variant = asked.partition(":")
    return other_method([command, f"--config={shipped.file('config', name)}{colon}{variant}", *rest])


def parted(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The config that is named, by --config or without dashes, and the arguments but for it.

    Raises:
      ValueError: there is none, or more than one.
    """
    words, found, rest = list(arguments), [], []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--config", "-config"):
            found.append(value if equals or not words else words.pop(0))
        elif not word.startswith("-"):
            found.append(word)
        else:
            rest.append(word)
            if not equals and name.lstrip("-") not in SWITCHES and words and not words[0].startswith("-"):
                rest.append(words.pop(0))
    if len(found) != 1 or not found[0]:
        named = f"found {', '.join(map(repr, found))}" if found else "found no config"
        raise ValueError(f"give --config=configs/X.py, or a bare name such as fedavg, once, and --workdir=DIR; {named}; {MORE}")
    return found[0], rest


def other_method(line: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(the line without its flags of config.method, what they say) where they name a method, which may be another one than the
    config's, with other options; else the line as it is."""
    parts = _parts(line)
    said = _said(part for part in parts if part.field)
    return (_words(part for part in parts if not part.field), said) if "name" in said else (list(line), {})


def seeds(text: str) -> list[int]:
    """What --seeds says: whole numbers with commas between.

    Raises:
      ValueError: something between is not one.
    """
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds={text}: {text!r} must be whole numbers with commas between, such as 0,1,2") from None


def _parsed(flags_of: Callable[[Sequence[str]], Any], line: Sequence[str]) -> Any:
    given = flags_of(line)
    given(line)
    return given


def _parts(line: Sequence[str]) -> list[_Word]:
    words, parts = list(line), []
    while words:
        taken = [words.pop(0)]
        name, equals, value = taken[0].partition("=")
        field = _METHOD.fullmatch(name)
        if field and not equals:  # the next word, or none where it is said of something that holds or not
            taken += [words.pop(0)] if words and not _FLAG.match(words[0]) else []
            value = taken[1] if len(taken) > 1 else "True"
        parts.append(_Word(taken, tuple(field[1].split(".")) if field else (), _literal(value)))
    return parts


def _words(parts: Iterable[_Word]) -> list[str]:
    return [word for part in parts for word in part.words]


def _said(parts: Iterable[_Word]) -> dict[str, Any]:
    """The fields below config.method, as nested mappings."""
    said: dict[str, Any] = {}
    for _, (*above, last), value in parts:
        place = functools.reduce(lambda at, key: at.setdefault(key, {}), above, said)
        place[last] = value
    return said


def _lists(options: Any, field: Sequence[str]) -> bool:
    """Whether a config has the field."""
    for name in field:
        if not isinstance(options, ConfigDict) or name not in options:
            return False
        options = options[name]
    return True


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def misused(error: Exception, arguments: Sequence[str]) -> Exception | str:
    """Returns what absl and ml_collections say about flags, as one would say it; of an error in the config's own code where it was
    raised."""
    raised, where = code_fingerprint.first_raised_in(error)
    if where:
        text = " ".join(str(raised).split())
        return f"{type(raised).__name__} in {where}: {text if len(text) <= LONGEST else f'{text[:LONGEST]} ...'}"
    text = str(error)
    if re.fullmatch(r"module \S+ has no attribute 'get_config'", text):
        return f"{parted(arguments)[0]} has no function get_config(variant) that returns a config"
    if isinstance(error, IndexError) and (place := re.search(r"\(in: ([\w.]+)\[\d+\]\)", text)):
        return f"{place[1]} is given as a whole, such as --config.{place[1]}=\"('one', 'another')\", not by place"
    if isinstance(error, (AttributeError, KeyError)):
        field = next(iter(re.findall(r"\w+", text)), "")
        given = next((flag for flag in (a.partition("=")[0] for a in arguments) if field in flag.split(".")[1:]), None)
        close = re.search(r"Did you mean \W*(\w+)", text)
        return f"the config has no field {given}" + (f"; did you mean {close[1]}?" if close else "") if given else text
    if "Traceback (most recent call last)" in text:  # raised inside a config of ours
        flag, _, trace = text.partition(": ")
        return f"{flag}: {trace.strip().splitlines()[-1].partition(': ')[2]}"
    if group := re.fullmatch(r"flag (--config\.(\w+))=(.*): Failed to parse .* as a ConfigDict.*", text, re.S):
        return _of_group(*group.groups())
    if number := re.fullmatch(
        r"(flag --\S+?)=.*: (?:invalid literal for int|could not convert string to float).*: (.+)", text, re.S
    ):
        return f"{number[1]}={number[2]} must be a {'whole ' if 'literal' in text else ''}number"
    return error


def _of_group(flag: str, group: str, value: str) -> str:
    """Returns what to say where a group of fields is given one value."""
    inside = [field for field in schema.FIELDS if field.startswith(f"{group}.")]
    number = _literal(value)
    meant = {("cohort", int): "cohort.size", ("cohort", float): "cohort.fraction"}.get((group, type(number)))
    meant = f"{group}.name" if f"{group}.name" in inside and isinstance(number, str) else meant
    hint = f"; did you mean --config.{meant}={value}?" if meant else ""
    return f"{flag}={value}: {group} is a group of fields, such as {', '.join(inside[:3])}{hint}"
