"""Signals, and a console that is gone."""

import os
import signal
import sys

import pytest

from fedjax_core.reporting.console import say
from fedjax_core.run.signals import SIGNALS, StopRequest, lenient_console, raise_on_signal


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_request(number):
    outside = signal.signal(number, signal.default_int_handler)  # the tests themselves may run under nohup
    try:
        with StopRequest() as stop:
            assert not stop.is_requested
            os.kill(os.getpid(), number)
            assert stop.is_requested
            if number == getattr(signal, "SIGHUP", None):
                os.kill(os.getpid(), number)  # a closing terminal may send two
            else:
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, outside)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this platform has no SIGHUP")
def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_what_ctrl_c_is(number):
    outside = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name), raise_on_signal():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, outside)


class Gone:
    """A terminal that was closed."""

    encoding = "utf-8"

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        raise ValueError("I/O operation on closed file")

    isatty = flush


@pytest.mark.parametrize("stream", [Gone(), None], ids=["closed", "never there"])
def test_a_closed_console_ends_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with lenient_console():
        sys.stderr.write("nobody reads this")
        sys.stderr.flush()
        terminal = sys.stderr.isatty()
        say("nor this")
    assert sys.stderr is stream
    monkeypatch.undo()
    assert terminal is False
