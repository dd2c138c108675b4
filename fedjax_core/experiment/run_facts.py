"""Entries of run.json that describe a config: digests of files and of code, the adversary, a recorded accountant.

Each function returns entries of run.json, {} where there is nothing to record.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_core import code_fingerprint
from fedjax_core.experiment import given_code
from fedjax_core.experiment.input_files import existing_method_files, existing_model_files, existing_weight_files
from fedjax_core.experiment.resolve_config import ResolvedConfig


def list_file_digests(resolved: ResolvedConfig) -> dict[str, Any]:
    """Returns the digests of files of weights, by their paths, of pre-trained models, by their names, and of the method's files,
    by their fields.
    """
    weights, models = existing_weight_files(resolved), existing_model_files(resolved)
    of_method = existing_method_files(resolved)
    digests = {file: digest[:16] for file, digest in code_fingerprint.hash_files([*weights, *models, *of_method.values()]).items()}
    facts = {"weights": {str(file): digests[file] for file in weights}}
    facts["model_files"] = _join_by_name({file: digests[file] for file in models})
    facts["method_files"] = {field: digests[file] for field, file in of_method.items()}
    return {name: of for name, of in facts.items() if of}


def list_code_digests(lookups: Iterable[code_fingerprint.Named]) -> dict[str, Any]:
    """Returns the digests of the user's own files behind a config's lookups, by name: a moved folder has the same code.

    Raises:
      ValueError: a file has changed since this process imported it.
    """
    digests = _join_by_name(code_fingerprint.hash_own_files(lookups))
    return {"code": digests} if digests else {}


def _join_by_name(digests: Mapping[Path, str]) -> dict[str, str]:
    """Returns the digests by the files' names; those of files that have one name are joined."""
    by_name: dict[str, list[str]] = {}
    for file, digest in digests.items():
        by_name.setdefault(file.name, []).append(digest[:16])
    return {name: " ".join(sorted(each)) for name, each in by_name.items()}


def list_given_digests(resolved: ResolvedConfig) -> dict[str, Any]:
    """Returns the digests of what was given in Python; another version of Python has other bytecode, and another entry."""
    digests = given_code.digest_given(resolved.lookups)
    return {f"given_code_py{sys.version_info[0]}{sys.version_info[1]}": digests} if digests else {}


def list_changed(recorded: Mapping[str, Any], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the names of files and functions whose digests are other ones than those that were recorded."""
    return sorted(name for entry, of in now.items() for name in of if recorded.get(entry, {}).get(name, of[name]) != of[name])


def describe_adversary(resolved: ResolvedConfig, population: int) -> dict[str, Any]:
    """Returns the attack and its clients."""
    clients = [] if resolved.adversary is None else resolved.adversary.client_ids(population, resolved.data.seed).tolist()
    return {"adversary": {"attack": resolved.fields["adversary.attack"], "clients": clients}} if clients else {}


def keep_recorded_accountant(resolved: ResolvedConfig, recorded: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the accountant that a directory records, if the config names none: more rounds may need another one."""
    is_named = resolved.privacy is None or resolved.privacy.accountant is not None
    return {} if is_named or not recorded or "accountant" not in recorded else {"accountant": recorded["accountant"]}
