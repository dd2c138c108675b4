"""Plans: what is counted, what is lowered, how chunks are found, and what is said; without a TPU's compiler."""

import functools
import importlib.metadata
import io
import json
import os
import signal
import subprocess
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import topologies
from jax.sharding import PartitionSpec

from configs import fedavg, fedopt_femnist, fedpft
from configs import fedoa as fedoa_config
from fedjax_core import experiment, nn
from fedjax_core.algorithm import ClientData, Examples
from fedjax_core.commands import plan
from fedjax_core.commands.plans import advice, chunks, compiling, elsewhere, flops, hlo, loops, planned, targets, written
from fedjax_core.engine import chips, lowering, parallel
from fedjax_core.engine.lowering import PARTS
from fedjax_core.experiment import stand_in
from fedjax_core.experiment.stand_in import Counts
from fedjax_core.learning import training
from fedjax_core.nn.conv import compiled_for, describe
from fedjax_core.storage.json_files import plain

ROWS = loops.Clients(np.array([10, 10]))


def trained(model, shape, classes):
    """The jaxpr of two epochs over ten rows, in batches of four."""
    loss = training.cross_entropy(model)
    fit = training.fit(loss, optax.sgd(0.1), epochs=2, batch=4)
    arrays = Examples(jnp.zeros((20, *shape), jnp.float32), jnp.zeros(20, jnp.int32))

    def local(key, size):
        return fit(model.init(key), ClientData(arrays, jnp.arange(10), size), key).net

    return jax.make_jaxpr(local)(jax.random.key(0), jnp.int32(10))


def test_operations_of_an_mlp_are_those_counted_by_hand():
    jaxpr = trained(nn.build("mlp", 3, (8,), widths=(5,)), (8,), 3)
    forward, backward = 2 * 4 * (8 * 5 + 5 * 3), 2 * 4 * (8 * 5 + 2 * 5 * 3)  # no gradient for the inputs
    assert flops.count(jaxpr, ROWS.trips) == 2 * 3 * (forward + backward)
    assert flops.count(jaxpr, lambda name: None) == 2 * (forward + backward)  # as a compiler counts: the steps once


def test_operations_of_convolutions_are_those_counted_by_hand():
    def value(x, kernel):
        return jnp.sum(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))

    jaxpr = jax.make_jaxpr(jax.grad(value, (0, 1)))(jnp.zeros((4, 8, 8, 3)), jnp.zeros((3, 3, 3, 16)))
    each = 2 * 4 * (4 * 4) * 9 * 3 * 16  # forward, and each gradient: zeros between an image gradient's entries do not count
    assert flops.count(jaxpr, ROWS.trips) == 3 * each


TEXT = """HloModule jit_f, is_scheduled=true

%region_0.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%taken (param_0: f32[1000,8], param_1: s32[]) -> f32[1,8] {
  %param_0 = f32[1000,8]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  ROOT %slice.1 = f32[1,8]{1,0} dynamic-slice(%param_0, %param_1), dynamic_slice_sizes={1,8}
}

%steps (p: (s32[], f32[64], f32[1000,8])) -> (s32[], f32[64], f32[1000,8]) {
  %p = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %rows = f32[1000,8]{1,0} get-tuple-element(%p), index=2
  %row = f32[1,8]{1,0:S(1)} fusion(%rows, %i), kind=kLoop, calls=%taken
  %sum = f32[64]{0} all-reduce(%x), replica_groups={}, to_apply=%region_0.1
  ROOT %tuple.1 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) tuple(%i, %sum, %rows)
}

%more (q: (s32[], f32[64], f32[1000,8])) -> pred[] {
  %q = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] get-tuple-element(%q), index=0
  ROOT %lt = pred[] compare(%j, %limit), direction=LT
}

%epochs (e: (s32[], f32[64], f32[1000,8])) -> (s32[], f32[64], f32[1000,8]) {
  %e = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  ROOT %while.2 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) while(%e), condition=%more, body=%steps, metadata={op_name="LOOP/while"}
}

%three (t: (s32[], f32[64], f32[1000,8])) -> pred[] {
  %t = (s32[], f32[64]{0}, f32[1000,8]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%t), index=0
  %constant.3 = s32[] constant(3)
  ROOT %lt.1 = pred[] compare(%k, %constant.3), direction=LT
}

ENTRY %main (arg: f32[64], data: f32[1000,8]) -> f32[128] {
  %arg = f32[64]{0} parameter(0)
  %data = f32[1000,8]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64]{0}, f32[1000,8]{1,0}) tuple(%zero, %arg, %data)
  %while.1 = (s32[], f32[64]{0}, f32[1000,8]{1,0}) while(%start), condition=%three, body=%epochs, metadata={op_name="jit(f)/while"}
  %out = f32[64]{0} get-tuple-element(%while.1), index=1
  %gather.1 = (f32[64]{0}, f32[128]{0}) all-gather-start(%out), dimensions={0}
  ROOT %gather.2 = f32[128]{0} all-gather-done(%gather.1)
}
"""


