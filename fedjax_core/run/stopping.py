"""What reaches a run from outside: signals that ask it to stop, and a console that may be gone."""

import contextlib
import signal
import sys
import threading
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stop:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request; a second one acts at once, but for SIGHUP's, which a closing
    terminal may send twice. Where SIGHUP is ignored, as under nohup, it stays so."""

    def __init__(self):
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            ignored = {s for s in SIGNALS if s not in (signal.SIGINT, signal.SIGTERM) and signal.getsignal(s) is signal.SIG_IGN}
            self._before = {s: signal.signal(s, self._ask) for s in SIGNALS if s not in ignored}
        return self

    def _ask(self, number, frame):
        del frame
        if self.asked and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_):
        for s, handler in self._before.items():
            signal.signal(s, handler)


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
