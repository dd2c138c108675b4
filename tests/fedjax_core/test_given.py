"""What is given in Python in place of what a config names."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from configs import fedavg
from fedjax_core import experiment, registry
from fedjax_core.commands import export, predict
from fedjax_core.experiment import python_overrides
from fedjax_core.storage import export_model as files
from fedjax_core.storage.json_files import read_json, read_jsonl
from fedjax_core.training import losses
from methods.scaffold import scaffold

ROOT = Path(__file__).parents[2]


class Small(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, width: int = 4, rngs: nnx.Rngs):
        self.layer = nnx.Linear(int(np.prod(input_shape)), width, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def body(self, x):
        return jnp.tanh(self.layer(x.reshape(len(x), -1)))


class Plain(linen.Module):
    classes: int = 10

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.classes)(x.reshape(len(x), -1))


class Listed(Plain):
    """Returns what it should not."""

    @linen.compact
    def __call__(self, x):
        return {"logits": linen.Dense(self.classes)(x.reshape(len(x), -1))}


def twice(logits, y, mask, times: float = 2.0):
    return times * losses.cross_entropy(logits, y, mask)


def certain(outputs, x, y, mask):
    """Rows of which the network is sure."""
    sure = jnp.max(jax.nn.softmax(outputs["logits"]), 1) > 0.9
    return jnp.sum(jnp.where(mask, sure, 0), dtype=jnp.float32), jnp.sum(mask, dtype=jnp.float32)


def config(rounds: int = 2, lr: float = 0.1):
    made = fedavg.get_config("smoke")
    made.rounds = made.evaluation.every = rounds
    made.models, made.optimizer.lr, made.data.examples, made.data.clients = ("mlp(widths=(4,))",), lr, 100, 4
    made.plan.devices = 1
    return made


class Headless(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.first, self.second = nnx.Linear(int(np.prod(input_shape)), 4, rngs=rngs), nnx.Linear(4, classes, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x.reshape(len(x), -1))))


def test_a_network_without_a_head_is_exported(tmp_path):
    run(tmp_path / "run", config(1), model=Headless)
    file = tmp_path / "m.safetensors"
    assert export.export(tmp_path / "run", file)["classes"] == 10
    model, net, _ = files.load_model(file, lambda name: Headless)
    assert model.apply(net, np.zeros((2, 8, 8, 1), np.float32))[0]["logits"].shape == (2, 10)


def run(directory: Path, made, **replaced):
    return experiment.execute(made, str(directory), progress=False, console=lambda text: None, **replaced)


def test_all_at_once_runs_resumes_loads_exports_and_predicts(tmp_path, monkeypatch, caplog):
    replaced = {
        "method": functools.partial(scaffold, server_lr=0.5),
        "model": functools.partial(Small, width=5),
        "loss": twice,
        "scores": [certain],
    }
    whole = run(tmp_path / "whole", config(4), **replaced)
    recorded = read_json(tmp_path / "whole" / "config.json")
    assert recorded["method"] == {"name": "methods.scaffold:scaffold(server_lr=0.5)", "epochs": 5, "batch": 32}
    assert recorded["models"] == [f"{__name__}:Small(width=5)"]
    assert (recorded["loss"], recorded["evaluation"]["scores"]) == (f"{__name__}:twice", [f"{__name__}:certain"])
    assert "test/global/certain" in whole.summary["metrics"]
    run(tmp_path / "parts", config(2), **replaced)
    longer = config(4)
    longer.evaluation.every = 2
    parts = run(tmp_path / "parts", longer, **replaced)
    jax.tree.map(np.testing.assert_array_equal, parts.state.server, whole.state.server)
    losses_of = [[r["train/loss"] for r in read_jsonl(tmp_path / name / "metrics.jsonl")] for name in ("parts", "whole")]
    assert losses_of[0] == losses_of[1]

    read, simulation, state = experiment.load(tmp_path / "whole")  # by its names alone
    assert read.loss == f"{__name__}:twice"
    file = tmp_path / "m.safetensors"
    export.export(tmp_path / "whole", file)
    with pytest.raises(ValueError, match=r"the network .*:Small is not part of this library; load it in Python by load_model"):
        files.load_model(file)
    model, net, description = files.load_model(file, lambda name: Small)
    assert description["model"] == f"{__name__}:Small(width=5)"
    x = simulation.spec.data.test.x[:7]
    logits = model.apply(net, x)[0]["logits"]
    view = simulation.client_view(state, 0)
    np.testing.assert_allclose(logits, view.predict("global", view.holds["global"], x)["logits"], atol=1e-6, rtol=1e-6)
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match="--trust"):
        predict.predict(file, tmp_path / "x.npy")
    rows = predict.predict(file, tmp_path / "x.npy", trust=True)
    assert [row["class"] for row in rows] == [description["class_names"][c] for c in np.argmax(logits, 1)]
    assert "another version" not in caplog.text
    monkeypatch.setattr(experiment, "list_code_digests", lambda lookups: {"code": {Path(__file__).name: "edited"}})
    predict.predict(file, tmp_path / "x.npy", trust=True)
    assert f"m.safetensors was exported with another version of {Path(__file__).name}; today's code is used" in caplog.text


def test_a_loss_is_what_is_trained(tmp_path):
    """Twice the loss is twice the rate, of plain gradient steps."""
    by_loss = run(tmp_path / "loss", config(lr=0.1), loss=functools.partial(twice, times=4.0))
    by_rate = run(tmp_path / "rate", config(lr=0.4))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), by_loss.state.server, by_rate.state.server)
    assert read_json(tmp_path / "loss" / "config.json")["loss"] == f"{__name__}:twice(times=4.0)"
    named = config()
    named.loss = f"{__file__}:twice(times='x')"
    with pytest.raises(ValueError, match=r"loss '.*:twice': times='x'"):
        experiment.resolve(named)


def test_what_has_no_module_is_given_again(tmp_path, monkeypatch):
    linear = Plain()
    run(tmp_path / "run", config(), model=linear, scores={"sure": certain}, loss=lambda *row: twice(*row))
    recorded = read_json(tmp_path / "run" / "config.json")
    assert recorded["models"] == ["given:Plain"]
    assert (recorded["loss"], recorded["evaluation"]["scores"]) == ("given:lambda", ["given:sure"])
    experiment.load(tmp_path / "run")  # in this process it is known
    monkeypatch.setattr(registry, "_REGISTERED", {})
    with pytest.raises(
        ValueError, match=r"model 'given:Plain' was given in Python; give it again: experiment.load\(..., model=...\)"
    ):
        experiment.load(tmp_path / "run")
    again = {"model": linear, "scores": {"sure": certain}, "loss": lambda *row: twice(*row)}
    _, simulation, state = experiment.load(tmp_path / "run", **again)
    assert "test/global/sure" in simulation.evaluate(state).metrics


def test_nothing_given_changes_nothing():
    made = config()
    assert python_overrides.apply_overrides(made) is made


def test_a_network_with_values_is_refused():
    with pytest.raises(TypeError, match="the model Small is made already"):
        python_overrides.apply_overrides(config(), model=Small(10, (8, 8, 1), rngs=nnx.Rngs(0)))


def test_no_score_takes_the_place_of_another():
    asked = config()
    asked.evaluation.scores = (f"{__name__}:certain", f"{__file__}:certain")
    with pytest.raises(ValueError, match=r"evaluation.scores: '.*test_given:certain' and '.*test_given.py:certain' would both"):
        experiment.resolve(asked)
    with pytest.raises(ValueError, match="two different scores are given that are both called 'lambda'"):
        python_overrides.apply_overrides(config(), scores=[lambda *row: certain(*row), lambda *row: certain(*row)])
    with pytest.raises(ValueError, match="two different models are given that are both called 'Plain'"):
        python_overrides.apply_overrides(config(), model=[Plain(), Plain(classes=3)])
    linear = Plain()
    assert python_overrides.apply_overrides(config(), model=[linear, linear]).models == ("given:Plain",) * 2
    with pytest.raises(ValueError, match=r"evaluation\.scores has 'accuracy', which is scored of classes already"):
        experiment.build(config(), scores={"accuracy": certain}, shapes_only=True)


def test_another_method_in_python_says_what_it_leaves(caplog):
    asked = config()
    made = python_overrides.apply_overrides(asked, method=scaffold)
    assert made.method.to_dict() == {"name": "methods.scaffold:scaffold", "epochs": 5, "batch": 32}
    assert "method methods.scaffold:scaffold in place of fedavg: kept batch=32, epochs=5; dropped weights='samples'" in caplog.text
    caplog.clear()
    assert python_overrides.apply_overrides(made, method=functools.partial(scaffold, epochs=2)).method.to_dict() == {
        "name": "methods.scaffold:scaffold(epochs=2)",
        "batch": 32,
    }
    assert caplog.text == ""


def test_the_loss_of_labels_is_the_tasks():
    """In every method, but for terms that are no loss of the data's labels: contrasts, generators."""
    own = {"fedpft": 1, "fedgen": 3, "fedtgp": 1, "fedgh": 1, "fedproto": 1, "fedrcl": 1}
    files = sorted((ROOT / "methods").glob("*.py"))
    found = {file.stem: len(re.findall(r"\blosses\.cross_entropy(?:_rows|_per_example)?\b", file.read_text())) for file in files}
    assert {name: number for name, number in found.items() if number} == own, (
        "use training.label_loss(task) or training.supervised_loss(task)"
    )


