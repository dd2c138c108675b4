"""Files of data: where they are, whether they are what was published, texts and arrays in them.

Also test splits of a fixed seed, for sets that are published without one.
"""

import codecs
import gzip
import hashlib
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np

from fedjax_core.data.apportion import apportion, make_generator
from fedjax_core.data.ragged_index import list_places
from fedjax_core.data.row_readers import check_fits, format_bytes
from fedjax_core.option_types import Limit

DATA_VARIABLE = "FEDJAX_DATA"
SPLIT_SEED = 0
MANY_STRATA = 10_000
TestFraction = Annotated[float, Limit("between 0 and 1", lambda v: 0 < v < 1)]
_ARRAY_ERRORS = (  # what numpy and zipfile raise for data that are no array
    *(OSError, EOFError, ValueError, SyntaxError, RuntimeError, OverflowError, MemoryError, KeyError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
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
    except UnicodeError:  # a character may need more bytes
        return True
    except (LookupError, ValueError):
        return False
    return True


Encoding = Annotated[str, Limit("an encoding that Python knows, such as 'utf-8'", _is_encoding)]


def find_file(name: str, data_dir: Path, candidates: Iterable[Path], how: str, *folders: Path) -> Path:
    """Returns the first candidate file (or folder) that exists; `how` to get it ends the error."""
    candidates = list(candidates)
    if path := next((path for path in candidates if path.is_file()), None) or next(filter(Path.is_dir, folders), None):
        return path
    looked = ", ".join(str(path) for path in [*candidates, *(f"{path}/" for path in folders)])
    raise FileNotFoundError(
        f"{name} is not in {data_dir}: looked for {looked}; {how} (or set data_dir, or the variable {DATA_VARIABLE})."
    )


def check_md5(where: Path, blob: bytes, published: str) -> None:
    """Raises ValueError if the content of a file has another MD5 than the published one."""
    md5 = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if md5 != published:
        raise ValueError(
            f"{where}: {len(blob)} bytes with md5 {md5}, published is {published}: truncated, damaged or "
            "another file; get it again."
        )


def read_unpacked(where: Path) -> bytes:
    """Returns the content of a file, decompressed if it ends in .gz."""
    return _decompress_gzip(where, where.read_bytes()) if where.suffix == ".gz" else where.read_bytes()


def _decompress_gzip(where: Path, blob: bytes) -> bytes:
    try:
        return gzip.decompress(blob)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: cannot be unpacked ({error}): truncated or damaged; get it again.") from error


def read_zip_member(where: Path, member: str) -> bytes:
    """Returns the decompressed content of a .gz file in a zip archive."""
    try:
        with zipfile.ZipFile(where) as archive:
            return _decompress_gzip(where, archive.read(member))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"{where}: cannot read {member} ({error}): truncated or another archive; get it again.") from error


def read_text(where: Path, encoding: str = "utf-8") -> str:
    """Returns the text of a file, which may be packed (.gz), without its byte-order mark.

    A byte-order mark overrides `encoding`.
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


def read_json_lines(where: Path, encoding: str = "utf-8") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("FILE, line N", object) of each line of a file that is not empty.

    Raises:
      ValueError: a line is no JSON object.
    """
    for number, line in enumerate(read_text(where, encoding).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        try:
            row = json.loads(line)
        except RecursionError:
            raise ValueError(f"{place}: has lists or objects inside each other, deeper than can be read.") from None
        except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
            raise ValueError(f"{place}: is not JSON ({error}).") from None
        if not isinstance(row, dict):
            raise ValueError(f"{place}: is {type(row).__name__}, must be an object.")
        yield place, row


def load_array(file: IO[bytes], size: int, what: str) -> np.ndarray:
    """Reads an array in numpy's .npy format, without pickle; raises as `check_array_header`."""
    shape, dtype = check_array_header(file, size, what)
    check_fits(what, shape, dtype)
    try:
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except _ARRAY_ERRORS as error:
        raise _no_array_error(what, error) from error


def map_array(path: Path, what: str) -> np.memmap:
    """Maps a .npy file into memory; raises as `check_array_header`."""
    try:
        with open(path, "rb") as file:
            check_array_header(file, path.stat().st_size, what)
        mapped: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _no_array_error(what, error) from error
    return mapped


def check_array_header(file: IO[bytes], size: int, what: str) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and dtype of an array in numpy's .npy format; reads its header alone.

    Args:
      file: open at its start.
      size: bytes of the file.
      what: begins messages.

    Raises:
      ValueError: it is no such array, holds pickled objects, or claims more bytes than there are.
    """
    try:
        shape, _, dtype = HEADER_READERS[np.lib.format.read_magic(file)](file)
    except _ARRAY_ERRORS as error:
        raise _no_array_error(what, error) from error
    if dtype.hasobject:
        raise ValueError(f"{what} holds pickled objects, which are never loaded.")
    claimed, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed > available or min(shape, default=0) < 0:
        raise ValueError(
            f"{what} has shape {list(shape)} of {dtype} in its header, which takes {format_bytes(claimed)}; must be at most the "
            f"{format_bytes(available)} that follow: truncated or damaged; get the file again."
        )
    return shape, dtype


def _no_array_error(what: str, error: BaseException) -> ValueError:
    if "max_header_size" in str(error):
        reason = "its header is longer than the 10,000 characters that any array needs"
    elif isinstance(error, OverflowError | MemoryError):
        reason = "its header claims more numbers than there can be"
    elif isinstance(error, OSError | zipfile.BadZipFile | zlib.error):
        reason = str(error)
    else:
        reason = "it is too short, or its header cannot be read"
    return ValueError(f"{what} is no .npy array, or is damaged ({reason}); get the file again.")


def choose_users(names: Iterable[str], number: int, file: Path) -> list[str]:
    """Chooses `number` users to read, sorted, always the same ones."""
    names = sorted(names)
    if number > len(names):
        raise ValueError(f"{file}: has {len(names)} users; users={number} must be at most that.")
    return sorted(make_generator(SPLIT_SEED, "users").choice(names, number, replace=False).tolist())


def stratified_mask(strata: np.ndarray, tests: int) -> np.ndarray:
    """Returns the mask [n] of `tests` examples, of each stratum in proportion; always the same."""
    _, strata, counts = np.unique(strata, return_inverse=True, return_counts=True)
    return _draw_mask(strata, counts, apportion(tests, counts))


def _draw_mask(strata: np.ndarray, counts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the mask [n] of `numbers` [S] examples of strata 0 to S - 1, which have `counts` [S]."""
    rng = make_generator(SPLIT_SEED, "split")
    if len(counts) > MANY_STRATA:  # sorted at random within each, not one by one
        order = np.lexsort((rng.random(len(strata)), strata))
        rank = np.empty(len(strata), np.int64)
        rank[order] = list_places(counts)
        return rank < numbers[strata]
    members = np.split(np.argsort(strata, kind="stable"), np.cumsum(counts)[:-1])
    drawn = [rng.permutation(rows)[:number] for rows, number in zip(members, numbers, strict=True)]
    is_test = np.zeros(len(strata), bool)
    is_test[np.concatenate(drawn)] = True
    return is_test


def choose_stratified(strata: np.ndarray, number: int | None) -> np.ndarray | None:
    """Returns the indices of `number` examples, as `stratified_mask`; None where that is all."""
    return None if number is None or number >= len(strata) else np.flatnonzero(stratified_mask(strata, number))


def stratified_fraction_mask(columns: Sequence[np.ndarray], fraction: float) -> np.ndarray:
    """Returns the mask [n] of a fraction of the examples, stratified by all columns together.

    First each value of the first column has its part of the tests, then within it each stratum,
    rounded such that the values of the other columns (clients) have their parts, too: what rounding
    down has cost a client in one class counts in the next. Equal ones are rounded up in a random order.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number) or not 0 < fraction < 1:
        raise ValueError(f"test_fraction={fraction!r}: must lie between 0 and 1, such as 0.2.")
    rows = len(columns[0])
    if not 0 < (tests := round(fraction * rows)) < rows:
        raise ValueError(f"test_fraction={fraction} of {rows} examples leaves {rows - tests} to train and {tests} to test on.")
    columns = [*columns, np.zeros(rows, np.int32)]  # one at least beside the first
    cells, strata, counts = np.unique(np.stack(columns, 1), axis=0, return_inverse=True, return_counts=True)
    others, which = np.unique(cells[:, 1:], axis=0, return_inverse=True)
    which = which.reshape(-1)
    turn = make_generator(SPLIT_SEED, "strata").permutation(len(others))
    starts = np.flatnonzero(np.diff(cells[:, 0], prepend=cells[0, 0] - 1))  # cells are sorted by the first column
    numbers, owed = np.zeros(len(cells), np.int64), np.zeros(len(others))
    parts = np.split(np.arange(len(cells)), starts[1:])
    for part, number in zip(parts, apportion(tests, np.add.reduceat(counts, starts)).tolist(), strict=True):
        quota = number * counts[part] / counts[part].sum()
        floor = np.floor(quota).astype(np.int64)
        owner = which[part]
        owed[owner] += quota - floor
        first = np.lexsort((turn[owner], -owed[owner].round(9)))[: number - floor.sum()]
        floor[first] += 1
        owed[owner[first]] -= 1
        numbers[part] = floor
    return _draw_mask(strata.reshape(-1), counts, numbers)
