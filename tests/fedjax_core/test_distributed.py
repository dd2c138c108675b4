"""How processes find each other, where jax does not say what it should."""

import jax
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
    assert distributed.explain_lost_process(ValueError(said)) == ""
