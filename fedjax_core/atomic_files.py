"""How anything gets onto the disk: beside its place, synced, and moved over it, so a reader finds the old file or the new one.

Nothing but regular files is ever replaced: links are followed, and what a device or a pipe gets is written into it. What is read
must be a regular file, for to read a pipe would wait for ever.
"""

import contextlib
import csv
import errno
import io
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core.option_types import printable

TEMPORARY = ".writing-"  # prefix of files on their way to their place


@contextlib.contextmanager
def explained(action: str, path: str | os.PathLike) -> Iterator[None]:
    """Turns an OSError into one line that names the path: `cannot <action> <path>: <reason>`, same errno.

    Args:
      action: what is being done, "write" or "read".
      path: the file or directory that it is done to.

    Raises:
      OSError: whichever was raised inside, reworded.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, f"cannot {action} {os.fspath(path)}: {reason}") from error


def sync_directory(path: str | os.PathLike) -> None:
    """Makes renames inside a directory last through a power cut, where the platform can."""
    if os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network drives cannot
                raise
        finally:
            os.close(handle)


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError if there is something at a path that is no regular file, such as a folder, a pipe or a device."""
    with contextlib.suppress(FileNotFoundError):
        _check_mode(os.stat(path).st_mode)


def _check_mode(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file (a pipe or a device)")


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a file to read its bytes.

    Raises:
      OSError: it is not there, or is no regular file, such as a folder, a pipe or a device.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))  # a pipe is not waited for
    try:
        _check_mode(os.fstat(handle).st_mode)
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb")


def open_text(path: str | os.PathLike) -> io.TextIOWrapper:
    """Opens a file to read UTF-8 text, with the ends of its lines as they are; raises as `open_regular`."""
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Returns what a file holds.

    Raises:
      OSError: one line that names the path; also of what is no regular file.
    """
    with explained("read", path), open_regular(path) as file:
        return file.read()


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file atomically: after a crash at any moment it holds its old content or all of the new.

    A link stays, and the file that it leads to is written. What is no regular file, such as a device or a pipe, is written into.

    Args:
      path: the file; its directory must exist.
      data: its content.

    Raises:
      OSError: one line that names the path; the old file is intact.
    """
    write_blocks(path, [data])


def write_blocks(path: str | os.PathLike, blocks: Iterable[bytes]) -> None:
    """`write_bytes` of one block after another, each made when it is wanted."""
    with explained("write", path):
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
    """Returns whether a path leads to something that must not be replaced: what is no regular file, or an open file of a process,
    such as /dev/stdout.

    Raises:
      OSError: links that lead in a circle.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) or os.path.abspath(path).startswith(("/dev/", "/proc/"))


def write_text(path: str | os.PathLike, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_csv(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Writes rows under the union of their keys; a cell that a row lacks is empty.

    Args:
      path: the file; its directory must exist.
      rows: one mapping a line.
      columns: which come first, in this order; the others follow as they appear.
    """
    rows = list(rows)
    columns = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    write_bytes(path, b"".join([csv_line(columns), *(csv_line([row.get(column, "") for column in columns]) for row in rows)]))


def csv_line(cells: Iterable[Any]) -> bytes:
    """Returns a line of a CSV file, in which texts are safe to open (`safe_cell`)."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow([safe_cell(cell) for cell in cells])
    return text.getvalue().encode()


def safe_cell(cell: Any) -> Any:
    """Returns a cell of a CSV file as no spreadsheet runs it and no terminal obeys it.

    Signs that do not print, such as line ends and terminal escapes, are written as Python does, and a text that a spreadsheet
    would take for a formula gets an apostrophe in front. Numbers stay, also such as "-0.3 ± 0.1 %".

    >>> safe_cell("=1+1"), safe_cell("-0.5"), safe_cell("two\\nlines"), safe_cell(-1)
    ("'=1+1", '-0.5', 'two\\\\nlines', -1)
    """
    if not isinstance(cell, str):
        return cell
    cell = printable(cell)
    return f"'{cell}" if cell.startswith(_FORMULAS) and not _NUMBERS.fullmatch(cell) else cell


_FORMULAS = ("=", "+", "-", "@")  # how a formula may begin
_NUMBERS = re.compile(r"[-+](?:[\d.,±()\[\]%\s+/-]|\d[eE][-+]?\d)*")  # which nobody runs
