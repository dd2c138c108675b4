"""How processes find each other, where jax does not say what it should."""

import jax
import pytest

from fedjax_core.commands import processes


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
        processes.join(None, None, None)
    assert said + processes.ADVICE in str(found.value)
    assert "\n" not in str(found.value)
    with pytest.raises(type(raised)):
        processes.join("localhost:1", 2, 0)  # which asks no cluster