def test_a_compiled_text_is_read_with_its_loops():
    program = hlo.Program(TEXT.replace("LOOP", "jit(f)/while/body/batches_of_4"))
    steps = 3 * 3  # the constant of a condition, and ten rows in batches of four
    assert program.collectives(ROWS.trips) == [
        hlo.Collective("all-gather", 1, 128 * 4),
        hlo.Collective("all-reduce", steps, steps * 64 * 4),
    ]
    of_a_step = 8 * 4 + 4 + 2 * 64 * 4  # a row, not all of them; its place; the sum in and out. The row's copy lies near the cores
    assert program.traffic(ROWS.trips) == steps * of_a_step + (64 + 128) * 4


def test_an_exchange_that_is_spread_over_a_loop_counts_once():
    """As the TPU's compiler writes it: parts with one `chain_id`, before, in and after the loop."""
    part = '%part = f32[64]{0} all-gather(%x), frontend_attributes={chain_id="0"}'
    text = TEXT.replace("LOOP", "batches_of_4").replace("  %row = ", f"  {part}\n  %row = ")
    text = text.replace("  %zero = ", f"  {part.replace('%x', '%arg')}\n  %zero = ")
    found = {one.kind: one for one in hlo.Program(text).collectives(ROWS.trips)}
    assert found["all-gather"] == hlo.Collective("all-gather", 2, 64 * 4 + 128 * 4)


def test_a_sum_over_devices_is_found_in_a_real_program():
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def scanned(x):
        return jax.lax.scan(lambda total, _: (jax.lax.psum(total + x, "clients"), None), x, length=5)[0]

    spread = PartitionSpec("clients")
    f = jax.shard_map(scanned, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)
    compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((2, 16), jnp.float32)).compile()
    assert hlo.Program(compiled.as_text() or "").collectives(ROWS.trips) == [hlo.Collective("all-reduce", 5, 5 * 64)]


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 15, 31, 32])
def test_the_largest_chunk_is_found(limit):
    seen = []

    def fits(chunk):
        seen.append(chunk)
        return chunk <= limit

    found = chunks.largest(fits, {32: limit >= 32}, 32, 10)
    assert (found.chunk, found.exact, found.tried) == (limit, True, len(seen))
    assert len(set(seen)) == len(seen) <= 8
    assert chunks.largest(fits, {4: limit >= 4}, 32, 10).chunk == limit


def test_a_search_for_a_chunk_ends():
    assert chunks.largest(lambda chunk: None, {32: False}, 32, 5) == chunks.Largest(0, 32, 1)
    stopped = chunks.largest(lambda chunk: chunk <= 11, {32: False}, 32, 2)
    assert (stopped.chunk, stopped.below, stopped.exact) == (6, 32, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e", "CHIP:SIZE"),
        ("v9:2x2", "a chip of v2"),
        ("v5e:32x16", "no side of a slice of v5e is longer than 16"),
        (",", "no target"),
    ],
)
def test_what_is_no_target(text, says):
    with pytest.raises(ValueError, match=says):
        targets.parse(text)


def test_a_chip_of_v4_is_one_device(monkeypatch):
    asked = []
    monkeypatch.setattr(topologies, "get_topology_desc", lambda **given: asked.append(given) or SimpleNamespace(devices=()))
    for target in targets.parse("v4:2x2x1,v5p:2x2x1"):
        targets.devices(target)
    assert [one.get("chip_config_name") for one in asked] == ["megacore", None]


