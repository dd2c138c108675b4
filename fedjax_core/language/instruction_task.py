"""Language models on instructions, as a config names them: their data and their task.

  config.data.source = "instructions(folder='flan_ood', leave_out='sentiment')"
  config.data.partition = "by_domain"  # a client has one data set, or an equal part of one
  config.models = ("pretrained(folder='llama-7b', dtype='bfloat16', limit=512)",)
  config.adapter = "lora(rank=8)"

An encoder (BERT) scores each question's options and is also scored by the ROUGE-1 of the option
that it chooses; a language model (LLaMA) writes the answer, and its accuracy and loss are those of
the answers' tokens. Either is also scored on each test set by itself ("accuracy_record"), or where
clients are tested on their own sets, on each task.
"""

import dataclasses
import functools
import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Array, Examples, Net, PyTree
from fedjax_core.data import federated_data, sources
from fedjax_core.language import (
    chat_templates,
    generation,
    instruction_data,
    length_bucketing,
    load_pretrained,
    option_scoring,
    tfds_instructions,
)
from fedjax_core.language.models.transformer import DTYPES, Encoder, LanguageModel
from fedjax_core.lazy_array import blank_array
from fedjax_core.option_types import AtLeastOne, Positive, one_of
from fedjax_core.task import Task, check_tokens, make_partial_task
from fedjax_core.training import adapters, metrics
from fedjax_core.training.metrics import Pair, mean_pair

_log = logging.getLogger(__name__)
SOURCE, MODEL, PARTITION = "instructions", "pretrained", "by_domain"
TEMPLATES = ("alpaca", "chat")
WRITTEN = 80  # tokens of an answer at most, where no test answer has more


class Source(NamedTuple):
    """Where instructions are.

    Attributes:
      leave_out: the task that nobody trains on.
      folder: with the files, in the directory of data.
      train, test: files; if both are one, its examples have a field `split`.
      tested: "left_out" or "own", see `instruction_data.leave_task_out`.
      prepared: whether tfds sets are read in place of files (`tfds_instructions.py`).
      examples, test_examples: examples of each data set; None: all in files, 1000 and 200 of
        prepared sets.
    """

    leave_out: str
    folder: str = "."
    train: str = "train.jsonl.gz"
    test: str = "test.jsonl.gz"
    tested: Annotated[str, one_of(*instruction_data.TESTED)] = "left_out"
    prepared: bool = False
    examples: AtLeastOne | None = None
    test_examples: AtLeastOne | None = None


class Spec(NamedTuple):
    """Which model, and how it reads.

    Attributes:
      folder: in the public layout, or a GGUF file (`load_pretrained.py`).
      package: an installed package that brings a model along, in place of a folder.
      dtype: of parameters and computation.
      limit: the most tokens of a text.
      long: of longer ones: "refuse" them or "cut" their beginning, which is logged.
      remat: whether backward passes compute layers anew, to save memory.
      temperature: of an encoder's scores.
      template: of a language model's prompts: "alpaca", or its own "chat" template, where all turns
        of the assistant are learned.
      pack: whether short training texts of a client share examples of `limit` tokens, for methods that read no features.
    """

    folder: str | None = None
    package: str | None = None
    dtype: Annotated[str, one_of(*DTYPES)] = "float32"
    limit: AtLeastOne = 256
    long: Annotated[str, one_of(*instruction_data.LONG)] = "refuse"
    remat: bool = False
    temperature: Positive = option_scoring.TEMPERATURE
    template: Annotated[str, one_of(*TEMPLATES)] = "alpaca"
    pack: bool = False


class PreparedTask(NamedTuple):
    """The data of a source as a model reads them, and that model.

    Attributes:
      data: the federated data.
      model: without its weights.
      options: [U, T] tokens and mask of all options, for an encoder; else None.
      spec: of the model.
      folder: of the model.
      divided: the instances, in the order of the data's examples.
      kinds: names of the test sets, or of their tasks; "kind" in an example's x is an index of
        them, -1 for a training example of none of them.
      widths: to which batches are cut, beside the widest, see
        `length_bucketing.with_length_buckets`.
    """

    data: federated_data.FederatedData
    model: Encoder | LanguageModel
    options: dict[str, np.ndarray] | None
    spec: Spec
    folder: Path
    divided: instruction_data.LeaveOneOutSplit
    kinds: tuple[str, ...]
    widths: tuple[int, ...]


