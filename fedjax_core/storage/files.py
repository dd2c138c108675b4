"""How anything gets onto the disk: beside its place, synced, and moved over it, so a reader finds the old file or the new one."""

import contextlib
import csv
import errno
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file atomically: after a crash at any moment it holds its old content or all of the new.

    Args:
      path: the file; its directory must exist.
      data: its content.

    Raises:
      OSError: one line that names the path; the old file is intact.
    """
    write_blocks(path, [data])


def write_blocks(path: str | os.PathLike, blocks: Iterable[bytes]) -> None:
    """`write_bytes` of one block after another, each made when it is wanted."""
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{path.name}")
    with explained("write", path):
        try:
            with open(temporary, "wb") as file:
                file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


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
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
