"""All variants of configs build at full size; each `paper` and `smoke` traces, and a `smoke` with a part of its own runs."""

import functools
import importlib
import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags

from configs import base
from fedjax_core import experiment, nn
from fedjax_core.data import sources
from fedjax_core.data.sources import published_images
from fedjax_core.language import instruction_data, load_pretrained
from fedjax_core.language import instruction_task as language
from fedjax_core.language.models import decoder
from fedjax_core.nn.from_nnx import build as network
from fedjax_core.reporting import analysis, score_labels
from tests import toy
from tests.fedjax_core.training.test_adapters import LLAMA_7B

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem not in ("__init__", "base"))
OFFLINE = ("diabetes", "multilabel", "text")  # sets without files and without published results
SETS = {  # training examples, test examples, shape, classes of the published sets
    "mnist": (60_000, 10_000, (28, 28, 1), 10),
    "cifar10": (50_000, 10_000, (32, 32, 3), 10),
    "cifar100": (50_000, 10_000, (32, 32, 3), 100),
    "svhn": (73_257, 26_032, (32, 32, 3), 10),
} | {
    f"emnist_{split}": (*rows[0], (28, 28, 1), len(published_images.EMNIST_NAMES[split]))
    for split, rows in published_images.EMNIST_ROWS.items()
}


@functools.cache
def mocked(kind: str) -> sources.Dataset:
    """Returns a black data set as large as the published one."""
    train, test, shape, classes = SETS[kind]
    y = [(np.arange(rows) % classes).astype(np.int32) for rows in (train, test)]
    x = [np.broadcast_to(np.zeros(1, np.uint8), (rows, *shape)) for rows in (train, test)]
    return sources.from_arrays(x[0], y[0], x[1], y[1], [f"{c:03}" for c in range(classes)], name=kind)


def texts(rows: int, clients: int, length: int, words: int) -> sources.Dataset:
    """Returns texts of one repeated word, with their clients."""
    x, whose = np.zeros((rows, length + 1), np.int32), np.arange(rows) % clients
    return sources.from_arrays(x, None, x[:100], None, [str(i) for i in range(words)], targets="tokens", train_clients=whose)


def femnist() -> sources.Dataset:
    """Returns a black data set as large as the published one."""
    rows, tests = 671_585, 77_483
    y, whose = np.arange(rows) % 62, np.arange(rows) % 3400
    x = np.broadcast_to(np.zeros(1, np.uint8), (rows, 28, 28, 1))
    return sources.from_arrays(x, y, x[:tests], y[:tests], train_clients=whose, test_clients=whose[:tests])


def flair(size: int) -> sources.Dataset:
    """Returns a black image per user."""
    x, y = np.broadcast_to(np.zeros(1, np.uint8), (41_131, size, size, 3)), np.zeros((41_131, 17), bool)
    return sources.from_arrays(x, y, x[:100], y[:100], targets="labels", train_clients=np.arange(41_131))


READERS = {kind: functools.partial(mocked, kind) for kind in ("mnist", "cifar10", "cifar100", "svhn")} | {
    "emnist": lambda split: mocked(f"emnist_{split}"),
    "tfds": lambda path: mocked(path),
    "femnist": femnist,
    "flair": flair,
    "shakespeare": lambda: texts(40_000, 715, 80, 90),
    "stackoverflow": lambda: texts(342_477, 342_477, 20, 10_004),  # one sentence per user
}  # for sets that are files


TASKS = {"entailment": 2, "sentiment": 2, "paraphrase": 2, "reading_comprehension": 2}  # number of data sets


def instances(path, split=None):
    """Replaces `instruction_data.read`, with as many examples as in FedOA."""
    del split
    rows = []
    for task, sets in TASKS.items():
        for dataset in range(sets * (1000 if "train" in Path(path).name else 200)):
            rows.append(instruction_data.Instance(task, f"{task} {dataset % sets}", "is it?", "is it?", ("no", "yes"), "yes"))
    return rows


class Words:
    """Replaces `load_pretrained.Tokenizer`; a text has 300 tokens, with an answer one more."""

    def encode(self, texts, special=True, limit=None):
        return [[1] * 300 + [2] * text.endswith("yes") for text in texts]


def get(name: str, variant: str):
    return importlib.import_module(f"configs.{name}").get_config(variant)


@functools.cache
def traced_once(*given, **options):
    """Replaces `nn.build`: each network is traced and differentiated once for all configs.

    Their programs call it and are not compiled.
    """
    model = network(*given, **options)
    apply = jax.jit(model.apply, static_argnames=("train", "intermediates"))
    return model._replace(init=jax.jit(model.init), apply=apply, features=jax.jit(model.features, static_argnames="train"))


def build(config):
    """Builds at full size, without device arrays and files of weights."""
    if config.plan.devices is None:
        config.plan.devices = 1
    llama_7b = lambda folder, spec: decoder.build(LLAMA_7B, spec.dtype, spec.remat)
    with (
        mock.patch.dict(sources.READERS, READERS),
        mock.patch.object(instruction_data, "read", instances),
        mock.patch.object(load_pretrained, "load_tokenizer", return_value=Words()),
        mock.patch.object(language, "build_model", llama_7b),
        mock.patch.object(nn, "build", traced_once),
    ):
        return experiment.build(config, shapes_only=True)


