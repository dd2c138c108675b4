"""How processes find each other, where jax does not say what it should."""

import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from fedjax_core import distributed


class ConfigException(Exception):
    """As the package `kubernetes` raises it."""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("SLURM_JOB_ID"), "--distributed found no Slurm, Open MPI, Cloud TPU or Kubernetes that started this process; "),
        (ConfigException("Service host/port\nis not set."), "process: ConfigException: Service host/port is not set.; "),
        (AssertionError(), "--distributed cannot read what the cluster says of this process: AssertionError: ; "),
        (ImportError("no kubernetes"), "ImportError: no kubernetes; "),
    ],
)
def test_what_a_cluster_does_not_say_is_one_line(monkeypatch, raised, said):
    def initialize(coordinator, *rest, **more):
        raise raised

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match="give --coordinator") as found:
        distributed.join_processes(None, None, None)
    assert said + distributed.ADVICE in str(found.value)
    assert "\n" not in str(found.value)
    with pytest.raises(type(raised)):
        distributed.join_processes("localhost:1", 2, 0)  # which asks no cluster


@pytest.mark.parametrize(
    "address", ["", "localhost", "8476", ":8476", "host0:", "host0:0", "host0:99999", "host0:port", "http://host0:8476", "::1:8476"]
)
def test_an_address_without_host_and_port_is_refused(address):
    """Refuses an empty one, with which each process would run alone, and others, with which jax waits or ends by a signal."""
    with pytest.raises(ValueError, match=rf"--coordinator={address} must be HOST:PORT, with a port in \[1, 65535\]"):
        distributed.check_process_flags(False, address, 2, 0)


@pytest.mark.parametrize("address", ["host0:8476", "10.0.0.1:65535", "[::1]:8476", "[fe80::1%eth0]:1", "a-b_c.example:8476"])
def test_an_address_with_host_and_port_is_taken(address):
    distributed.check_process_flags(False, address, 2, 1)


@pytest.mark.parametrize("ends_by", ["the wait", "Ctrl-C"])
def test_a_process_that_stays_alone_ends_with_a_line(ends_by):
    """Jax would end it by a signal after minutes, and keep Ctrl-C until then."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # as in a terminal
        "from fedjax_core import distributed; distributed.JOIN_TIMEOUT, distributed.JOIN_REPORT = "
        f"{(2.0, 1.0) if ends_by == 'the wait' else (60.0, 0.5)}; distributed.join_processes('127.0.0.1:1', 2, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=-1, text=True) as process:
        assert process.stderr is not None
        while "waiting until the 2 processes have found each other at 127.0.0.1:1, up to" not in (
            line := process.stderr.readline()
        ):
            assert line
        if ends_by == "Ctrl-C":
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == -signal.SIGINT
        else:
            said = "error: the 2 processes did not find each other at 127.0.0.1:1 in 2 s: one has not started, or process 0 has"
            rest = process.stderr.read()
            assert said in rest
            assert "or two have the same --process or other --processes (this one: --process=1, --processes=2)" in rest
            assert process.wait(10) == 1


def test_another_number_of_processes_than_that_of_process_0_is_refused(monkeypatch):
    """Names both numbers: jax goes on with that of process 0."""
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **more: None)
    monkeypatch.setattr(distributed, "_process", None)
    monkeypatch.setattr(distributed, "allgather", lambda numbers: np.array([[2], numbers]))
    with pytest.raises(ValueError, match="--processes=3 of process 1, --processes=2 of process 0: all processes need the same"):
        distributed.join_processes("localhost:1", 3, 1)
    distributed.join_processes("localhost:1", 2, 1)


def test_devices_of_a_process_that_are_no_numbers_are_refused(monkeypatch):
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "0,a")
    with pytest.raises(ValueError, match="the variable JAX_LOCAL_DEVICE_IDS=0,a must be numbers of devices with commas between"):
        distributed.join_processes("localhost:1", 2, 0)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("UNKNOWN: Gloo all-reduce failed: [gloo/transport/tcp/pair.cc:547] Connection closed by peer\nand more", True),
        ("UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)", True),
        ("INTERNAL: a program that is wrong", False),
    ],
)
def test_a_process_that_is_lost_is_said_in_words(monkeypatch, said, lost):
    error = jax.errors.JaxRuntimeError(said)
    assert distributed.explain_lost_process(error) == ""  # of one process nobody is lost
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    line = distributed.explain_lost_process(error)
    assert line.startswith("another process of this run has ended, or is out of reach; ") == lost
    assert "\n" not in line
    assert bool(distributed.explain_lost_process(ValueError(said))) == lost  # as the first call of a program raises it
    assert distributed.explain_lost_process(ValueError("gloo must be on or off")) == ""
    assert distributed.explain_lost_process(OSError(said)) == ""