def test_targets_and_their_compiler(monkeypatch):
    found = targets.parse("v5e:16x16, 2*v6e:4x4,here")
    assert found == [targets.Target("v5e:16x16", 1, "v5e:16x16"), targets.Target("2*v6e:4x4", 2, "v6e:4x4"), targets.Target("here")]
    versions = {"libtpu": "0.0.12"}

    def version(package):
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "libtpu 0.0.12 is not known to fit jax" in str(targets.check(found))
    versions.clear()
    assert targets.check(found) == f"{targets.MISSING}: pip install 'fedjax-core[plan]'"
    with monkeypatch.context() as newer:  # another jax than the extra's compiler is for
        newer.setattr(targets, "TRIED", {("0.9", "0.0.40")})
        newer.setattr(importlib.metadata, "requires", lambda package: ['libtpu==0.0.60.*; extra == "tpu"'])
        assert str(targets.check(found)).endswith("pip install 'libtpu==0.0.60.*'")
    assert targets.check(found[2:]) is None


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
    kind = stand_in.kind(experiment.resolve(of))
    return experiment.build(of), experiment.build(of, shapes_only=True, kind=kind, devices=jax.devices()[:4])


def test_what_is_lowered_is_what_runs():
    real, planned = sims()
    programs = lowering.programs(planned)
    assert list(programs) == ["start", "round", "evaluation: server", "evaluation: clients"]
    state = real.init(0)
    assert programs["round"]().lower().as_text() == real._many.lower(real.held, state, real.put(np.int32(1))).as_text()
    server = real._global.lower(real.held, state.server, state.round).as_text()
    assert programs["evaluation: server"]().lower().as_text() == server


def test_streamed_rows_have_the_room_that_a_run_gives_them():
    real, planned = sims("host")
    held = real.supply.of_round(real.held, real.init(0).key, 0, False)
    sizes = np.asarray(real._held_on_host.size)
    supply: Any = planned.supply
    whole = supply.shapes(("index",))
    assert whole["index"].most == held.index.most
    assert whole["train"].x.shape[1:] == held.train.x.shape[1:]
    assert sizes[: planned.cohort].sum() <= len(whole["train"].x) <= 2 + 2 * np.sort(sizes)[-planned.cohort :].sum()
    assert whole["train"].x.sharding.shard_shape(whole["train"].x.shape)[0] == len(whole["train"].x) / 2  # each device its clients'
    real.close()


def test_rows_that_attackers_write_anew_and_validation_rows_are_counted():
    of = config()
    of.adversary.attack, of.adversary.fraction, of.data.validation = "label_flip", 0.25, 0.2
    real, planned = experiment.build(of), experiment.build(of, shapes_only=True)
    assert planned.data.partition_hash == real.data.partition_hash
    assert planned.data.train.x.shape == real.data.train.x.shape
    rows, clean = (compiling.parts(sim)["rows of data"] for sim in (planned, sims()[0]))
    assert rows == compiling.parts(real)["rows of data"] > 1.1 * clean
    programs = lowering.programs(planned, ("evaluation",))
    state = real.init(0)
    validation = real._validation.lower(real.held, state.server, state.round).as_text()
    assert programs["evaluation: server, validation rows"]().lower().as_text() == validation
    real.release()


def test_lanes_are_planned_together():
    _, sim = sims()
    one, three = compiling.about(sim), compiling.about(sim, 3)
    assert (one["lanes"], three["lanes"]) == (1, 3)
    assert three["bytes"]["server state"] == 3 * one["bytes"]["server state"]
    assert three["bytes"]["rows of data"] == one["bytes"]["rows of data"]
    alone, together = (compiling.programs(sim, PARTS, lanes) for lanes in (1, 3))
    assert list(alone) == list(together)
    shapes = [sorted(leaf.shape for leaf in jax.tree.leaves(of["round"]().lower().args_info)) for of in (alone, together)]
    state = lowering.between_rounds(sim)[1]
    assert len(shapes[1]) - len(shapes[0]) == 2 * len(jax.tree.leaves(state))
    program = {"peak": 100}
    beside = [planned._judged(program, name, ABOUT | {"lanes": 3})["beside"] for name in ("round", "evaluation: server")]
    assert beside == [210, 140]  # a copy of all states; those of two lanes
    assert "plan.lanes=1 needs half" in " ".join(advice.advice(config().to_dict(), ABOUT | {"lanes": 3}, 0))
    target: dict[str, Any] = {
        "target": "here",
        "about": ABOUT | {"lanes": 3},
        "programs": {},
        "chunk": None,
        "round": None,
        "advice": [],
    }
    assert "; 3 lanes" in written.text({"targets": [target]})
    streamed = sims("host")[1]
    about = compiling.about(streamed, 3)
    assert about["lanes"] == 1
    assert about["bytes"] == compiling.about(streamed)["bytes"]
    target["about"] = ABOUT | {"alone": about["alone"]}
    assert "Runs go one after the other, not in lanes: rows of data are on the host." in written.text({"targets": [target]})


