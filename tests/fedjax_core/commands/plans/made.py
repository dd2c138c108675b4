"""A config that is planned, and a compiler that takes no time."""

import functools
import json
import subprocess

import jax

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.commands.plans import capacity_plan, device_targets
from fedjax_core.engine.sharding.data_placement import DEVICE_SPECS
from fedjax_core.experiment import mock_data


def config(rounds=2, **method):
    made = fedavg.get_config("smoke")
    made.method.update(method)
    made.plan.devices, made.models, made.evaluation.scopes = 2, ("mlp(widths=(4,))",), ("global", "own")
    return made


@functools.cache
def sims(place="device"):
    """(as it runs, as it is planned)."""
    of = config()
    of.plan.data = place
    kind = mock_data.mock_pipeline(experiment.resolve(of))
    return experiment.build(of), experiment.build(of, shapes_only=True, pipeline=kind, devices=jax.devices()[:4])


ABOUT = {
    "device": "TPU v5 lite",
    "devices": 4,
    "available": 4,
    "limit": 1000,
    "plan": {"chunk": 4, "devices": 4, "model": 1},
    "data on": "device",
    "population": 40,
    "cohort": 32,
    "places": 32,
    "processes": 1,
    "hold": "device",
    "divided": False,
    "num_runs": 1,
    "alone": "",
    "rows": {"all": 400, "mean": 10.0, "most": 20},
    "chip": DEVICE_SPECS["TPU v5 lite"]._asdict(),
    "bytes": {
        "rows of data": 300.0,
        "frozen and public arrays": 0.0,
        "client states": 200.0,
        "server state": 10.0,
        "earlier broadcasts": 0.0,
    },
}


class Compiler:
    """In place of other processes: a round takes 150 bytes for each client at once; what is named ends its process."""

    def __init__(self, *, bad=(), status=-6):
        self.calls, self.bad, self.status = [], bad, status

    def __call__(self, command, *, input, **options):  # noqa: A002
        asked = json.loads(input)
        self.calls.append((asked["config"]["plan"]["chunk"], asked["parts"], list(asked["done"])))
        there = [name for part in asked["parts"] for name in ((part,) if part != "evaluation" else ("evaluation: server",))]
        found, chunk = {"about": ABOUT, "names": there, "programs": asked["done"]}, asked["config"]["plan"]["chunk"] or 4
        for name in (name for name in there if name not in asked["done"]):
            if name in self.bad:
                self._write(asked, found)
                return subprocess.CompletedProcess(command, self.status, "", "noise\nCheck failed: no\n")
            need = 150 * chunk if name == "round" else 10
            sizes = {"arguments": 10, "temporary": need - 10, "peak": need, "flops": 197e12, "traffic": 2 * 819e9, "seconds": 1.0}
            found["programs"][name] = {"fits": True, "collectives": [{"kind": "all-reduce", "number": 2, "bytes": 8}], **sizes}
        self._write(asked, found)
        return subprocess.CompletedProcess(command, 0, "", "")

    def _write(self, asked, found):
        with open(asked["out"], "w") as file:
            json.dump(found, file)


def made(monkeypatch, tmp_path, compiler, **options):
    monkeypatch.setattr(subprocess, "run", compiler)
    return capacity_plan.make_plan(config().to_dict(), device_targets.parse_targets("v5e:2x2"), folder=tmp_path / "kept", **options)
