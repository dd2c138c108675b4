"""TensorBoard's files."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import explained


class Events:
    """TensorBoard's scalars, written in the caller's thread: tensorboardX's own writer waits for ever for a thread that a full
    disk has killed, and puts the machine's name into the file's. Imported when needed: it loads torch where there is one."""

    def __init__(self, directory: Path, from_round: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        self._path, self._event, self._scalar = directory, Event, scalar
        with explained("write", directory):
            directory.mkdir(exist_ok=True)
            number = len(list(directory.glob("events.out.tfevents.*")))
            self._file = RecordWriter(str(directory / f"events.out.tfevents.{time.time():.0f}.{number}"))
            self._write(file_version="brain.Event:2")
            if number:  # TensorBoard then forgets what earlier files say from this step on
                self._write(step=from_round + 1, session_log=SessionLog(status=SessionLog.START))
            self._file.flush()
        self._flushed = time.monotonic()

    def _write(self, **event: Any) -> None:
        self._file.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def add(self, record: Mapping[str, Any]) -> None:
        with explained("write", self._path):
            for name, value in record.items():
                if name != "round" and isinstance(value, (int, float)):
                    self._write(step=record["round"], summary=self._scalar(name, value))
            if time.monotonic() - self._flushed > 2:
                self._file.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        with explained("write", self._path):
            self._file.flush()
            self._file.close()