def test_networks_of_another_backend_take_its_form_of_convolutions():
    assert describe()["alone"] == "canonical"
    with compiled_for("tpu"):
        assert describe() == describe(backend="tpu")
    assert describe()["backend"] == "cpu"


def test_published_sets_have_their_size_and_others_are_given_one():
    of = fedpft.get_config("paper")
    data = stand_in.kind(experiment.resolve(of)).federated(experiment.resolve(of))
    assert (len(data.train.y), data.train.x.shape[1:], data.classes, data.clients) == (50_000, (32, 32, 3), 10, 40)
    assert {len(rows) for rows in data.train_index} == {500}
    assert data.train.x.strides[0] == 0  # no memory
    of.data.source = "npz(path='mine.npz')"
    asked = experiment.resolve(of)
    with pytest.raises(ValueError, match=r"the files are not read.*--classes.*--rows is missing"):
        stand_in.kind(asked).federated(asked)
    given = stand_in.kind(asked, Counts(rows=30_000, shape=(16, 16, 3), classes=5)).federated(asked)
    assert (len(given.train.y), len(given.test.y), given.train.x.shape[1:], given.classes) == (30_000, 6_000, (16, 16, 3), 5)
    users = experiment.resolve(fedopt_femnist.get_config("paper"))
    assert stand_in.kind(users).federated(users).clients == users.data.clients


def test_a_language_model_is_planned_without_its_folder():
    of = fedoa_config.get_config("paper")
    of.plan.devices, of.method.batch = 1, 4
    sim = experiment.build(of, shapes_only=True, kind=stand_in.kind(experiment.resolve(of)))
    assert sum(leaf.size for leaf in jax.tree.leaves(sim.groups[0].task.frozen)) == 6_738_415_616
    assert sim.data.train.x["tokens"].shape == (6000, 512)
    of.models = ("pretrained(folder='mine', limit=512)",)
    with pytest.raises(OSError, match=r"mine/config\.json"):
        stand_in.kind(experiment.resolve(of)).federated(experiment.resolve(of))


ABOUT = {
    "device": "TPU v5 lite",
    "devices": 4,
    "limit": 1000,
    "plan": {"chunk": 4, "devices": 4},
    "data on": "device",
    "population": 40,
    "cohort": 32,
    "places": 32,
    "processes": 1,
    "hold": "device",
    "divided": False,
    "lanes": 1,
    "alone": "",
    "rows": {"all": 400, "mean": 10.0, "most": 20},
    "chip": chips.CHIPS["TPU v5 lite"]._asdict(),
    "bytes": {"rows of data": 300.0, "frozen and public arrays": 0.0, "client states": 200.0, "server state": 10.0},
}


class Compiler:
    """In place of other processes: a round takes 150 bytes for each client at once; what is named ends its process."""

    def __init__(self, *, bad=(), status=-6):
        self.calls, self.bad, self.status = [], bad, status

    def __call__(self, command, *, input, **options):  # noqa: A002
        asked = json.loads(input)
        self.calls.append((asked["config"]["plan"]["chunk"], asked["parts"], list(asked["done"])))
        there = [name for part in asked["parts"] for name in ((part,) if part != "evaluation" else ("evaluation: server",))]
        found, chunk = {"about": ABOUT, "there": there, "programs": asked["done"]}, asked["config"]["plan"]["chunk"] or 4
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
    return planned.planned(config().to_dict(), targets.parse("v5e:2x2"), folder=tmp_path / "kept", **options)


