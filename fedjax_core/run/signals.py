"""Signals that ask a run to stop, and a console that may be closed."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Calls a handler for SIGINT, SIGTERM and SIGHUP, in the main thread.

    SIGHUP stays ignored where it is, as under nohup.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {}
    for number in SIGNALS if is_main else ():
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


def raise_on_signal() -> contextlib.AbstractContextManager[None]:
    """Turns each of these signals into what Ctrl-C is, an exception: processes that were started
    end as well."""

    def interrupt(number: int, frame: object) -> None:
        del frame
        raise KeyboardInterrupt(signal.Signals(number).name)

    return handle_signals(interrupt)


class StopRequest:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request. A second one acts at once, except
    SIGHUP, which a closing terminal may send twice.

    Attributes:
      is_requested: whether a signal came.
    """

    def __init__(self):
        self.is_requested = False
        self._handling = handle_signals(self._ask)

    def __enter__(self) -> Self:
        self._handling.__enter__()
        return self

    def _ask(self, number: int, frame: object) -> None:
        del frame
        if self.is_requested and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        self.is_requested = True

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)


class _LenientStream:
    """A stream that drops its text when nobody can read it any more."""

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
def lenient_console() -> Iterator[None]:
    """Lets a run go on when its terminal is gone: a closed standard error drops its text."""
    before = sys.stderr
    sys.stderr = _LenientStream(before)
    try:
        yield
    finally:
        sys.stderr = before
