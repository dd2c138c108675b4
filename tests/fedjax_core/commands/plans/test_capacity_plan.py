"""Plans that are made in other processes: kept, cut short, and what they say."""

import json
import subprocess

import pytest

from configs import fedoa as fedoa_config
from fedjax_core.commands.plans import capacity_plan, compile_pool, device_targets, plan_report
from fedjax_core.engine.aot import PARTS
from fedjax_core.experiment.mock_data import Counts
from tests.fedjax_core.commands.plans.made import ABOUT, Compiler, config, made


def test_a_plan_finds_the_chunk_and_is_kept(monkeypatch, tmp_path):
    compiler = Compiler()
    plan = made(monkeypatch, tmp_path, compiler)
    (one,) = plan["targets"]
    assert one["programs"]["round"]["fits"]  # 600 and a copy of 210 bytes of states, of 1000
    assert one["chunk"] == {"chunk": 5, "below": 6, "tried": 3, "unknown": None, "exact": True}
    assert one["round"]["seconds"] == pytest.approx(2.0)  # of one second's operations and two seconds' bytes
    assert capacity_plan.plan_fits(plan)
    assert one["advice"] == []
    assert "at least 2 s" in plan_report.render_plan(plan)
    assert "2 all-reduce" in plan_report.render_plan(plan)
    calls = len(compiler.calls)
    assert made(monkeypatch, tmp_path, compiler) == plan
    assert len(compiler.calls) == calls  # nothing was compiled
    made(monkeypatch, tmp_path, compiler, fresh=True)
    assert len(compiler.calls) == 2 * calls


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"about": {}, "names": ["round"], "programs": {"round": 3}}'])
def test_what_is_kept_and_damaged_is_compiled_anew(monkeypatch, tmp_path, damage):
    compiler = Compiler()
    plan = made(monkeypatch, tmp_path, compiler, tries=0)
    calls = len(compiler.calls)
    for file in (tmp_path / "kept").iterdir():
        file.write_text(damage)
    assert made(monkeypatch, tmp_path, compiler, tries=0) == plan
    assert len(compiler.calls) == 2 * calls


def test_what_does_not_fit_says_what_to_change(monkeypatch, tmp_path):
    monkeypatch.setitem(ABOUT, "limit", 500)
    plan = made(monkeypatch, tmp_path, Compiler(), tries=8)
    (one,) = plan["targets"]
    assert one["programs"]["round"]["short"] == 600 + 210 - 500
    assert not capacity_plan.plan_fits(plan)
    assert [sentence.split(" ")[0] for sentence in one["advice"]] == ["plan.chunk=1", "plan.data=host", "plan.hold=host"]
    assert "short" in plan_report.render_plan(plan)
    none = plan_report.suggest_changes(config(batch=8).to_dict(), ABOUT, 0)
    assert any("method.batch=8" in sentence for sentence in none)
    for adapter in (None, "lora(rank=2)"):  # a whole model hardly trains in bfloat16
        asked = config().to_dict() | {"models": ("pretrained(folder='mine')",), "adapter": adapter}
        assert any("bfloat16" in sentence for sentence in plan_report.suggest_changes(asked, ABOUT, 0)) == (adapter is not None)


def test_a_compiler_that_ends_its_process_spoils_one_program_alone(monkeypatch, tmp_path):
    compiler = Compiler(bad=("round",))
    plan = made(monkeypatch, tmp_path, compiler, tries=0)
    programs = plan["targets"][0]["programs"]
    assert {name: one["fits"] for name, one in programs.items()} == {"start": True, "round": None, "evaluation: server": True}
    assert programs["round"]["says"] == "the compiler ended its process (-6): Check failed: no"
    assert [without for *_, without in compiler.calls] == [[], ["start", "round"]]
    assert not capacity_plan.plan_fits(plan)
    assert "Check failed" in plan_report.render_plan(plan)


def test_more_time_is_used(monkeypatch, tmp_path):
    late = Compiler(bad=("round",), status=-14)
    (one,) = made(monkeypatch, tmp_path, late, tries=0, seconds=5)["targets"]
    assert one["programs"]["round"]["says"] == "not compiled in 5 s (--limit)"
    assert capacity_plan.plan_fits(made(monkeypatch, tmp_path, Compiler(), tries=0, seconds=50))


@pytest.mark.parametrize(("found", "says"), [({"programs": {}, "error": "no such network"}, "no such network"), (None, "no: why")])
def test_what_cannot_be_built_is_reported_and_not_kept(monkeypatch, tmp_path, found, says):
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
            json.dump({"about": ABOUT, "names": ["start", "round"], "programs": of_start}, file)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", late)
    job = compile_pool.Job(config().to_dict(), device_targets.parse_targets("v5e:2x2")[0], ("start", "round"), Counts(), 5)
    programs = compile_pool.compile_programs(job, tmp_path)["programs"]
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
    job = compile_pool.Job(config().to_dict(), device_targets.parse_targets("v5e:2x2")[0], PARTS, Counts(), 5)
    programs = compile_pool.compile_programs(job, tmp_path)["programs"]
    assert programs["start"]["fits"]
    assert programs["evaluation: server"] == {"fits": None, "says": "no such file", "limit_s": 5}