def test_a_plan_finds_the_chunk_and_is_kept(monkeypatch, tmp_path):
    compiler = Compiler()
    plan = made(monkeypatch, tmp_path, compiler)
    (one,) = plan["targets"]
    assert one["programs"]["round"]["fits"]  # 600 and a copy of 210 bytes of states, of 1000
    assert one["chunk"] == {"chunk": 5, "below": 6, "tried": 3, "exact": True}
    assert one["round"]["seconds"] == pytest.approx(2.0)  # of one second's operations and two seconds' bytes
    assert planned.fits(plan)
    assert one["advice"] == []
    assert "at least 2 s" in written.text(plan)
    assert "2 all-reduce" in written.text(plan)
    calls = len(compiler.calls)
    assert made(monkeypatch, tmp_path, compiler) == plan
    assert len(compiler.calls) == calls  # nothing was compiled
    made(monkeypatch, tmp_path, compiler, fresh=True)
    assert len(compiler.calls) == 2 * calls


def test_what_does_not_fit_says_what_to_change(monkeypatch, tmp_path):
    monkeypatch.setitem(ABOUT, "limit", 500)
    plan = made(monkeypatch, tmp_path, Compiler(), tries=8)
    (one,) = plan["targets"]
    assert one["programs"]["round"]["short"] == 600 + 210 - 500
    assert not planned.fits(plan)
    assert [sentence.split(" ")[0] for sentence in one["advice"]] == ["plan.chunk=1", "plan.data=host", "plan.hold=host"]
    assert "short" in written.text(plan)
    none = advice.advice(config(batch=8).to_dict(), ABOUT, 0)
    assert any("method.batch=8" in sentence for sentence in none)


def test_a_compiler_that_ends_its_process_spoils_one_program_alone(monkeypatch, tmp_path):
    compiler = Compiler(bad=("round",))
    plan = made(monkeypatch, tmp_path, compiler, tries=0)
    programs = plan["targets"][0]["programs"]
    assert {name: one["fits"] for name, one in programs.items()} == {"start": True, "round": None, "evaluation: server": True}
    assert programs["round"]["says"] == "the compiler ended its process (-6): Check failed: no"
    assert [without for *_, without in compiler.calls] == [[], ["start", "round"]]
    assert not planned.fits(plan)
    assert "Check failed" in written.text(plan)


def test_more_time_is_used(monkeypatch, tmp_path):
    late = Compiler(bad=("round",), status=-14)
    (one,) = made(monkeypatch, tmp_path, late, tries=0, seconds=5)["targets"]
    assert one["programs"]["round"]["says"] == "not compiled in 5 s (--limit)"
    assert planned.fits(made(monkeypatch, tmp_path, Compiler(), tries=0, seconds=50))


@pytest.mark.parametrize(("found", "says"), [({"programs": {}, "error": "no such network"}, "no such network"), (None, "no: why")])
def test_what_cannot_be_built_is_said_and_not_kept(monkeypatch, tmp_path, found, says):
    def refuse(command, *, input, **options):  # noqa: A002
        if found is not None:
            with open(json.loads(input)["out"], "w") as file:
                json.dump(found, file)
        return subprocess.CompletedProcess(command, 1, "", "no: why\n")

    with pytest.raises(ValueError, match=says):
        made(monkeypatch, tmp_path, refuse)
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("finished", [0, 1])
def test_a_process_that_takes_too_long_with_all_its_programs(monkeypatch, tmp_path, finished):
    calls = []

    def late(command, *, input, timeout, **options):  # noqa: A002
        asked = json.loads(input)
        calls.append(list(asked["done"]))
        if len(calls) == 2:
            return Compiler()(command, input=input)
        of_start = {"start": {"fits": True, "peak": 10, "collectives": []}} if finished else {}
        with open(asked["out"], "w") as file:
            json.dump({"about": ABOUT, "there": ["start", "round"], "programs": of_start}, file)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", late)
    job = elsewhere.Job(config().to_dict(), targets.parse("v5e:2x2")[0], ("start", "round"), Counts(), 5)
    programs = elsewhere.compiled(job, tmp_path)["programs"]
    assert calls == [[], ["start"]]
    assert programs["start"].get("says", "").startswith("" if finished else "its process did not end in 220 s")
    assert programs["start"]["fits"] is (True if finished else None)
    assert programs["round"]["fits"]  # it is not blamed