def check_spec(spec: Spec) -> None:
    """Raises ValueError for a model that does not have exactly one of folder and package."""
    if (spec.folder is None) == (spec.package is None):
        raise ValueError(f"model {MODEL!r} has folder={spec.folder!r}, package={spec.package!r}; it must have one of them")


def find_model_folder(spec: Spec) -> Path:
    """Returns the folder or the GGUF file of a model; raises FileNotFoundError if its package is not installed."""
    if spec.folder is None:
        return load_pretrained.find_package_folder(str(spec.package))
    return Path(spec.folder).expanduser()


def prepare_data(source: Source, data_dir: str | None, clients: int, seed: int, spec: Spec) -> PreparedTask:
    """Reads and tokenizes data; once, unless their files or the model's change.

    Raises:
      ValueError: damaged files, or a text that does not fit.
      OSError: a file is missing.
      ImportError: a package is missing; the message says how to get it.
    """
    check_spec(spec)
    root = Path(data_dir or os.environ.get(sources.DATA_VARIABLE) or Path.home() / "fedjax_data").expanduser() / source.folder
    folder = find_model_folder(spec)
    of_model = load_pretrained.list_files(folder) if folder.exists() else []
    stamps = _stamp_files([] if source.prepared else [root / source.train, root / source.test]), _stamp_files(of_model)
    return _prepare_data(source, root.absolute(), folder.absolute(), clients, seed, spec, stamps)