def test_a_plan_says_what_is_not_counted(monkeypatch, tmp_path):
    monkeypatch.setitem(ABOUT, "processes", 4)
    monkeypatch.setitem(ABOUT, "hold", "host")
    assert "Not counted: what 4 processes exchange" in plan_report.render_plan(made(monkeypatch, tmp_path, Compiler(), tries=0))


def test_keys_know_what_programs_depend_on(monkeypatch):
    monkeypatch.setattr(compile_pool, "describe_local_devices", lambda: ("gpu", "NVIDIA H200", 8, 2**37))
    job = compile_pool.Job(config().to_dict(), device_targets.Target("here"), ("round",), Counts(), 60)
    other = lambda **changed: compile_pool.cache_key(job._replace(config=config().to_dict() | changed))
    assert compile_pool.cache_key(job) == other(rounds=9) == other(seed=3) == compile_pool.cache_key(job._replace(seconds=9))
    assert len({compile_pool.cache_key(job), other(models=("mlp",)), compile_pool.cache_key(compile_pool.with_chunk(job, 3))}) == 3
    assert compile_pool.cache_key(job) != compile_pool.cache_key(job._replace(counts=Counts(rows=3)))
    privacy = config().to_dict()["privacy"] | {"mechanism": "gaussian", "clip": 1.0, "noise": 1.0, "delta": 1e-5}
    method = config().to_dict()["method"] | {"weights": "uniform"}
    private = {"privacy": privacy, "method": method, "normalise": "unit"}
    assert other(**private, rounds=9) != other(**private, rounds=1000), "noise by a tree has as many levels as rounds need"
    before = compile_pool.cache_key(job)
    with monkeypatch.context() as others:
        others.setattr(compile_pool, "describe_local_devices", lambda: ("gpu", "NVIDIA A100-SXM4-40GB", 8, 2**35))
        assert compile_pool.cache_key(job) != before
    for name, value in (("JAX_ENABLE_X64", "1"), ("FEDJAX_KERNELS", "0")):
        with monkeypatch.context() as others:
            others.setenv(name, value)
            assert compile_pool.cache_key(job) != before, name


def test_what_a_config_names_from_outside_is_known_by_its_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def keep():\n    return lambda part: part\n\n\ndef decide(scale: float = 1.0):\n    return None\n")
    of = config()
    of.data.partition = f"{file}:decide"
    assert file in compile_pool.source_files(of.to_dict())
    of = config()
    (tmp_path / "epochs.csv").write_text("client,epochs\n0,1\n")
    of.clients.epochs = f"from_csv(path={str(tmp_path / 'epochs.csv')!r})"
    assert (tmp_path / "epochs.csv").resolve() in compile_pool.source_files(of.to_dict())
    of = fedoa_config.get_config("paper")
    (tmp_path / "config.json").write_text("{}")
    of.models = (f"pretrained(folder={str(tmp_path)!r}, limit=512)",)
    assert (tmp_path / "config.json").resolve() in compile_pool.source_files(of.to_dict())
    of.models, keys = (f"pretrained(folder={str(tmp_path / 'a.gguf')!r}, limit=512)",), set()
    for text in ("", "other"):
        (tmp_path / "a.gguf").write_text(text)
        job = compile_pool.Job(of.to_dict(), device_targets.parse_targets("v5e:2x2")[0], ("round",), Counts(), 5)
        keys.add(compile_pool.cache_key(job))
    assert len(keys) == 2


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 15, 31, 32])
def test_the_largest_chunk_is_found(limit):
    seen = []

    def fits(chunk):
        seen.append(chunk)
        return chunk <= limit

    found = capacity_plan.find_largest_chunk(fits, {32: limit >= 32}, 32, 10)
    assert (found.chunk, found.is_exact, found.tried) == (limit, True, len(seen))
    assert len(set(seen)) == len(seen) <= 8
    assert capacity_plan.find_largest_chunk(fits, {4: limit >= 4}, 32, 10).chunk == limit


def test_a_search_for_a_chunk_ends():
    unknown = capacity_plan.find_largest_chunk(lambda chunk: None, {1: True}, 10, 6)
    assert (unknown, unknown.is_exact) == (capacity_plan.LargestChunk(1, None, 1, 10), False)
    assert capacity_plan.find_largest_chunk(lambda chunk: None, {32: False}, 32, 5).unknown is not None
    stopped = capacity_plan.find_largest_chunk(lambda chunk: chunk <= 11, {32: False}, 32, 2)
    assert (stopped.chunk, stopped.below, stopped.is_exact) == (6, 32, False)
