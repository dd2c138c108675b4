"""Rounds compiled for four TPU chips that are not there: how often and how much they exchange, and how much memory they take.

A change that makes devices hold each other's clients, or lay arrays out anew between them, fails here. The numbers are those of
libtpu 0.0.52, bytes and memory with a fifth to spare. Networks have some hundred parameters, so that this compiles in seconds.
"""

import os

import pytest

from configs import fedavg, fedproto, scaffold
from fedjax_core.commands.plans import compile_pool, device_targets
from fedjax_core.experiment.mock_data import Counts

TARGETS = device_targets.parse_targets("v5e:2x2")
missing = device_targets.explain_unavailable(TARGETS)
wanted_here = bool(os.environ.get("FEDJAX_TEST_TPU_COMPILER"))  # CI sets it where it has installed the compiler: no skip there
pytestmark = pytest.mark.skipif(missing is not None and not wanted_here, reason=str(missing))
COLLECTIVES = {  # of one round: number and bytes on a device
    "fedavg": {"all-gather": (3, 960), "all-reduce": (2, 2464)},
    "scaffold": {"all-gather": (7, 20_800), "all-reduce": (2, 4936)},  # states of the round's clients, which all devices keep
    "fedproto": {"all-gather": (7, 20_480), "all-reduce": (2, 412)},
}
PEAK = {"fedavg": 3.24, "scaffold": 3.79, "fedproto": 3.38}  # MiB on a device, of which about 3 are the same for all


@pytest.mark.parametrize("made", [fedavg, scaffold, fedproto], ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_round_on_four_chips(made):
    assert missing is None, missing
    config = made.get_config("smoke")
    config.models, config.method.batch, config.data.clients, config.cohort.fraction = ("mlp(widths=(8,))",), 16, 16, 0.5
    job = compile_pool.Job(config.to_dict(), TARGETS[0], ("round",), Counts(), 300)
    found = compile_pool.compile_programs(job, None)["programs"]["round"]
    assert found["fits"], found
    name, wanted = config.method.name, COLLECTIVES[config.method.name]
    assert {one["kind"]: one["number"] for one in found["collectives"]} == {of: number for of, (number, _) in wanted.items()}
    for one in found["collectives"]:
        assert one["bytes"] <= 1.2 * wanted[one["kind"]][1], one
    assert found["peak"] <= 1.2 * PEAK[name] * 2**20


def test_a_round_on_a_pod_has_no_more_collectives():
    """2,048 chips, a client on each. This compiler cannot print such a program of a v5p, so it is read where it was written."""
    assert missing is None, missing
    config = fedavg.get_config("smoke")
    config.models, config.method.batch, config.data.partition = ("mlp(widths=(8,))",), 16, "iid"
    config.data.clients, config.cohort.size, config.plan.chunk = 4096, 2048, 1
    job = compile_pool.Job(
        config.to_dict(), device_targets.parse_targets("v5p:8x16x16")[0], ("round",), Counts(81_920, 1_000, (8, 8, 1), 10), 300
    )
    found = compile_pool.compile_programs(job, None)["programs"]["round"]
    assert found["fits"], found
    wanted = sum(number for number, _ in COLLECTIVES["fedavg"].values())  # some all-gathers become all-reduces there
    assert 2 <= sum(one["number"] for one in found["collectives"]) <= wanted, found["collectives"]
