"""Parses command lines with a config: its name or file, changes of its fields, and another method
than its own.

Configs ("fedavg") and definitions of tables ("fedskc/table1") that come with the package have bare
names. A user's folder may have packages `methods` and `configs` too; commands import ours
(`own_packages.py`), and find the user's files by path.
"""

import ast
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl.flags import Error as FlagError
from absl.flags import UnrecognizedFlagError

from fedjax_core import code_fingerprint, option_types, own_packages, registry
from fedjax_core.experiment import schema
from fedjax_core.experiment.lookup import NOT_CONFIGS
from fedjax_core.own_packages import HOME
from fedjax_core.storage.json_files import unflatten

MORE = "see --help"
ERRORS = (FlagError, ValueError, LookupError, AttributeError, TypeError, OSError, ImportError, SyntaxError)  # of `parse_flags`
HELP = {"--help", "-h", "-help", "--helpshort", "--helpfull"}
LONGEST = 400  # characters of an error that a config's own code raises
FOLDERS = {"config": HOME / "configs", "table": HOME / "configs" / "tables"}
SWITCHES = {"distributed", "nodistributed", "fresh", "nofresh"}  # flags of the commands that take no value
log = logging.getLogger(__name__)
_METHOD = re.compile(r"--?config\.method\.(.+)")
_FIELD = re.compile(r"--?config\.([\w.]+)")
_NAMES = re.compile(r"[^\W\d]\w*(,\s*[^\W\d]\w*)+")
_FLAG = re.compile(r"--?[^\W\d]")  # not a number below 0


class _Flag(NamedTuple):
    """A part of a command line.

    Attributes:
      words: of the line: one, or a flag of the method and the value after it.
      field: of a flag of the method, below config.method; "" of everything else.
      value: of a flag of the method.
    """

    words: list[str]
    field: str
    value: Any


def list_bundled(what: str) -> list[str]:
    """Returns the bare names of configs or tables, sorted."""
    folder = FOLDERS[what]
    files = folder.glob("*.py") if what == "config" else folder.rglob("*.py")
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in files if file.stem not in NOT_CONFIGS)


def find_file(what: str, text: str) -> str:
    """Returns the file of a config or a table: a path, if `text` ends in .py, or the file that has
    this bare name."""
    if not text.endswith(".py"):
        name, known = text.replace(os.sep, "/"), list_bundled(what)
        if name not in known:
            name = registry.spell_name(name)  # a paper's spelling, such as "FedAvg"
        if name not in known:
            hint = registry.suggest_name(what, name, known)
            advice = f"fedjax-core list {what}s shows all, a file of your own ends in .py"
            raise ValueError(f"there is no {what} {text!r}; {advice}.{hint}")
        return str(FOLDERS[what] / f"{name}.py")
    if not os.path.isfile(text):
        raise ValueError(f"there is no {what} file {text!r}")
    _add_package_of(Path(text).resolve())
    return text


def _add_package_of(path: Path) -> None:
    """Lets a user's file import its neighbours, where its folder is a package `configs` of the
    user's own.

    Our modules come first; a warning names those of the user's that they hide.
    """
    folder = next((folder for folder in path.parents if folder.name == "configs"), None)
    if folder is None or folder == FOLDERS["config"].resolve():
        return
    own_packages.extend_package("configs", folder)
    imports = re.findall(r"\bfrom configs import (.+)|\bconfigs\.(\w+)", path.read_text(encoding="utf-8", errors="replace"))
    for name in sorted({name for names in imports for name in re.findall(r"\w+", " ".join(names))}):
        ours, theirs = FOLDERS["config"] / f"{name}.py", folder / f"{name}.py"
        if ours.is_file() and theirs.is_file() and ours.read_bytes() != theirs.read_bytes():
            log.warning("%s: 'configs.%s' is the library's own, not %s; give yours another name to import it", path, name, theirs)


