"""Whose code a directory's config names: a run that somebody else began must not choose what is imported here."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_core import outside, registry
from fedjax_core.data import sources
from fedjax_core.storage import signature as origin
from fedjax_core.storage.workdir import BEGUN_HERE, CONFIG

_NO_CODE = {"given", *sources.PREFIXED}  # what stands before the colon of other names


@contextlib.contextmanager
def imports_of(folder: Path, config: Mapping[str, Any], recorded: Mapping[str, Any], trust: bool) -> Iterator[None]:
    """Refuses meanwhile to import what a directory's config names, unless it is trusted, or was begun here.

    Args:
      folder: of the run.
      config: what its config.json holds.
      recorded: what its run.json holds.
      trust: whether the user says so.
    """
    signature = recorded.get(BEGUN_HERE, {}).get("signature")
    if trust or (signature is not None and origin.is_signed_here(config, signature)):
        yield
        return
    who = f"{folder / CONFIG} names it, and nothing says that you began this run here"
    with outside.refuse_imports(f"{who}; --trust (in Python trust=True) lets it be imported"):
        yield


def names_code(value: Any) -> bool:
    """Returns whether some text among a config's values has the form of a module's or a file's member."""
    if isinstance(value, Mapping):
        return any(map(names_code, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_code, value))
    return isinstance(value, str) and any(map(_is_place, re.split(r"\s*\|\s*", value)))


def _is_place(text: str) -> bool:
    try:
        found = outside.PLACE.fullmatch(registry.parse(text)[0])
    except ValueError:
        return False
    return found is not None and found["module"] not in _NO_CODE
