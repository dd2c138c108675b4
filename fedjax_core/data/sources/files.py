"""Files of published sets: where they are looked for, and whether they are what was published."""

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

DATA_VARIABLE = "FEDJAX_DATA"


def find(name: str, data_dir: Path, candidates: Iterable[Path], how: str, *folders: Path) -> Path:
    """The first candidate file (or folder) that exists."""
    candidates = list(candidates)
    for place in candidates:
        if place.is_file():
            return place
    for place in folders:
        if place.is_dir():
            return place
    looked = ", ".join(str(place) for place in [*candidates, *(f"{place}/" for place in folders)])
    raise FileNotFoundError(
        f"{name} is not in {data_dir}: looked for {looked}; {how} (or set data_dir, or the variable {DATA_VARIABLE})."
    )


def check_md5(where: Path, blob: bytes, published: str) -> None:
    found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if found != published:
        raise ValueError(
            f"{where}: {len(blob)} bytes with md5 {found}, published is {published}: truncated, damaged or "
            "another file; get it again."
        )


def unpacked(where: Path) -> bytes:
    return gunzip(where, where.read_bytes()) if where.suffix == ".gz" else where.read_bytes()


def gunzip(where: Path, blob: bytes) -> bytes:
    try:
        return gzip.decompress(blob)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: cannot be unpacked ({error}): truncated or damaged; get it again.") from error


def zipped(where: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(where) as archive:
            return gunzip(where, archive.read(member))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"{where}: cannot read {member} ({error}): truncated or another archive; get it again.") from error


def member(archive: tarfile.TarFile, where: Path, member: str) -> bytes:
    try:
        file = archive.extractfile(member)
    except KeyError:
        file = None
    if file is None:
        raise ValueError(f"{where}: has no file {member}.")
    return file.read()
