"""What is lowered for a plan is what runs, without its data."""

import io
import json
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from configs import fedoa as fedoa_config
from configs import fedopt_femnist, fedpft
from fedjax_core import experiment
from fedjax_core.algorithm import ClientSettings
from fedjax_core.commands.plans import capacity_plan as of_plans
from fedjax_core.commands.plans import compile_worker, plan_report, program_costs
from fedjax_core.engine import aot, client_loop, evaluation
from fedjax_core.engine.aot import PARTS
from fedjax_core.experiment import mock_data
from fedjax_core.experiment.mock_data import Counts
from fedjax_core.nn.kernels.conv import describe_conv, tracing_for
from fedjax_core.storage.json_files import to_json_values
from tests.fedjax_core.commands.plans.made import ABOUT, config, sims


def test_what_is_lowered_is_what_runs():
    real, planned = sims()
    programs = aot.trace_programs(planned)
    assert list(programs) == ["start", "round", "evaluation: server", "evaluation: clients"]
    state = real.init(0)
    compiled = real.compiled
    expected = compiled.programs.run_resident_rounds.lower(compiled.device_arrays, state, compiled.put(np.int32(1)))
    assert programs["round"]().lower().as_text() == expected.as_text()
    assert programs["evaluation: server"]().lower().as_text() == of_server(real, state, "test")
    (block,) = evaluation.client_blocks(compiled, 0)
    _, rows, touched, initial = compiled.states.read(state, 0, block)
    given = compiled.device_arrays, state, initial, compiled.put(block), rows, touched, bounds(real)
    each = compiled.programs.score_clients[0].lower(*given).as_text()
    assert programs["evaluation: clients"]().lower().as_text() == each


def bounds(sim):
    return sim.compiled.put((np.int32(0), np.int32(1)))


def of_server(sim, state, rows):
    given = sim.compiled.device_arrays, state.server, state.round
    sums = sim.compiled.programs.init_server_sums[rows](*given)
    return sim.compiled.programs.score_server[rows].lower(*given, sums, bounds(sim)).as_text()


def test_streamed_rows_have_the_room_that_a_run_gives_them():
    real, planned = sims("host")
    held = real.compiled.feed.for_round(real.init(0).key, 0, False)
    sizes = np.asarray(real.spec.host_arrays.size)
    feed: Any = planned.compiled.feed
    whole = feed.abstract_buffers(("index",))
    assert whole["index"].most == held.index.most
    assert whole["train"].x.shape[1:] == held.train.x.shape[1:]
    assert (
        sizes[: planned.spec.sampler.size].sum()
        <= len(whole["train"].x)
        <= 2 + 2 * np.sort(sizes)[-planned.spec.sampler.size :].sum()
    )
    assert whole["train"].x.sharding.shard_shape(whole["train"].x.shape)[0] == len(whole["train"].x) / 2  # each device its clients'
    real.close()


def test_a_round_on_states_of_the_host_is_lowered_beside_its_evaluation():
    of = config()
    of.plan.hold = "host"
    programs = aot.trace_programs(experiment.build(of, shapes_only=True))
    assert list(programs) == ["start", "round", "evaluation: server", "evaluation: clients"]
    assert "jit_run_round" in programs["round"]().lower().as_text()


def test_rows_that_attackers_write_anew_and_validation_rows_are_counted():
    of = config()
    of.adversary.attack, of.adversary.fraction, of.data.validation = "label_flip", 0.25, 0.2
    real, planned = experiment.build(of), experiment.build(of, shapes_only=True)
    assert planned.spec.data.partition_hash == real.spec.data.partition_hash
    assert planned.spec.data.train.x.shape == real.spec.data.train.x.shape
    rows, clean = (compile_worker.resident_bytes(sim)["rows of data"] for sim in (planned, sims()[0]))
    assert rows == compile_worker.resident_bytes(real)["rows of data"] > 1.1 * clean
    programs = aot.trace_programs(planned, ("evaluation",))
    state = real.init(0)
    assert programs["evaluation: server, validation rows"]().lower().as_text() == of_server(real, state, "validation")
    real.release()


