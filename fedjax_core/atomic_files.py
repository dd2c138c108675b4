"""Atomic writes, guarded reads, reads from an offset, and checksums of files.

A file is written under a temporary name beside its target, synced and renamed, so a reader sees
either the old content or the new. Only regular files are replaced: links are followed, and bytes
for a device or a pipe are written into it. Reads accept regular files only, because reading a pipe
may block forever.
"""

import contextlib
import csv
import errno
import io
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_core.option_types import escape_unprintable

if TYPE_CHECKING:  # commands import this file before anything heavy
    import numpy as np

CALL_BYTES = 2**30  # of one system call, which transfers at most 2 GiB
TEMPORARY = ".writing-"  # prefix of files that are being written
_SEEKING = threading.Lock()  # where reading from an offset takes two calls


@contextlib.contextmanager
def reword_os_errors(action: str, path: str | os.PathLike) -> Iterator[None]:
    """Rewords an OSError raised inside as `cannot <action> <path>: <reason>`, with the same errno."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, f"cannot {action} {os.fspath(path)}: {reason}") from error


def sync_directory(path: str | os.PathLike) -> None:
    """Syncs a directory, so that renames in it survive a power cut."""
    if os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network drives
                raise
        finally:
            os.close(handle)


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError if a path exists and is not a regular file."""
    with contextlib.suppress(FileNotFoundError):
        _check_mode(os.stat(path).st_mode)


def _check_mode(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file (a pipe or a device)")


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a file for reading bytes; raises OSError if it is not regular."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # never block on a pipe
    handle = os.open(path, flags)
    try:
        _check_mode(os.fstat(handle).st_mode)
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb")


def open_text(path: str | os.PathLike) -> io.TextIOWrapper:
    """Opens a file for reading UTF-8 text, as `open_regular`, without translating line ends."""
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Returns the content of a regular file; raises OSError with one line that names the path."""
    with reword_os_errors("read", path), open_regular(path) as file:
        return file.read()


def read_at(handle: int, target: memoryview, offset: int) -> int:
    """Reads an open file from an offset until `target` is full or the file ends; returns the number of bytes read."""
    done = 0
    while done < len(target) and (number := _read_some(handle, target[done : done + CALL_BYTES], offset + done)):
        done += number
    return done


def _read_some(handle: int, target: memoryview, offset: int) -> int:
    """Reads bytes by one system call; returns their number, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [target], offset)
    with _SEEKING:  # Windows
        os.lseek(handle, offset, os.SEEK_SET)
        data = os.read(handle, len(target))
    target[: len(data)] = data
    return len(data)


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Writes all bytes into an open file from an offset."""
    done = 0
    while done < len(data):
        done += _write_some(handle, data[done : done + CALL_BYTES], offset + done)


def _write_some(handle: int, data: memoryview, offset: int) -> int:
    """Writes bytes by one system call; returns the number of bytes written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, offset)
    with _SEEKING:  # Windows
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file atomically: after a crash it holds either the old content or all of the new.

    Links are followed. A target that is not a regular file, such as a device or a pipe, is written
    into.

    Raises:
      OSError: the file cannot be written and is unchanged; one line that names the path.
    """
    write_blocks(path, [data])


def write_blocks(path: str | os.PathLike, blocks: Iterable[bytes | memoryview]) -> None:
    """Writes a file as `write_bytes` does, from blocks that are produced one at a time."""
    with reword_os_errors("write", path):
        if _is_written_into(path):
            with open(path, "wb") as file:
                file.writelines(blocks)
            return
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{target.name}")
        try:
            with open(temporary, "wb") as file:
                file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(target.parent)


def _is_written_into(path: str | os.PathLike) -> bool:
    """Returns whether a path must not be replaced: not regular, or open, such as /dev/stdout."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) or (os.name != "nt" and os.path.abspath(path).startswith(("/dev/", "/proc/")))


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes UTF-8 text atomically, as `write_bytes`."""
    write_bytes(path, text.encode())


def write_csv(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Writes a CSV file whose columns are the union of the rows' keys; missing cells are empty.

    Args:
      path: the file.
      rows: one mapping per line.
      columns: the first columns, in order; the others follow in order of appearance.
    """
    rows = list(rows)
    columns = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    lines = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    write_bytes(path, b"".join(map(encode_csv_line, lines)))


def encode_csv_line(cells: Iterable[Any]) -> bytes:
    """Returns one line of a CSV file, with every string made safe by `escape_cell`."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow([escape_cell(cell) for cell in cells])
    return text.getvalue().encode()


def escape_cell(cell: Any) -> Any:
    """Returns a CSV cell that no spreadsheet evaluates and no terminal interprets.

    Non-printing characters, such as line ends and terminal escapes, are escaped as in Python. A
    string that a spreadsheet would read as a formula gets a leading apostrophe. Numbers stay as
    they are, including "-0.3 ± 0.1 %".

    >>> escape_cell("=1+1"), escape_cell("-0.5"), escape_cell("two\\nlines"), escape_cell(-1)
    ("'=1+1", '-0.5', 'two\\\\nlines', -1)
    """
    if not isinstance(cell, str):
        return cell
    cell = escape_unprintable(cell)
    return f"'{cell}" if cell.startswith(_FORMULAS) and not _NUMBERS.fullmatch(cell) else cell


_FORMULAS = ("=", "+", "-", "@")  # first characters of a formula
_NUMBERS = re.compile(r"[-+](?:[\d.,±()\[\]%\s+/-]|\d[eE][-+]?\d)*")  # not formulas


def digest_bytes(data: bytes) -> str:
    """Returns the CRC-32 of bytes, such as "crc32:0a1b2c3d".

    CRC-32 detects every flipped bit and every burst of up to 32 bits, and misses other damage with
    probability 2^-32. It does not protect against deliberate changes.
    """
    return f"crc32:{zlib.crc32(data):08x}"


def digest_array(array: "np.ndarray") -> str:
    """Returns the CRC-32 of an array's dtype, shape and content."""
    header = f"{array.dtype.name}{list(array.shape)}".encode()
    return f"crc32:{zlib.crc32(array.ravel().view('u1').data, zlib.crc32(header)):08x}"
