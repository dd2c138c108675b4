"""Checks of data files: where they are looked for, whether they are what was published, arrays; and
fixed-seed test splits.
"""

import codecs
import gzip
import hashlib
import math
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np

from fedjax_core.data.apportion import apportion, make_generator
from fedjax_core.data.row_readers import check_fits, format_bytes
from fedjax_core.option_types import Limit

DATA_VARIABLE = "FEDJAX_DATA"
SPLIT_SEED = 0  # of test splits of sets that are published without one
TestFraction = Annotated[float, Limit("between 0 and 1", lambda v: 0 < v < 1)]
_ARRAY_ERRORS = (  # what numpy and zipfile raise for data that are no array
    *(OSError, EOFError, ValueError, SyntaxError, RuntimeError, OverflowError, MemoryError, KeyError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
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


def find_file(name: str, data_dir: Path, candidates: Iterable[Path], how: str, *folders: Path) -> Path:
    """Returns the first candidate file (or folder) that exists."""
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
    md5 = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if md5 != published:
        raise ValueError(
            f"{where}: {len(blob)} bytes with md5 {md5}, published is {published}: truncated, damaged or "
            "another file; get it again."
        )


def read_unpacked(where: Path) -> bytes:
    return decompress_gzip(where, where.read_bytes()) if where.suffix == ".gz" else where.read_bytes()


def read_text(where: Path, encoding: str = "utf-8") -> str:
    """Returns the text of a file, which may be packed (.gz), without its byte-order mark.

    Args:
      where: the file.
      encoding: of a file that does not begin with a byte-order mark, which says it itself.

    Raises:
      ValueError: it is no text in that encoding, or cannot be unpacked.
    """
    blob = read_unpacked(where)
    for mark, own in _BYTE_ORDER_MARKS.items():
        if blob.startswith(mark):
            blob, encoding = blob[len(mark) :], own
            break
    try:
        return blob.decode(encoding)
    except UnicodeError as error:
        hint = "give its own, such as encoding='latin-1', or save it in UTF-8"
        raise ValueError(f"{where}: is no text in {encoding.upper()} ({error}); {hint}.") from None


def load_array(file: IO[bytes], size: int, what: str) -> np.ndarray:
    """Reads an array in numpy's .npy format, without pickle.

    Args:
      file: open at its start; can be rewound.
      size: bytes of the file.
      what: begins messages, such as the path.

    Raises:
      ValueError: as `check_array_header`, or the array does not fit into memory.
    """
    shape, dtype = check_array_header(file, size, what)
    check_fits(what, shape, dtype)
    try:
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except _ARRAY_ERRORS as error:
        raise _no_array(what, error) from error


def map_array(path: Path, what: str) -> np.memmap:
    """Maps a .npy file into memory; `what` begins messages, which are those of
    `check_array_header`.
    """
    try:
        with open(path, "rb") as file:
            check_array_header(file, path.stat().st_size, what)
        mapped: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _no_array(what, error) from error
    return mapped


def check_array_header(file: IO[bytes], size: int, what: str) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and type of an array in numpy's .npy format, of which the header alone is read.

    Args:
      file: open at its start.
      size: bytes of the file.
      what: begins messages.

    Raises:
      ValueError: it is no such array, holds pickled objects, or claims more bytes than there are.
    """
    try:
        shape, _, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
    except _ARRAY_ERRORS as error:
        raise _no_array(what, error) from error
    if dtype.hasobject:
        raise ValueError(f"{what} holds pickled objects, which are never loaded.")
    claimed, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed > available or min(shape, default=0) < 0:
        raise ValueError(
            f"{what} has shape {list(shape)} of {dtype} in its header, which takes {format_bytes(claimed)}; must be at most the "
            f"{format_bytes(available)} that follow: truncated or damaged; get the file again."
        )
    return shape, dtype


def _no_array(what: str, error: BaseException) -> ValueError:
    if "max_header_size" in str(error):
        reason = "its header is longer than the 10,000 signs that any array needs"
    elif isinstance(error, OverflowError | MemoryError):
        reason = "its header claims more numbers than there can be"
    elif isinstance(error, OSError | zipfile.BadZipFile | zlib.error):
        reason = str(error)
    else:
        reason = "it is too short, or its header cannot be read"
    return ValueError(f"{what} is no .npy array, or is damaged ({reason}); get the file again.")


def decompress_gzip(where: Path, blob: bytes) -> bytes:
    try:
        return gzip.decompress(blob)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: cannot be unpacked ({error}): truncated or damaged; get it again.") from error


def read_zip_member(where: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(where) as archive:
            return decompress_gzip(where, archive.read(member))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"{where}: cannot read {member} ({error}): truncated or another archive; get it again.") from error


def read_tar_member(archive: tarfile.TarFile, where: Path, member: str) -> bytes:
    try:
        file = archive.extractfile(member)
    except KeyError:
        file = None
    if file is None:
        raise ValueError(f"{where}: has no file {member}.")
    return file.read()


def stratified_mask(strata: np.ndarray, tests: int) -> np.ndarray:
    """Returns the mask [n] of `tests` test examples, from every stratum in proportion; the same at
    every call.
    """
    values, counts = np.unique(strata, return_counts=True)
    rng = make_generator(SPLIT_SEED, "split")
    is_test = np.zeros(len(strata), bool)
    for value, number in zip(values, apportion(tests, counts), strict=True):
        is_test[rng.permutation(np.flatnonzero(strata == value))[:number]] = True
    return is_test


def choose_stratified(strata: np.ndarray, number: int | None) -> np.ndarray | None:
    """Returns so many examples, from every stratum in proportion and always the same ones; None for
    all that there are.
    """
    return None if number is None or number >= len(strata) else np.flatnonzero(stratified_mask(strata, number))


def stratified_fraction_mask(columns: Sequence[np.ndarray], fraction: float) -> np.ndarray:
    """Returns the mask [n] of a fraction of the examples, stratified by all columns together.

    Raises:
      ValueError: the fraction is no number between 0 and 1, or leaves no example on one of the
        sides.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number) or not 0 < fraction < 1:
        raise ValueError(f"test_fraction={fraction!r}: must lie between 0 and 1, such as 0.2.")
    rows = len(columns[0])
    if not 0 < (tests := round(fraction * rows)) < rows:
        raise ValueError(f"test_fraction={fraction} of {rows} examples leaves {rows - tests} to train and {tests} to test on.")
    _, strata = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return stratified_mask(strata.reshape(-1), tests)