def test_runs_are_planned_together():
    _, sim = sims()
    one, three = compile_worker.describe_simulation(sim), compile_worker.describe_simulation(sim, 3)
    assert (one["num_runs"], three["num_runs"]) == (1, 3)
    assert three["bytes"]["server state"] == 3 * one["bytes"]["server state"]
    assert three["bytes"]["rows of data"] == one["bytes"]["rows of data"]
    alone, together = (compile_worker.trace_programs(sim, PARTS, num_runs) for num_runs in (1, 3))
    assert list(alone) == list(together)
    shapes = [sorted(leaf.shape for leaf in jax.tree.leaves(of["round"]().lower().args_info)) for of in (alone, together)]
    state = aot.resident_shapes(sim.compiled)[1]
    assert len(shapes[1]) - len(shapes[0]) == 2 * len(jax.tree.leaves(state))
    program = {"peak": 100}
    names = ("start", "round", "evaluation: server", "evaluation: scored round")
    beside = [of_plans._add_fit(program, name, ABOUT | {"num_runs": 3})["beside"] for name in names]
    assert beside == pytest.approx([140, 210, 140 + 200 / 3, 210])  # two runs' states, a copy of all, the third's clients too
    beside = [of_plans._add_fit(program, name, ABOUT)["beside"] for name in names]
    assert beside == [0, 210, 200, 210]  # an evaluation takes the server's state, and blocks of the clients'
    assert "plan.lanes=1 needs half" in " ".join(plan_report.suggest_changes(config().to_dict(), ABOUT | {"num_runs": 3}, 0))
    target: dict[str, Any] = {
        "target": "here",
        "about": ABOUT | {"num_runs": 3},
        "programs": {},
        "chunk": None,
        "round": None,
        "advice": [],
    }
    assert "; 3 runs at once" in plan_report.render_plan({"targets": [target]})
    streamed = sims("host")[1]
    about = compile_worker.describe_simulation(streamed, 3)
    assert about["num_runs"] == 1
    assert about["bytes"] == compile_worker.describe_simulation(streamed)["bytes"]
    target["about"] = ABOUT | {"alone": about["alone"]}
    assert "Runs train one after another: the data are on the host." in plan_report.render_plan({"targets": [target]})


def test_networks_of_another_backend_take_its_form_of_convolutions():
    assert describe_conv()["alone"] == "canonical"
    with tracing_for("tpu"):
        assert describe_conv()["backend"] == "tpu"
        assert describe_conv()["alone"] == "native"
    assert describe_conv()["backend"] == "cpu"


def test_published_sets_have_their_size_and_others_are_given_one():
    of = fedpft.get_config("paper")
    data = mock_data.mock_pipeline(experiment.resolve(of)).federated(experiment.resolve(of))
    assert (len(data.train.y), data.train.x.shape[1:], data.classes, data.clients) == (50_000, (32, 32, 3), 10, 40)
    assert {len(rows) for rows in data.train_index} == {500}
    assert data.train.x.strides[0] == 0  # no memory
    of.data.source = "npz(path='mine.npz')"
    asked = experiment.resolve(of)
    with pytest.raises(ValueError, match=r"its files are not read.*--classes.*--rows is missing"):
        mock_data.mock_pipeline(asked).federated(asked)
    given = mock_data.mock_pipeline(asked, Counts(rows=30_000, shape=(16, 16, 3), classes=5)).federated(asked)
    assert (len(given.train.y), len(given.test.y), given.train.x.shape[1:], given.classes) == (30_000, 6_000, (16, 16, 3), 5)
    users = experiment.resolve(fedopt_femnist.get_config("paper"))
    assert mock_data.mock_pipeline(users).federated(users).clients == users.data.clients


def test_a_language_model_is_planned_without_its_folder():
    of = fedoa_config.get_config("paper")
    of.plan.devices, of.method.batch = 1, 4
    sim = experiment.build(of, shapes_only=True, pipeline=mock_data.mock_pipeline(experiment.resolve(of)))
    assert sum(leaf.size for leaf in jax.tree.leaves(sim.spec.bound_groups[0].task.frozen)) == 6_738_415_616
    assert sim.spec.data.train.x["tokens"].shape == (6000, 512)
    of.models = ("pretrained(folder='mine', limit=512)",)
    with pytest.raises(OSError, match=r"mine/config\.json"):
        mock_data.mock_pipeline(experiment.resolve(of)).federated(experiment.resolve(of))


