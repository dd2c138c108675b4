"""Signatures of configs: whether this user, with this home, started the run of a directory.

A run whose config names code outside of the library is signed at its start: run.json has an HMAC
(SHA-256) of the config under a key in the user's home. Nobody else has the key, so nobody else can
forge such a directory or change its config. A directory may be moved or copied. Without a writable
home nothing is signed.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import read_bytes
from fedjax_core.storage.json_files import to_json_values

_LENGTH = 32  # bytes of a key


def key_path() -> Path:
    """Returns the path of the user's key: $XDG_DATA_HOME (~/.local/share) / fedjax_core/key; relative for a user without a home."""
    return Path(os.path.expanduser(os.environ.get("XDG_DATA_HOME") or "~/.local/share")) / "fedjax_core" / "key"


def sign_config(config: Mapping[str, Any]) -> str | None:
    """Returns the signature of a config; None if there is no key and none can be created."""
    key = _read_key() or _make_key()
    return None if key is None else _sign(config, key)


def is_signed_here(config: Mapping[str, Any], signature: str) -> bool:
    """Returns whether `sign_config` gives this signature here."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_sign(config, key).encode(), signature.encode())


def _sign(config: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(to_json_values(config), sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    path = key_path()
    if not path.is_absolute():
        return None
    try:
        key = read_bytes(path)
    except OSError:
        return None
    return key if len(key) == _LENGTH else None


def _make_key() -> bytes | None:
    """Creates a key that only the user may read, unless one exists by now; returns the key."""
    path = key_path()
    if not path.is_absolute():
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)  # readable by its owner only
        try:
            with open(handle, "wb") as file:
                file.write(secrets.token_bytes(_LENGTH))
            os.link(name, path)  # does not replace the key of another process
        finally:
            os.unlink(name)
    return _read_key()