def test_what_was_compiled_before_an_error_stays(monkeypatch, tmp_path):
    compiler = Compiler(bad=("round",))

    def breaks(command, *, input, **options):  # noqa: A002
        asked = json.loads(input)
        if asked["done"]:
            with open(asked["out"], "w") as file:
                json.dump({"programs": asked["done"], "error": "no such file"}, file)
            return subprocess.CompletedProcess(command, 0, "", "")
        return compiler(command, input=input)

    monkeypatch.setattr(subprocess, "run", breaks)
    job = elsewhere.Job(config().to_dict(), targets.parse("v5e:2x2")[0], PARTS, Counts(), 5)
    programs = elsewhere.compiled(job, tmp_path)["programs"]
    assert programs["start"]["fits"]
    assert programs["evaluation: server"] == {"fits": None, "says": "no such file", "limit_s": 5}


def test_an_error_of_one_program_leaves_the_others(monkeypatch, tmp_path):
    out = tmp_path / "found.json"
    asked = {"config": config().to_dict(), "counts": Counts()._asdict(), "target": ["here", 1, ""], "parts": ["start", "round"]}
    asked |= {"done": {}, "seconds": 60, "out": str(out), "cores": False}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(plain(asked))))

    def analysed(traced, sim, part):
        if part == 1.0:  # the start: of the round's clients some drop out
            return {"fits": True}
        raise ValueError("this program\nis bad")

    monkeypatch.setattr(compiling, "analysed", analysed)
    sim: Any = SimpleNamespace(cohort=8, places=16, dropout=0.5)
    monkeypatch.setattr(compiling, "simulation", lambda *_: sim)
    monkeypatch.setattr(compiling, "about", lambda sim, lanes: {"lanes": lanes})
    monkeypatch.setattr(lowering, "programs", lambda sim, parts: dict.fromkeys(parts, lambda: None))
    compiling.main()
    found = json.loads(out.read_text())
    assert "error" not in found
    assert found["programs"] == {"start": {"fits": True}, "round": {"fits": None, "says": "this program is bad", "limit_s": 60}}
    assert compiling.present(sim) == 0.25
    assert loops.Clients(np.array([10, 30]), 0.25).trips("batches_of_20") == 1.5 / 4


def test_cohorts_by_poisson_are_planned_with_all_their_places():
    of = config()
    of.data.clients, of.cohort.fraction, of.cohort.sampling = 40, 0.1, "poisson"
    of.plan.chunk, of.plan.devices = 100, 1
    kind = stand_in.kind(experiment.resolve(of))
    sim = experiment.build(of, shapes_only=True, kind=kind, devices=jax.devices()[:1])
    assert sim.cohort == 4 < sim.places == sim.plan.chunk
    assert compiling.about(sim)["places"] == sim.places


def test_several_processes_are_those_of_the_topology(monkeypatch):
    device = lambda process: SimpleNamespace(process_index=process, platform="tpu")
    four = [device(0), device(0), device(1), device(1)]
    assert parallel.choose(8, model=2, among=four)[1:] == (4, 2)
    with pytest.raises(ValueError, match=r"plan\.devices=2 leaves 1 of 2 processes without a device"):
        parallel.choose(8, devices=2, among=four)
    assert parallel.choose(2, devices=3, among=four).devices == 3
    assert parallel.choose(2, among=four).devices == 4
    monkeypatch.setitem(ABOUT["bytes"], "server state", 900.0)
    assert any("plan.model" in sentence for sentence in advice.advice(config().to_dict(), ABOUT, 1))
    several = [advice.advice(config().to_dict(), ABOUT | {"processes": number}, 1) for number in (2, 4)]
    assert [any("plan.model" in sentence for sentence in said) for said in several] == [True, False]  # two devices each, or one