def test_an_error_of_one_program_leaves_the_others(monkeypatch, tmp_path):
    out = tmp_path / "found.json"
    asked = {"config": config().to_dict(), "counts": Counts()._asdict(), "target": ["here", 1, ""], "parts": ["start", "round"]}
    asked |= {"done": {}, "seconds": 60, "out": str(out), "cores": False}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(to_json_values(asked))))

    def analysed(traced, sim, part, drop_last):
        assert not drop_last
        if part == 1.0:  # the start: of the round's clients some drop out
            return {"fits": True}
        raise ValueError("this program\nis bad")

    monkeypatch.setattr(compile_worker, "analyze_program", analysed)
    group = SimpleNamespace(clients=range(20))
    sim: Any = SimpleNamespace(spec=SimpleNamespace(sampler=SimpleNamespace(size=8, slots=16), dropout=0.5, groups=[group]))
    monkeypatch.setattr(compile_worker, "make_simulation", lambda *_: sim)
    monkeypatch.setattr(compile_worker, "describe_simulation", lambda sim, num_runs: {"num_runs": num_runs})
    monkeypatch.setattr(aot, "trace_programs", lambda sim, parts: dict.fromkeys(parts, lambda: None))
    compile_worker.main()
    found = json.loads(out.read_text())
    assert "error" not in found
    assert found["programs"] == {"start": {"fits": True}, "round": {"fits": None, "says": "this program is bad", "limit_s": 60}}
    assert compile_worker.expected_active_share(sim) == 0.25
    sim.spec.groups = [group] * 5  # of 80 slots
    assert compile_worker.expected_active_share(sim) == 0.05
    assert program_costs.ClientLoops(np.array([10, 30]), 0.25).trip_count("batches_of_20") == 1.5 / 4
    assert program_costs.ClientLoops(np.array([10, 50]), drop_last=True).trip_count("batches_of_20") == 1.5
    own = program_costs.ClientLoops(np.array([10, 30]), settings=ClientSettings(steps=np.array([4, 6])))
    assert [own.trip_count(name) for name in ("own_epochs_by_20", "5_epochs_by_20")] == [pytest.approx((4 + 6) / (1 + 2)), 5]


def test_cohorts_by_poisson_are_planned_with_all_their_places():
    of = config()
    of.data.clients, of.cohort.fraction, of.cohort.sampling = 40, 0.1, "poisson"
    of.plan.chunk, of.plan.devices = 100, 1
    kind = mock_data.mock_pipeline(experiment.resolve(of))
    sim = experiment.build(of, shapes_only=True, pipeline=kind, devices=jax.devices()[:1])
    assert sim.spec.sampler.size == 4 < sim.spec.sampler.slots == sim.spec.plan.chunk
    assert compile_worker.describe_simulation(sim)["places"] == sim.spec.sampler.slots


def test_several_processes_are_those_of_the_topology(monkeypatch):
    device = lambda process: SimpleNamespace(process_index=process, platform="tpu")
    four = [device(0), device(0), device(1), device(1)]
    assert client_loop.choose_plan(8, model=2, among=four)[1:] == (4, 2)
    with pytest.raises(ValueError, match=r"plan\.devices=2 leaves 1 of 2 processes without a device"):
        client_loop.choose_plan(8, devices=2, among=four)
    assert client_loop.choose_plan(2, devices=3, among=four).devices == 3
    assert client_loop.choose_plan(2, among=four).devices == 4
    monkeypatch.setitem(ABOUT["bytes"], "server state", 900.0)
    assert any("plan.model" in sentence for sentence in plan_report.suggest_changes(config().to_dict(), ABOUT, 1))
    several = [plan_report.suggest_changes(config().to_dict(), ABOUT | {"processes": number}, 1) for number in (2, 4)]
    assert [any("plan.model" in sentence for sentence in said) for said in several] == [True, False]  # two devices each, or one

    def models(**about) -> list[str]:
        advice = plan_report.suggest_changes(config().to_dict(), ABOUT | about, 1)
        return [sentence.split(" ")[0] for sentence in advice if sentence.startswith("plan.model=")]

    divided = {"chunk": 4, "devices": 4, "model": 2}
    assert [models(available=1), models(available=3), models(plan=divided)] == [[], ["plan.model=3"], ["plan.model=4"]]