def test_what_is_brought_may_call_its_arguments_as_it_likes():
    def loss(z, targets, real):
        return twice(z, targets, real)

    def score(out, images, labels, real):
        return certain(out, images, labels, real)

    def method(work, *, optimizer, epochs=1):
        return scaffold(work, optimizer=optimizer, epochs=epochs)

    simulation = experiment.build(config(), method=method, loss=loss, scores=score)
    assert "test/global/score" in simulation.evaluate(simulation.init(0)).metrics


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"loss": "focal"}, "loss='focal' must be a function or a class; names belong in config.loss"),
        ({"scores": ["sure"]}, "score='sure' must be a function or a class; names belong in config.evaluation.scores"),
        ({"scores": "sure"}, "score='sure' must be a function"),
        ({"scores": (name for name in ["sure"])}, "score='sure' must be a function"),
        ({"scores": {"mine": 3}}, "score 'mine'=3 must be a function or a class$"),
        ({"model": "mlp"}, "model='mlp' must be a function or a class; names belong in config.models"),
        ({"method": 1.5}, "method=1.5 must be a function or a class$"),
        (
            {"method": lambda task: None},
            r"method 'given:lambda' must take optimizer=: a method is called as method\(task, optimizer=",
        ),
        ({"method": lambda *, optimizer: None}, r"method 'given:lambda' is called with \(task\) by position"),
        ({"loss": lambda logits, y: 0}, r"loss 'given:lambda' is called with \(logits, y, mask\) by position"),
        ({"scores": lambda outputs: 0}, r"score 'given:lambda' is called with \(outputs, x, y, mask\) by position"),
    ],
)
def test_what_cannot_be_given(what, message):
    with pytest.raises(TypeError, match=message):
        experiment.build(config(), **what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"loss": lambda z, y, mask: -jnp.mean(z, 1)}, r"loss '<lambda>' must return .*, a float32\[\], it returned float32\[30\]"),
        ({"loss": lambda z, y, mask: (jnp.mean(z), 1)}, "it returned a tuple"),
        ({"loss": lambda z, y, mask: jnp.argmax(z)}, r"it returned int32\[\]"),
        (
            {"model": lambda classes: Listed(classes)},
            r"model 'given:lambda' must return logits \[B, K\], an array, it returned a dict",
        ),
    ],
)
def test_what_is_given_returns_something_else(what, message):
    with pytest.raises(TypeError, match=message):
        experiment.build(config(), **what)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            lambda out, x, y, mask: jnp.mean(out["logits"]),
            r"must return \(sum, weight\), each of the two one number; 'lambda' is an array float32",
        ),
        (lambda out, x, y, mask: (out["logits"][:, 0], 1), r"'lambda' has an array of shape \[\d+\]"),
    ],
)
def test_a_score_returns_a_sum_and_a_weight(score, message):
    with pytest.raises(TypeError, match=message):
        experiment.build(config(), scores=score)
