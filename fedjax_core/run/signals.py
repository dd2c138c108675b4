"""What reaches a run from outside: signals that ask it to stop, and a console that may be gone."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def told_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, in the main thread, SIGINT, SIGTERM and SIGHUP come to a handler. Where SIGHUP is ignored, as under nohup, it stays
    so."""
    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    ignored = {s for s in mine if s not in (signal.SIGINT, signal.SIGTERM) and signal.getsignal(s) is signal.SIG_IGN}
    before = {s: signal.signal(s, handler) for s in mine if s not in ignored}
    try:
        yield
    finally:
        for s, earlier in before.items():
            signal.signal(s, signal.SIG_DFL if earlier is None else earlier)


def interrupted() -> contextlib.AbstractContextManager[None]:
    """Inside, each of these signals is what Ctrl-C is: an exception, so that processes that were started end too."""

    def leave(number: int, frame: object) -> None:
        del frame
        raise KeyboardInterrupt(signal.Signals(number).name)

    return told_to(leave)


class Stop:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request; a second one acts at once, but for SIGHUP's, which a closing
    terminal may send twice. Where SIGHUP is ignored, as under nohup, it stays so."""

    def __init__(self):
        self.asked = False
        self._told = told_to(self._ask)

    def __enter__(self):
        self._told.__enter__()
        return self

    def _ask(self, number, frame):
        del frame
        if self.asked and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_):
        self._told.__exit__(None, None, None)


class _Lenient:
    """A stream that goes silent when nobody can read it any more."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return self._stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lenient_console():
    """Inside, a closed standard error loses what is said, and ends nothing: a run goes on when its terminal is gone."""
    before = sys.stderr
    sys.stderr = _Lenient(before)
    try:
        yield
    finally:
        sys.stderr = before
