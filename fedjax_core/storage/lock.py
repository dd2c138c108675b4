"""One process at a time in a directory."""

import contextlib
import errno
import logging
import os
import sys
from pathlib import Path

_log = logging.getLogger("fedjax_core")


class Lock:
    """A lock on a file that the system lets go of when its process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (open until close)
        try:
            self._take(path.parent)
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def _take(self, directory: Path) -> None:
        try:
            if sys.platform == "win32":
                import msvcrt

                self._file.seek(0)
                msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
                _log.warning("the file system of %s has no locks; start no second run there", directory)
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise
            holder = ""
            with contextlib.suppress(OSError):
                self._file.seek(0)
                holder = self._file.read().strip()
            if holder == str(os.getpid()):  # to wait for it would not end
                raise OSError(errno.EDEADLK, "this process already runs there; close that run first") from None
            reason = f"another process runs there (pid {holder or 'unknown'}); wait for it, or take another directory"
            raise BlockingIOError(errno.EWOULDBLOCK, reason) from None

    def close(self) -> None:
        self._file.close()
