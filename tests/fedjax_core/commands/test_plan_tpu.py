"""Rounds compiled for four TPU chips that are not there: how often they exchange, and how much memory they take.

A change that makes devices hold each other's clients, or lay arrays out anew between them, fails here. The numbers are those of the
compiler, with a fifth to spare; they depend on its version a little. They are small: networks of some hundred parameters.
"""

import pytest

from configs import fedavg, fedproto, scaffold
from fedjax_core.commands.plans import elsewhere, targets
from fedjax_core.experiment.stand_in import Counts

TARGETS = targets.parse("v5e:2x2")
missing = targets.check(TARGETS)
pytestmark = pytest.mark.skipif(missing is not None, reason=str(missing))
COLLECTIVES = {  # of one round
    "fedavg": {"all-gather": 3, "all-reduce": 2},
    "scaffold": {"all-gather": 7, "all-reduce": 2},  # the states of the round's clients, which all devices keep
    "fedproto": {"all-gather": 7, "all-reduce": 2},
}
PEAK = {"fedavg": 5.0, "scaffold": 5.0, "fedproto": 5.0}  # MiB on a device


@pytest.mark.parametrize("made", [fedavg, scaffold, fedproto], ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_round_on_four_chips(made):
    config = made.get_config("smoke")
    config.models, config.method.batch, config.data.clients, config.cohort.fraction = ("mlp(widths=(8,))",), 16, 16, 0.5
    job = elsewhere.Job(config.to_dict(), TARGETS[0], ("round",), Counts(), 300)
    found = elsewhere.compiled(job, None)["programs"]["round"]
    assert found["fits"], found
    name = config.method.name
    assert {one["kind"]: one["number"] for one in found["collectives"]} == COLLECTIVES[name]
    assert found["peak"] <= PEAK[name] * 2**20