def _stamp_files(files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Returns name, size and time of change of each file that exists."""
    return tuple((file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files if file.is_file())


@functools.lru_cache(maxsize=2)
def _prepare_data(
    source: Source, root: Path, folder: Path, clients: int, seed: int, spec: Spec, stamps: tuple[Any, ...]
) -> PreparedTask:
    del stamps  # a part of the cache's key
    train, test = _read(source, root)
    divided = instruction_data.leave_task_out(train, test, source.leave_out, clients, seed, source.tested)
    generation.warn_of_rouge1([row.dataset for row in divided.test], [row.answer for row in divided.test])
    model, tokenizer = build_model(folder, spec), load_pretrained.load_tokenizer(folder)
    if spec.limit > model.context:
        raise ValueError(f"limit={spec.limit} is too much for {model.name}: it takes at most {model.context} tokens")
    name_kind = lambda row: row.dataset if source.tested == "left_out" else row.task
    kinds = tuple(dict.fromkeys(map(name_kind, divided.test)))
    test_kinds, train_kinds = (
        np.array([kinds.index(name) if name in kinds else -1 for name in map(name_kind, rows)], np.int32)
        for rows in (divided.test, divided.train)
    )
    if isinstance(model, Encoder):
        if spec.template != "alpaca" or spec.pack:
            raise ValueError(f"template={spec.template!r}, pack={spec.pack}: an encoder has neither; they are a language model's")
        data, options = instruction_data.build_option_data(divided, tokenizer, spec.limit, long=spec.long)
        choices = data.train.x["options"].shape[1]
        of_train = {"kind": train_kinds, "rouge1": _score_options(divided.train, choices)}
        data_with_scores = _add_entries(data, of_train, {"kind": test_kinds, "rouge1": _score_options(divided.test, choices)})
        return PreparedTask(data_with_scores, model, options, spec, folder, divided, kinds, _widths(data, divided, test_kinds))
    if spec.temperature != option_scoring.TEMPERATURE:
        raise ValueError(f"temperature={spec.temperature}: a language model has none; it divides an encoder's scores of options")
    if not model.stop:
        raise ValueError(f"{folder}: its config.json has no eos_token_id, with which an answer ends")
    if model.vocabulary is not None:
        check_tokens(model.stop[0], model.vocabulary, model.name, where=f"{folder}: eos_token_id: ")
    how = {"long": spec.long, "template": _read_template(folder, spec), "pack": spec.pack, "stop": model.stop}
    data = instruction_data.build_generation_data(divided, tokenizer, spec.limit, model.stop[0], **how)
    widths = () if spec.pack else _widths(data, divided, test_kinds)  # packed texts fill their rows
    by_set = dict(zip([row.dataset for row in divided.train], train_kinds, strict=True))
    packed_kinds = np.array([by_set[data.class_names[y]] for y in data.train.y], np.int32)
    data_with_kinds = _add_entries(data, {"kind": packed_kinds}, {"kind": test_kinds})
    return PreparedTask(data_with_kinds, model, None, spec, folder, divided, kinds, widths)


def _read_template(folder: Path, spec: Spec) -> str | chat_templates.ChatTemplate:
    """Returns the template of a language model's prompts."""
    return instruction_data.ALPACA if spec.template == "alpaca" else chat_templates.load_chat_template(folder)


def _widths(data: federated_data.FederatedData, divided: instruction_data.LeaveOneOutSplit, kind: np.ndarray) -> tuple[int, ...]:
    """Chooses the widths that pay with each client's training texts, and with each test set's."""
    train, test = (np.asarray(examples.x["mask"]) for examples in (data.train, data.test))
    lengths = [train[index].sum(1) for index in divided.train_index] + [test[kind == i].sum(1) for i in range(kind.max() + 1)]
    return length_bucketing.choose_widths(lengths, max(train.shape[1], test.shape[1]))


def _read(source: Source, root: Path) -> tuple[list[instruction_data.Instance], list[instruction_data.Instance]]:
    if source.prepared:
        return tfds_instructions.read(root, source.examples or 1000, source.test_examples or 200)
    both = source.train == source.test
    instances = []
    for file, part, number in ((source.train, "train", source.examples), (source.test, "test", source.test_examples)):
        rows = instruction_data.read(root / file, part if both else None)
        instances.append(rows if number is None else instruction_data.subsample(rows, number))
    return instances[0], instances[1]


def build_model(folder: Path, spec: Spec, config: dict[str, Any] | None = None) -> Encoder | LanguageModel:
    """Returns the model that a folder's config.json describes, or the one given in its place."""
    description: Any = load_pretrained.read_config(folder) if config is None else config
    family = registry.check_choice(
        f"model_type in {folder / load_pretrained.CONFIG}", description.get("model_type"), load_pretrained.FAMILIES
    )
    return load_pretrained.FAMILIES[family].build(description, spec.dtype, spec.remat)


def _add_entries(
    data: federated_data.FederatedData, of_train: dict[str, np.ndarray], of_test: dict[str, np.ndarray]
) -> federated_data.FederatedData:
    """Adds entries that scores read to x, also of training examples, of which some may be for validation."""
    train, test = (Examples(part.x | more, part.y) for part, more in ((data.train, of_train), (data.test, of_test)))
    return dataclasses.replace(data, train=train, test=test)


def _score_options(rows: Sequence[instruction_data.Instance], choices: int) -> np.ndarray:
    """Computes ROUGE-1 of each option with the answer, [n, choices]."""
    scores = np.zeros((len(rows), choices), np.float32)
    for i, row in enumerate(rows):
        scores[i, : len(row.options)] = generation.compute_rouge1(row.options, [row.answer] * len(row.options))
    return scores


def rouge1(outputs: dict[str, Array], x: PyTree, y: Array, mask: Array) -> Pair:
    """Computes the mean ROUGE-1 of the chosen options."""
    del y
    chosen = jnp.argmax(outputs["logits"], -1)
    return mean_pair(jnp.take_along_axis(x["rouge1"], chosen[:, None], 1)[:, 0], mask)


def accuracy(outputs: dict[str, Array], x: PyTree, y: Array, mask: Array) -> Pair:
    """Computes the accuracy of options, or of the answers' tokens."""
    del x
    return metrics.accuracy(outputs["logits"], outputs.get("targets", y), mask)


def _restrict_to_kind(score: Callable[..., Pair], kind: int) -> Callable[..., Pair]:
    """Restricts a score to one of the test sets."""
    return lambda outputs, x, y, mask: score(outputs, x, y, mask & (x["kind"] == kind))


_SHARED: dict[Hashable, tuple[Any, list[weakref.ref]]] = {}  # trees, and their leaves while somebody holds them


def _shared(key: Hashable, make: Callable[[], PyTree]) -> PyTree:
    """Returns `make()`, or its earlier result for this key while somebody holds it."""
    structure, leaves = _SHARED.get(key, (None, []))
    values = [leaf() for leaf in leaves]
    if structure is None or any(leaf is None for leaf in values):
        values, structure = jax.tree.flatten(make())
        _SHARED[key] = structure, [weakref.ref(leaf) for leaf in values]
    return structure.unflatten(values)


def _arrays(prepared: PreparedTask) -> Net:
    """Returns the weights, read later, which all tasks on one folder share."""
    model, spec, folder = prepared.model, prepared.spec, prepared.folder
    key = folder.resolve(), spec.dtype, *((f.name, f.stat().st_mtime_ns) for f in load_pretrained.list_files(folder))
    base = _shared(key, lambda: load_pretrained.load(folder, spec.dtype, spec.remat, later=True)[1])
    if not isinstance(model, Encoder):
        return Net(base, {})
    assert prepared.options is not None
    tokens, mask = prepared.options["tokens"], prepared.options["mask"]

    def embed_options() -> PyTree:
        params = jax.device_put(jax.device_get(base))
        net = option_scoring.add_option_embeddings(model, params, tokens, mask)
        return jax.device_get(net.params["head"])

    digest = hashlib.sha256(tokens.tobytes() + mask.tobytes()).hexdigest()
    return Net(base | {"head": _shared((*key, tokens.shape, digest), embed_options)}, {})


def build_task(prepared: PreparedTask, adapter: adapters.AdapterConfig | None, shapes_only: bool = False) -> Task:
    """Builds the model's task on its data. Tasks on one folder share its weights.

    Args:
      prepared: by `prepare_data`.
      adapter: trained with the model frozen; None: the model is trained whole.
      shapes_only: zeros that take no memory in place of its weights, which are not read.
    """
    is_encoder = isinstance(prepared.model, Encoder)
    if isinstance(prepared.model, Encoder):
        assert prepared.options is not None
        options = len(prepared.options["tokens"])
        model = option_scoring.make_option_scorer(prepared.model, options, prepared.spec.temperature)
    else:
        model = generation.make_writer(prepared.model)
    model = length_bucketing.with_length_buckets(model, prepared.widths, "right" if is_encoder else "left")
    if shapes_only:
        arrays: Any = jax.tree.map(blank_array, jax.eval_shape(model.init, jax.random.key(0)))
    else:
        arrays = _arrays(prepared)
    settings: dict[str, Any] = {"classes": prepared.data.classes, "population": prepared.data.clients}
    if adapter is None:
        trained = [name for name in arrays.params if name != "head" or not is_encoder]
        built = make_partial_task(model, arrays, trained, **settings)
    else:
        built = adapters.adapter_task(model, arrays, adapter, **settings)
    own: dict[str, Any] = {"rouge1": rouge1} if is_encoder else {}
    scores = dict(own)
    for i, kind in enumerate(prepared.kinds if len(prepared.kinds) > 1 else ()):
        scores |= {f"{name}_{kind}": _restrict_to_kind(score, i) for name, score in {"accuracy": accuracy, **own}.items()}
    return dataclasses.replace(built, scores=scores)


@functools.lru_cache(maxsize=2)
def _writer(model: LanguageModel, limit: int, beams: int) -> Callable[..., tuple[Array, Array]]:
    return jax.jit(functools.partial(model.generate, limit=limit, beams=beams))


@functools.lru_cache(maxsize=2)
def _chooser(model: Encoder, options: int, temperature: float) -> Callable[[PyTree, PyTree], Array]:
    scored = option_scoring.make_option_scorer(model, options, temperature)
    return jax.jit(lambda params, x: jnp.argmax(scored.apply(Net(params, {}), x)[0]["logits"], -1))


def choose_longest(prepared: PreparedTask) -> int:
    """Returns how many tokens a language model writes at most; logs how many test answers have more.

    As many as the longest test answer has, at least 80, as far as the context goes beside the longest prompt.
    """
    if isinstance(prepared.model, Encoder):
        return WRITTEN
    is_answer, mask = (np.asarray(prepared.data.test.x[name]) for name in ("answer", "mask"))
    answers = np.cumprod(is_answer[:, ::-1], 1).sum(1)  # of the last turn
    room = prepared.model.context - int((mask.sum(1) - answers).max())
    longest = max(WRITTEN, min(int(answers.max()), room))
    if cut := int((answers > longest).sum()):
        what = "%d of %d test answers have more than the %d tokens that %s has room to write, so none of them can be exact"
        _log.warning(what, cut, len(answers), longest, prepared.model.name)
    return longest


def generate_answers(
    prepared: PreparedTask, params: PyTree, rows: Sequence[int], batch: int = 32, longest: int = WRITTEN, beams: int = 1
) -> list[str]:
    """Generates a model's answers as strings.

    Args:
      prepared: by `prepare_data`.
      params: all of the model's, as `generation_params` gives them, or merged.
      rows: of the test set.
      batch: examples at once.
      longest: the most tokens that a language model writes; an encoder chooses one of the options.
      beams: of a language model; 1: greedily.

    Raises:
      ValueError: a language model has no room for a question before so long an answer.
    """
    if isinstance(prepared.model, Encoder):
        assert prepared.options is not None
        choose = _chooser(prepared.model, len(prepared.options["tokens"]), prepared.spec.temperature)
        chosen: list[int] = []
        for start in range(0, len(rows), batch):
            indices = np.pad(np.asarray(rows[start : start + batch]), (0, max(0, start + batch - len(rows))), mode="edge")
            x = {name: prepared.data.test.x[name][indices] for name in ("tokens", "mask", "options")}
            chosen += np.asarray(choose(params, x)).tolist()[: len(rows) - start]
        return [prepared.divided.test[row].options[k] for row, k in zip(rows, chosen, strict=True)]
    if longest >= prepared.model.context:
        raise ValueError(
            f"longest={longest} leaves no room for a question: {prepared.model.name} takes {prepared.model.context} tokens"
        )
    questions, tokenizer = [prepared.divided.test[row] for row in rows], load_pretrained.load_tokenizer(prepared.folder)
    widest = min(prepared.spec.limit, prepared.model.context - longest)
    how = {"long": prepared.spec.long, "template": _read_template(prepared.folder, prepared.spec), "stop": prepared.model.stop}
    try:
        tokens = instruction_data.tokenize_prompts(questions, tokenizer, widest, prepared.model.stop[0], **how)
    except ValueError as error:
        room = f"{prepared.model.name} takes {prepared.model.context} tokens, of which longest={longest} are for the answer"
        raise ValueError(f"{error} ({room})") from None
    write = functools.partial(_writer(prepared.model, longest, beams), params)
    return tokenizer.decode(generation.generate_completions(write, tokens, batch, widest=widest))


def generation_params(prepared: PreparedTask, adapter: adapters.AdapterConfig | None, frozen: Net, net: Net) -> PyTree:
    """Returns the parameters that `generate` takes: an adapter beside the frozen kernels, unmerged."""
    if adapter is None:
        return frozen.params | net.params
    own = adapters.make_adapter(adapter, frozen.params, prepared.model.name)
    return own.wrap(own.correct(frozen.params, net.params.get(adapters.CORRECTION)), net.params[adapters.ENTRY], None)