def parse_flags(arguments: Sequence[str], command: str, flags_of: Callable[[Sequence[str]], Any]) -> tuple[Any, dict[str, Any]]:
    """Parses a command line with a config. Options of the method that the config does not have are
    flags too.

    Args:
      flags_of: line -> the command's flags, "config" among them, not yet parsed.

    Returns:
      (the flags, fields of the method for `experiment.switch_method`: another method's, or options that
      the config does not have; {} if there are none).
    """
    named, rest = split_config(arguments)
    _refuse_repeated(rest)
    with _without_absl_warnings():
        name, colon, variant = named.partition(":")
        file = f"--config={find_file('config', name)}{colon}{variant}"
        line, method_fields = _take_method([command, file, *rest])  # the file first, since what follows changes it
        line, nones = _take_nones(line)
        _check_several(line)
        try:
            flags = _parse(flags_of, line)
        except (AttributeError, KeyError):  # a field that the config does not have
            parts = _split_flags(line)
            config = _parse(flags_of, _join_words(part for part in parts if not part.field)).config
            schema.check_complete(config, named)
            more = [part for part in parts if part.field and not schema.has_field(config.method, part.field)]
            if not more:
                raise
            flags = _parse(flags_of, _join_words(part for part in parts if part not in more))
            method_fields = unflatten({part.field: part.value for part in more})
    schema.check_complete(flags.config, named)
    for field in nones:
        if field not in schema.FIELDS and not schema.has_field(flags.config, field):
            hint = option_types.did_you_mean(field, [f"optimizer.{name}" for name in flags.config.optimizer])
            raise ValueError(f"the config has no field --config.{field}.{hint}")
        group, name = schema.find_group(flags.config, field)
        with flags.config.unlocked(), flags.config.ignore_type():
            group[name] = None
    if sets_field(line, "cohort.fraction"):
        schema.check_fraction_counts(flags.config, flags.config.cohort.fraction)
    return flags, method_fields


def _refuse_repeated(words: Iterable[str]) -> None:
    """Raises ValueError for a flag of the command itself that is given twice; of fields the last one counts."""
    names = [word.partition("=")[0].lstrip("-") for word in words if _FLAG.match(word) and not _FIELD.match(word)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"--{twice} is given {names.count(twice)} times; give it once")


def sets_field(words: Iterable[str], field: str) -> bool:
    """Returns whether words of a command line set a field of the config."""
    return any((match := _FIELD.match(word)) and match[1] == field for word in words)


def _check_several(line: Iterable[str]) -> None:
    """Raises ValueError for names with commas between, where a field takes a tuple."""
    for name, _, value in (word.partition("=") for word in line):
        match = _FIELD.fullmatch(name)
        if match and match[1] in schema.TUPLES and _NAMES.fullmatch(value):
            several = ", ".join(repr(each.strip()) for each in value.split(","))
            raise ValueError(f'{name}={value}: several are given as {name}="({several})"')


