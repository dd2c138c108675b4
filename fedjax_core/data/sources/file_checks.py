"""Files of published sets: where they are looked for, and whether they are what was published."""

import codecs
import gzip
import hashlib
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from fedjax_core.option_types import Limit

DATA_VARIABLE = "FEDJAX_DATA"
NOT_AN_ARRAY = (OSError, EOFError, ValueError, SyntaxError, RecursionError, OverflowError, MemoryError, tokenize.TokenError)
_BYTE_ORDER_MARKS = {  # those that begin with another one come first
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def _is_encoding(name: str) -> bool:
    try:
        b"a".decode(name)
    except UnicodeError:  # a sign may need more bytes
        return True
    except (LookupError, ValueError):
        return False
    return True


Encoding = Annotated[str, Limit("an encoding that Python knows, such as 'utf-8'", _is_encoding)]


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


def read_text(where: Path, encoding: str = "utf-8") -> str:
    """Returns the text of a file, which may be packed (.gz), without its byte-order mark.

    Args:
      where: the file.
      encoding: of a file that does not begin with a byte-order mark, which says it itself.

    Raises:
      ValueError: it is no text in that encoding, or cannot be unpacked.
    """
    blob = unpacked(where)
    for mark, said in _BYTE_ORDER_MARKS.items():
        if blob.startswith(mark):
            blob, encoding = blob[len(mark) :], said
            break
    try:
        return blob.decode(encoding)
    except UnicodeError as error:
        hint = "give its own, such as encoding='latin-1', or save it in UTF-8"
        raise ValueError(f"{where}: is no text in {encoding.upper()} ({error}); {hint}.") from None


def why_no_array(error: BaseException) -> str:
    """Returns in one line why numpy does not read a .npy file, one of `NOT_AN_ARRAY`."""
    text = " ".join(str(error).split())
    if "max_header_size" in text:
        return "its header is longer than the 10,000 signs that any array needs"
    if isinstance(error, OverflowError | MemoryError):
        return "its header claims more numbers than there can be"
    return "its header cannot be read" if isinstance(error, RecursionError) else text


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
