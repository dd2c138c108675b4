"""Command lines with a config: its name or file, changes of its fields, and another method than its own."""

import ast
import functools
import re
from collections.abc import Sequence
from typing import Any

from fedjax_core.commands import shipped

MORE = "--help tells more"
HELP = {"--help", "-h", "-help", "--helpshort", "--helpfull"}
SWITCHES = {"distributed", "nodistributed", "fresh", "nofresh"}  # flags of the commands that take no value
_METHOD = re.compile(r"--?config\.method\.(.+)")
_FLAG = re.compile(r"--?[^\W\d]")  # not a number below 0


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
    words, rest = list(line), []
    said: dict[str, Any] = {}
    while words:
        name, equals, value = words[0].partition("=")
        if not (field := _METHOD.fullmatch(name)):
            rest.append(words.pop(0))
            continue
        words.pop(0)
        if not equals:  # the next word, or none where it is said of something that holds or not
            value = words.pop(0) if words and not _FLAG.match(words[0]) else "True"
        *above, last = field[1].split(".")
        place = functools.reduce(lambda at, key: at.setdefault(key, {}), above, said)
        place[last] = _literal(value)
    return (rest, said) if "name" in said else (list(line), {})


def seeds(text: str) -> list[int]:
    """What --seeds says: whole numbers with commas between.

    Raises:
      ValueError: something between is not one.
    """
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds={text}: {text!r} must be whole numbers with commas between, such as 0,1,2") from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def misused(error: Exception, arguments: Sequence[str]) -> Exception | str:
    """What absl and ml_collections say about flags, as one would say it."""
    text = str(error)
    if isinstance(error, (AttributeError, KeyError)):
        field = next(iter(re.findall(r"\w+", text)), "")
        given = next((flag for flag in (a.partition("=")[0] for a in arguments) if field in flag.split(".")[1:]), None)
        close = re.search(r"Did you mean \W*(\w+)", text)
        return f"the config has no field {given}" + (f"; did you mean {close[1]}?" if close else "") if given else text
    if "Traceback (most recent call last)" in text:  # raised inside the config file
        flag, _, trace = text.partition(": ")
        return f"{flag}: {trace.strip().splitlines()[-1].partition(': ')[2]}"
    if number := re.fullmatch(
        r"(flag --\S+?)=.*: (?:invalid literal for int|could not convert string to float).*: (.+)", text, re.S
    ):
        return f"{number[1]}={number[2]} must be a {'whole ' if 'literal' in text else ''}number"
    return error