def test_a_plan_says_what_is_not_counted(monkeypatch, tmp_path):
    monkeypatch.setitem(ABOUT, "processes", 4)
    monkeypatch.setitem(ABOUT, "hold", "host")
    assert "Not counted: what 4 processes exchange" in written.text(made(monkeypatch, tmp_path, Compiler(), tries=0))


def test_a_termination_ends_the_process_that_compiles_too(monkeypatch, capsys, tmp_path):
    before = signal.signal(signal.SIGTERM, lambda *_: None)

    def run(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)  # an exception ends what `subprocess.run` has started
        raise AssertionError("it went on")

    monkeypatch.setattr(subprocess, "run", run)
    try:
        assert planning(["fedavg:smoke", "--topology=here", "--kept="]) == 130
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this platform has no SIGHUP")
def test_under_nohup_a_plan_outlives_its_terminal(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = []

    def compiled(*arguments, **options):
        asked.append(arguments)
        os.kill(os.getpid(), signal.SIGHUP)
        return {"about": ABOUT, "programs": {}}

    monkeypatch.setattr(planned, "planned", compiled)
    monkeypatch.setattr(planned, "fits", lambda plan: True)
    monkeypatch.setattr(written, "text", lambda plan: "planned")
    try:
        assert planning(["fedavg:smoke", "--topology=here", "--kept="]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked


def test_keys_know_what_programs_depend_on(monkeypatch):
    monkeypatch.setattr(elsewhere, "here", lambda: ("gpu", "NVIDIA H200", 8, 2**37))
    job = elsewhere.Job(config().to_dict(), targets.Target("here"), ("round",), Counts(), 60)
    other = lambda **changed: elsewhere.key(job._replace(config=config().to_dict() | changed))
    assert elsewhere.key(job) == other(rounds=9) == other(seed=3) == elsewhere.key(job._replace(seconds=9))
    assert len({elsewhere.key(job), other(models=("mlp",)), elsewhere.key(elsewhere.with_chunk(job, 3))}) == 3
    assert elsewhere.key(job) != elsewhere.key(job._replace(counts=Counts(rows=3)))
    before = elsewhere.key(job)
    with monkeypatch.context() as others:
        others.setattr(elsewhere, "here", lambda: ("gpu", "NVIDIA A100-SXM4-40GB", 8, 2**35))
        assert elsewhere.key(job) != before
    with monkeypatch.context() as others:
        others.setenv("JAX_ENABLE_X64", "1")
        assert elsewhere.key(job) != before


def test_what_a_config_names_from_outside_is_known_by_its_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def keep():\n    return lambda part: part\n\n\ndef decide(scale: float = 1.0):\n    return None\n")
    of = config()
    of.data.partition = f"{file}:decide"
    assert file in elsewhere.sources(of.to_dict())
    of = fedoa_config.get_config("paper")
    (tmp_path / "config.json").write_text("{}")
    of.models = (f"pretrained(folder={str(tmp_path)!r}, limit=512)",)
    assert (tmp_path / "config.json").resolve() in elsewhere.sources(of.to_dict())


def planning(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        return plan.main(arguments)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "give --config"),
        (["fedavg:smoke", "--topology=v5e"], 2, "CHIP:SIZE"),
        (["fedavg:smoke", "--programs=rounds"], 2, "'rounds'"),
        (["fedavg:smoke", "--shape=3,x"], 2, "whole numbers"),
        (["fedavg:smoke", "--config.method.lrr=1"], 2, "no field"),
        (["fedavg:smoke", "--config.models=('mlpp',)"], 1, "mlp"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys, arguments, status, says):
    assert planning(arguments) == status
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_command_plans_for_the_devices_that_are_here(capsys, tmp_path):
    """The one test that compiles in another process."""
    file = tmp_path / "plan.json"
    line = ["fedavg:smoke", "--config.models=('mlp(widths=(4,))',)", "--config.plan.devices=2", "--programs=round", "--search=0"]
    assert planning([*line, f"--json={file}", f"--kept={tmp_path}"]) == 0
    (one,) = json.loads(file.read_text())["targets"]
    assert one["about"]["devices"] == 2
    assert {found["kind"] for found in one["programs"]["round"]["collectives"]} >= {"all-reduce"}
    assert one["round"]["seconds"] is None  # no peak is published of a CPU
    assert "no peak is known" in capsys.readouterr().out
