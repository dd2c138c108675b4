"""Refuses imports that the config of somebody else's directory names: it must not choose what runs here."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_core import registry
from fedjax_core.experiment.lookup import find_callbacks
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.storage import signature as origin
from fedjax_core.storage.workdir import BEGUN_HERE, CONFIG


@contextlib.contextmanager
def guard_imports(folder: Path, config: Mapping[str, Any], recorded: Mapping[str, Any], trust: bool) -> Iterator[None]:
    """Refuses meanwhile to import what a directory's config names, unless it is trusted, or was
    begun here."""
    signature = recorded.get(BEGUN_HERE, {}).get("signature")
    if trust or (signature is not None and origin.is_signed_here(config, signature)):
        yield
        return
    why = f"{folder / CONFIG} names it, and nothing says that you began this run here"
    with registry.refuse_imports(f"{why}; --trust (in Python trust=True) lets it be imported"):
        yield


def names_code(resolved: ResolvedConfig) -> bool:
    """Returns whether a config, its callbacks included, names code that is neither built in nor
    installed."""
    callbacks = find_callbacks(resolved.fields["callbacks"])
    return resolved.imports_code or any(registry.is_imported(callback.origin) for callback in callbacks)