def trace_round(sim):
    """Traces a round; the state keeps its shapes, and the cohort is recorded."""
    shapes = functools.partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    state = shapes(
        jax.eval_shape(sim.compiled.programs.init_state, shapes(sim.spec.host_arrays), jax.random.key_data(jax.random.key(0)))
    )
    new, records = jax.eval_shape(
        sim.compiled.programs.run_scored_round
        if sim.spec.episodes is None
        else sim.compiled.programs.run_resident_rounds,  # with the clients' scores of a round
        shapes(sim.spec.host_arrays),
        state,
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert records["cohort"].dtype == jnp.int32


@pytest.mark.parametrize("name", NAMES)
def test_paper_builds_and_its_round_traces_at_full_size(name, caplog):
    config = get(name, "paper")
    sim = build(config)
    assert "makes other clients" not in caplog.text, "than those that its data name"
    least = 300 if config.data.source.startswith(OFFLINE) else 36_000
    assert len(sim.spec.data.train.y) >= (6000 if config.data.source.startswith(language.SOURCE) else least)  # not the digits
    trace_round(sim)


@pytest.mark.parametrize("name", NAMES)
def test_the_small_variant_builds(name, caplog):
    assert build(get(name, "small")).spec.population >= 1
    assert "makes other clients" not in caplog.text, "than those that its data name"


@pytest.mark.parametrize("variant", ["small", "smoke"])
def test_small_configs_train_as_many_of_the_clients(variant):
    """So that tables compare only methods; a paper's own cohort is in `paper`."""
    fractions = {name: get(name, variant).cohort.fraction for name in NAMES}
    assert fractions == dict.fromkeys(NAMES, base.get_config(variant).cohort.fraction)
    assert {get(name, variant).cohort.get("size") for name in NAMES} == {None}
    assert get("ditto", "paper").cohort.fraction == get("local", "paper").cohort.fraction == 1.0


def parts_of(config) -> set[Any]:
    """Returns the parts of a config: source, task, networks with the names of their options, adapter, one network or several."""
    called = {field: str(config.get(field)).partition("(")[0] for field in ("task", "adapter", "train")}
    words = re.findall(r"\b[a-z]\w*", str(config.models))  # names, not their values
    method = config.method.name if config.method.name not in toy.METHODS else ""
    return {*called.items(), *words, len(config.models) > 1, ("source", config.data.source.partition("(")[0]), ("method", method)}


@functools.cache
def running() -> frozenset[str]:
    """Returns the configs whose smoke variant runs: each with a part that those before it have not, or a method without a contract.

    test_every_method.py runs all other methods, test_command_line.py the files of a run.
    """
    found, seen = [], set()
    for name in ("fedavg", *NAMES):
        parts = parts_of(get(name, "smoke"))
        found += [name] if parts - seen else []
        seen |= parts
    return frozenset(found)


@pytest.mark.parametrize("name", NAMES)
def test_smoke_needs_no_files_and_trains(name):
    """One round and its scores; of most configs, their trace alone."""
    config = get(name, "smoke")
    own = re.fullmatch(r"digits|\w+\(of='digits', .*\)", config.data.source) or config.data.source.startswith(OFFLINE)
    assert own, "a smoke variant must run anywhere"
    config.plan.devices = 1
    sim = experiment.build(config)
    if name not in running():
        trace_round(sim)
        return
    state, _ = sim.run_rounds(sim.init(config.seed), 1)
    assert int(state.round) == 1
    scores = [value for score, value in sim.evaluate(state).metrics.items() if score_labels.is_headline(score)]
    assert scores
    assert max(scores) > (0.1 if "digits" in config.data.source else -1)


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_has_the_command_and_the_variants(name):
    text = importlib.import_module(f"configs.{name}").__doc__ or ""
    assert f"python -m methods.main --config=configs/{name}.py --workdir=" in text
    for variant in base.VARIANTS:
        assert re.search(rf"\b{variant}\b", text.partition("Variants:")[2]), variant


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_takes_it_locked(name):
    values = flags.FlagValues()
    arguments = ["main", f"--config={ROOT / 'configs' / name}.py:smoke"]
    config = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        values(arguments)
    assert config.value.is_locked
    with pytest.raises(AttributeError, match="lr"):
        config.value.optimizer.lrr = 1.0
    with pytest.raises(AttributeError, match="seed"):
        config.value.sede = 1
    assert config.value.to_dict() == get(name, "smoke").to_dict()


@pytest.mark.parametrize("name", NAMES)
def test_unknown_variants_are_refused(name):
    with pytest.raises(ValueError, match="'huge' is not one of paper, small, smoke"):
        get(name, "huge")


def test_every_method_has_a_config_and_a_row_in_the_readme():
    methods = experiment.method_summaries()
    configured = {get(name, variant).method["name"] for name in NAMES for variant in base.VARIANTS}
    assert configured == set(methods)
    readme = (ROOT / "README.md").read_text()
    assert f"This library has {len(methods)} methods" in readme
    assert set(methods) <= set(re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE))


@pytest.mark.parametrize(("contrast", "trained"), [({}, 1_523_108), ({"on": True}, 1_561_124)], ids=["plain", "contrast"])
def test_what_a_client_of_fedpft_trains_at_full_size(contrast, trained):
    """On CIFAR-100: network (1,258,404), prompts, transformation, projection of the contrast."""
    config = get("fedpft", "paper")
    config.data.source = "cifar100"
    with config.unlocked():
        config.method.contrast = contrast or None
    (found,) = analysis.count_sizes(build(config))
    assert (found["whole"], found["trained"]) == (1_258_404, trained)