def _take_nones(line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns a line without the flags that set a field to None, which absl takes for a string, and
    these fields."""
    last: dict[str, str] = {}
    for word in line:
        name, equals, value = word.partition("=")
        if equals and (match := _FIELD.fullmatch(name)):
            last[match[1]] = value
    optional = {field for field in last if _may_be_none(field)}
    nones = [field for field, value in last.items() if value == "None" and field in optional]

    def is_taken(word: str) -> bool:
        match = _FIELD.match(word)
        return match is not None and match[1] in optional and (match[1] in nones or word.endswith("=None"))

    return [word for word in line if not is_taken(word)], nones


def _may_be_none(field: str) -> bool:
    if field not in schema.FIELDS:
        return field.startswith("optimizer.")  # an option, which then has its default
    return option_types.describe_mismatch(None, schema.FIELDS[field]) is None


@contextlib.contextmanager
def _without_absl_warnings() -> Iterator[None]:
    """Silences absl: what it warns of is an error here."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def split_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the config that is named, by --config or without dashes, and the other arguments."""
    words, configs, rest = list(arguments), [], []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--config", "-config"):
            configs.append(value if equals or not words else words.pop(0))
        elif not word.startswith("-"):
            configs.append(word)
        else:
            takes_next = not equals and name.lstrip("-") not in SWITCHES and words and not words[0].startswith("-")
            if takes_next and _FIELD.fullmatch(name):
                rest.append(f"{name}={words.pop(0)}")  # absl takes no word after a field that may be True
            else:
                rest += [word, words.pop(0)] if takes_next else [word]
    if len(configs) != 1 or not configs[0]:
        given = f"found {', '.join(map(repr, configs))}" if configs else "found no config"
        raise ValueError(f"give --config=configs/X.py, or a bare name such as fedavg, once, and --workdir=DIR; {given}; {MORE}")
    return configs[0], rest


def _take_method(line: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns (the line without its flags of config.method, their fields) where they name a method,
    which may be another one than the config's, with other options; else (the line, {})."""
    parts = _split_flags(line)
    fields = unflatten({part.field: part.value for part in parts if part.field})
    return (_join_words(part for part in parts if not part.field), fields) if "name" in fields else (list(line), {})


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of --seeds: integers, separated by commas."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds={text}: {text!r} must be integers separated by commas, such as 0,1,2") from None


def _parse(flags_of: Callable[[Sequence[str]], Any], line: Sequence[str]) -> Any:
    flags = flags_of(line)
    if more := flags(line)[1:]:
        raise ValueError(f"unexpected {' '.join(map(repr, more))}; a field is --config.FIELD=VALUE; {MORE}")
    return flags


def _split_flags(line: Sequence[str]) -> list[_Flag]:
    words, parts = list(line), []
    while words:
        taken = [words.pop(0)]
        name, equals, value = taken[0].partition("=")
        field = _METHOD.fullmatch(name)
        if field and not equals:  # the next word, or none for a switch
            taken += [words.pop(0)] if words and not _FLAG.match(words[0]) else []
            value = taken[1] if len(taken) > 1 else "True"
        parts.append(_Flag(taken, field[1] if field else "", _literal(value)))
    return parts


def _join_words(parts: Iterable[_Flag]) -> list[str]:
    return [word for part in parts for word in part.words]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def describe_flag_error(error: Exception, arguments: Sequence[str]) -> Exception | str:
    """Returns a readable message for an error of absl or ml_collections about flags; for one of the
    config's own code, where it was raised."""
    raised, where = code_fingerprint.find_own_error(error)
    if where:
        text = " ".join(str(raised).split())
        return f"{type(raised).__name__} in {where}: {text if len(text) <= LONGEST else f'{text[:LONGEST]} ...'}"
    text = str(error)
    if isinstance(error, UnrecognizedFlagError) and error.flagname in schema.FIELDS:
        return f"{error}; did you mean --config.{error.flagname}?"
    if re.fullmatch(r"module \S+ has no attribute 'get_config'", text):
        return f"{split_config(arguments)[0]} has no function get_config(variant) that returns a config"
    if isinstance(error, IndexError) and (index := re.search(r"\(in: ([\w.]+)\[\d+\]\)", text)):
        return f"{index[1]} is given as a whole, such as --config.{index[1]}=\"('one', 'another')\", not by index"
    if broken := re.match(r"flag (--config\.[\w.]+)=.*: Error while parsing string: (.*) as tuple\. ", text, re.S):
        return f"{broken[1]}={broken[2]} must be a tuple, such as {broken[1]}=\"('one', 'another')\""
    if isinstance(error, (AttributeError, KeyError)):
        field = next(iter(re.findall(r"\w+", text)), "")
        flags = (flag for flag in (a.partition("=")[0] for a in arguments) if field in flag.split(".")[1:])
        given = next((flag for flag in flags if flag.partition(".")[2] not in schema.FIELDS), None)
        close = re.search(r"Did you mean \W*(\w+)", text)
        return f"the config has no field {given}" + (f"; did you mean {close[1]}?" if close else "") if given else text
    if "Traceback (most recent call last)" in text:  # raised inside a config of ours
        flag, _, trace = text.partition(": ")
        return f"{flag}: {trace.strip().splitlines()[-1].partition(': ')[2]}"
    if group := re.fullmatch(r"flag (--config\.(\w+))=(.*): Failed to parse .* as a ConfigDict.*", text, re.S):
        return _describe_group(*group.groups())
    if number := re.fullmatch(
        r"(flag --\S+?)=.*: (?:invalid literal for int|could not convert string to float).*: (.+)", text, re.S
    ):
        return f"{number[1]}={number[2]} must be {'an integer' if 'literal' in text else 'a number'}"
    return error


def _describe_group(flag: str, group: str, value: str) -> str:
    """Returns the message for a flag that gives one value to a group of fields."""
    inside = [field for field in schema.FIELDS if field.startswith(f"{group}.")]
    number = _literal(value)
    meant = {("cohort", int): "cohort.size", ("cohort", float): "cohort.fraction"}.get((group, type(number)))
    meant = f"{group}.name" if f"{group}.name" in inside and isinstance(number, str) else meant
    hint = f"; did you mean --config.{meant}={value}?" if meant else ""
    return f"{flag}={value}: {group} is a group of fields, such as {', '.join(inside[:3])}{hint}"
