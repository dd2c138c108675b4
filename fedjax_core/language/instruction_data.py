"""Instruction data: questions in words with answers in words, by client, as token arrays.

  train, test = read("train.jsonl.gz"), read("test.jsonl.gz")
  divided = leave_task_out(train, test, "sentiment", clients=6, seed=0)
  data, options = build_option_data(divided, tokenizer, limit=256)  # for `make_option_scorer`
  data = build_generation_data(divided, tokenizer, limit=512, end=eos)  # for `make_writer`

A file has one JSON object per line, with the fields task, dataset, instruction and output, where
the instruction may end with the permitted answers (FLAN's form):

  OPTIONS:
  - yes
  - no

or with input and target in place of instruction and output, the permitted answers in a list
`options`, and maybe a field split. An input beside an instruction, Alpaca's form, is
appended to it after a blank line, before its options. Or a line has a conversation in place of instruction and output,
for a model's chat template:

  "messages": [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes."}]

It may be compressed with gzip. Further fields, such as ids, have no meaning.

A jitted round needs one shape, so a data set has one T, the smallest multiple of `multiple` that
holds its longest text, or the limit. Longer texts than the limit are refused, or cut where a config
says so; the number of cut texts is logged.
"""

import dataclasses
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Examples
from fedjax_core.data import apportion, federated_data, partition
from fedjax_core.data.sources import Dataset
from fedjax_core.data.sources.file_checks import SPLIT_SEED, read_json_lines
from fedjax_core.language.chat_templates import ROLES, ChatTemplate, Messages

ALPACA = "### Instruction:\n{instruction}\n\n### Response:\n"
OPTIONS = "OPTIONS:"
TESTED = ("left_out", "own")
LONG = ("refuse", "cut")
Row = tuple[list[int], list[bool]]  # tokens, and which are answers
_log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """The interface of a tokenizer; `load_pretrained.Tokenizer` is one."""

    def encode(self, texts: Sequence[str], special: bool = True, limit: int | None = None) -> list[list[int]]: ...


@dataclasses.dataclass(frozen=True)
class Instance:
    """One question.

    Attributes:
      task: its kind, such as "sentiment"; several data sets may have one task.
      dataset: where it comes from, such as "sst2".
      instruction: the whole question, with its options.
      question: the same without them.
      options: the permitted answers, each once; may be empty.
      answer: the right one; may be empty.
      messages: (role, content) of a conversation, which ends with the answer; () in other forms.
    """

    task: str
    dataset: str
    instruction: str
    question: str
    options: tuple[str, ...]
    answer: str
    messages: tuple[tuple[str, str], ...] = ()

    @property
    def turns(self) -> tuple[tuple[str, str], ...]:
        """The conversation; instruction and answer where it has no other."""
        return self.messages or (("user", self.instruction), ("assistant", self.answer))


def read(path: str | Path, split: str | None = None) -> list[Instance]:
    """Reads a file of the form above, and warns of texts in it that are not read.

    Args:
      path: packed if it ends in .gz.
      split: only the examples whose field `split` has this value; None: all.

    Raises:
      ValueError: the file is damaged, a line lacks a field, or no example is left.
    """
    instances, unread = [], Counter()
    for place, row in read_json_lines(Path(path)):
        try:
            if split is None or row["split"] == split:
                instances.append(_parse_instance(row))
                unread.update(_list_unread(row, instances[-1]))
        except (KeyError, TypeError) as error:
            needed = "task, dataset, instruction (or input) and output (or target), each a text, or messages"
            raise ValueError(f"{place}: lacks {error}; a line must have {needed}") from None
    if not instances:
        raise ValueError(f"{path} has no examples" + ("" if split is None else f" with split={split!r}"))
    for name, number in unread.items():
        message = "%s: %d of %d lines have a text in %r that is not read: write it into instruction, input, output or messages"
        _log.warning(message, path, number, len(instances), name)
    return instances


def subsample(instances: Sequence[Instance], number: int) -> list[Instance]:
    """Keeps `number` examples of each data set, always the same ones, in their order."""
    kept = []
    for name in dict.fromkeys(instance.dataset for instance in instances):
        indices = [i for i, instance in enumerate(instances) if instance.dataset == name]
        if not 1 <= number <= len(indices):
            raise ValueError(f"examples={number} of each data set: must lie between 1 and the {len(indices)} examples of {name}")
        chosen = apportion.make_generator(SPLIT_SEED, f"fewer {name}").permutation(len(indices))[:number]
        kept += [indices[i] for i in chosen]
    return [instances[i] for i in sorted(kept)]


def _parse_messages(rows: Any) -> tuple[tuple[str, str], ...]:
    """Returns (role, content) of each message; raises TypeError for anything else."""
    is_message = lambda row: isinstance(row, dict) and row.get("role") in ROLES and isinstance(row.get("content"), str)
    if not isinstance(rows, list) or len(rows) < 2 or not all(map(is_message, rows)) or rows[-1]["role"] != "assistant":
        raise TypeError(f"messages with a role of {', '.join(ROLES)} and content, the last of the assistant")
    return tuple((row["role"], row["content"]) for row in rows)


def _parse_instance(row: dict[str, Any]) -> Instance:
    messages = _parse_messages(row["messages"]) if "messages" in row else ()
    if messages:
        row = row | {"instruction": messages[-2][1], "output": messages[-1][1]}
    instruction = row["instruction"] if "instruction" in row else row["input"]
    more = "" if messages or "instruction" not in row or row.get("input") is None else row["input"]
    answer = row["output"] if "output" in row else row["target"]
    texts = {"task": row["task"], "dataset": row["dataset"], "instruction": instruction, "input": more, "output": answer}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"a text in {name!r}")
    question, options = parse_options(instruction)
    if more.strip():
        block = instruction[len(question) :]
        instruction = "\n\n".join(filter(str.strip, (question, more))) + block
        question, options = parse_options(instruction)
    if "options" in row:
        if not isinstance(row["options"], list) or not all(isinstance(option, str) for option in row["options"]):
            raise TypeError("a list of texts in 'options'")
        options = tuple(dict.fromkeys(option.strip() for option in row["options"]))
    texts |= {"messages": "".join(content for _, content in messages), "options": "".join(options)}
    for name, value in texts.items():
        if half := re.search("[\ud800-\udfff]", value):  # of UTF-16's pairs, as a text cut between both has
            raise TypeError(f"the other half of the character {half[0]!r} in {name!r}")
    return Instance(row["task"], row["dataset"], instruction, question, options, answer, messages)


def _list_unread(row: dict[str, Any], instance: Instance) -> list[str]:
    """Lists the fields by which layouts ask or answer, whose texts an instance does not have."""
    asked = "\n".join(content for _, content in instance.turns)
    texts = {name: text.strip() for name, text in row.items() if isinstance(text, str)}
    question = ("instruction", "input", "context") if instance.messages else ("context",)
    names = [name for name in question if texts.get(name, "") not in asked]
    return names + [name for name in ("output", "target") if texts.get(name, "") not in ("", instance.answer.strip())]


def parse_options(instruction: str) -> tuple[str, tuple[str, ...]]:
    r"""Splits an instruction into (question, options), with () where it ends in no options.

    >>> parse_options("Is it?\n\nOPTIONS:\n- yes\n- no")
    ('Is it?', ('yes', 'no'))
    """
    question, marker, block = instruction.rpartition(OPTIONS)
    lines = [line for line in block.split("\n") if line.strip()]
    if not marker or not lines or not all(line.startswith("- ") for line in lines):
        return instruction, ()
    return question.rstrip(), tuple(dict.fromkeys(line[2:].strip() for line in lines))


class LeaveOneOutSplit(NamedTuple):
    """Instances and the clients that have them.

    Attributes:
      train: of the tasks that are trained.
      test: of the task that was left out, or of the others.
      train_index: N arrays of example indices into `train`.
      test_index: N arrays into `test`.
      datasets: names of the training sets; client i has the (i mod their number)-th.
    """

    train: list[Instance]
    test: list[Instance]
    train_index: tuple[np.ndarray, ...]
    test_index: tuple[np.ndarray, ...]
    datasets: tuple[str, ...]


def leave_task_out(
    train: Sequence[Instance], test: Sequence[Instance], task: str, clients: int, seed: int, tested: str = "left_out"
) -> LeaveOneOutSplit:
    """Trains on all tasks but one, each client on one data set or an IID part of it.

    Args:
      train: all training examples.
      test: all test examples.
      task: the one that nobody trains on.
      clients: N, a multiple of the number of training sets: with six of them, 6 clients have one
        each, 30 a fifth each.
      seed: data seed of that division.
      tested: "left_out": everybody is tested on all test examples of the task left out; "own": on
        the client's own set's.

    Raises:
      ValueError: there is no such task, nothing is left to train or to test, or clients is no such
        multiple.
    """
    registry.check_choice("task to leave out", task, sorted({instance.task for instance in [*train, *test]}))
    registry.check_choice("tested", tested, TESTED)
    train_instances = [instance for instance in train if instance.task != task]
    test_instances = [instance for instance in test if (instance.task == task) == (tested == "left_out")]
    if not train_instances or not test_instances:
        numbers = f"{len(train_instances)} training and {len(test_instances)} test examples"
        raise ValueError(f"without task {task!r} there are {numbers}: both must be at least 1")
    names = tuple(dict.fromkeys(instance.dataset for instance in train_instances))
    number = {name: i for i, name in enumerate(names)}
    domains = np.array([number[instance.dataset] for instance in train_instances], np.int32)
    if tested == "own":
        test_instances = [instance for instance in test_instances if instance.dataset in number]
        _check_own_tests(Counter(instance.dataset for instance in test_instances), names, clients)
        own = np.array([number[instance.dataset] for instance in test_instances], np.int32)
        train_index, test_index = partition.by_domain(domains, own, clients, seed)
    else:
        train_index, _ = partition.by_domain(domains, domains, clients, seed)
        test_index = [np.arange(len(test_instances), dtype=np.int32)] * clients
    return LeaveOneOutSplit(train_instances, test_instances, tuple(train_index), tuple(test_index), names)


def _check_own_tests(sizes: Mapping[str, int], names: Sequence[str], clients: int) -> None:
    """Raises ValueError for a data set with fewer test examples than clients."""
    for i, name in enumerate(names):
        if sizes.get(name, 0) < (needed := len(range(i, clients, len(names)))):
            what = f"data set {name!r} has {sizes.get(name, 0)} test examples for {needed} clients"
            raise ValueError(f"tested='own': {what}, each of which needs at least one; take fewer clients, or tested='left_out'")


def build_option_data(
    divided: LeaveOneOutSplit, tokenizer: Tokenizer, limit: int, multiple: int = 16, *, long: str = "refuse"
) -> tuple[federated_data.FederatedData, dict[str, np.ndarray]]:
    """Builds data for an encoder that scores options.

    Args:
      divided: every instance has options, the answer among them.
      tokenizer: the encoder's.
      limit: the most tokens of a text.
      multiple: T is one of it, or the limit.
      long: "refuse" longer texts, or "cut" all but the tail of a question or an option.

    Returns:
      (data, options). x is {"tokens": [n, T] int32, "mask": [n, T] bool, padding on the right,
      "options": [n, K] int32, the example's options as indices into the second result, -1 where
      there are no more}; y is the answer's index among the example's. The second has "tokens" and
      "mask" [U, T'] of all options of all examples, each text once.

    Raises:
      ValueError: an answer is not among its options, a conversation has several messages, a text is
        longer than the limit and `long` is "refuse", or the limit has no room for text.
    """
    registry.check_choice("long", long, LONG)
    both = [*divided.train, *divided.test]
    for instance in both:
        if len(instance.turns) != 2:
            raise ValueError(
                f"{instance.dataset}: an encoder reads one question; conversations of several messages need a language model"
            )
        if instance.answer.strip() not in instance.options:
            answer, options = repr(instance.answer), list(instance.options)
            raise ValueError(f"{instance.dataset}: the answer {answer} must be one of its options {options}")
    different = dict.fromkeys(option for instance in both for option in instance.options)
    option_index = {option: i for i, option in enumerate(different)}
    widest = max(len(instance.options) for instance in both)

    def encode(texts: list[str], datasets: list[str], what: str) -> tuple[np.ndarray, np.ndarray]:
        tokens = tokenizer.encode(texts)
        if long == "refuse":
            for text, dataset in zip(tokens, datasets, strict=True):
                _check_length(len(text), limit, dataset)
        cut = [dataset for text, dataset in zip(tokens, datasets, strict=True) if len(text) > limit]
        _log_cut(cut, datasets, limit, what)
        return pad_sequences(tokenizer.encode(texts, limit=limit) if cut else tokens, multiple, side="right", widest=limit)

    def examples(instances: list[Instance], what: str) -> Examples:
        tokens, mask = encode([instance.question for instance in instances], [instance.dataset for instance in instances], what)
        options = np.full((len(instances), widest), -1, np.int32)
        for i, instance in enumerate(instances):
            options[i, : len(instance.options)] = [option_index[option] for option in instance.options]
        y = np.array([instance.options.index(instance.answer.strip()) for instance in instances], np.int32)
        return Examples({"tokens": tokens, "mask": mask, "options": options}, y)

    names = tuple(f"option {i}" for i in range(1, widest + 1))
    data = _federated(divided, examples(divided.train, "training texts"), examples(divided.test, "test texts"), names)
    tokens, mask = encode(list(option_index), ["options"] * len(option_index), "texts")
    return data, {"tokens": tokens, "mask": mask}


def build_generation_data(
    divided: LeaveOneOutSplit,
    tokenizer: Tokenizer,
    limit: int,
    end: int,
    *,
    long: str = "refuse",
    template: str | ChatTemplate = ALPACA,
    multiple: int = 16,
    pack: bool = False,
    stop: Sequence[int] = (),
) -> federated_data.FederatedData:
    """Builds data for a language model that writes answers.

    Args:
      divided: the instances.
      tokenizer: the model's.
      limit: the most tokens of prompt, answer and end.
      end: the token that ends an answer.
      long: "refuse" longer texts, or "cut" the instruction's beginning.
      template: of the prompt, with {instruction} in it; or a model's own, of conversations, where
        all of the assistant's turns are answers.
      multiple: T is one of it, or the limit.
      pack: whether a client's training texts share examples, as many as have room in the limit.
      stop: further tokens that end a turn of the assistant, where a model's own template writes them, or a tokenizer
        appends them to a text.

    Returns:
      The data. x is {"tokens": [n, T] int32, "mask": [n, T] bool, padding on the left, "answer":
      [n, A] bool: which of the last A places are the answer's (its end included)}; A is the longest
      answer's length. Packed examples have "segments" [n, T] int32, the number of each token's
      text. y is the example's data set, in the order of `divided.datasets`, and then of the test
      examples.

    Raises:
      ValueError: a text is longer than the limit and `long` is "refuse", or an answer alone is.
    """
    if not isinstance(template, ChatTemplate) and any(len(i.turns) != 2 for i in (*divided.train, *divided.test)):
        raise ValueError("conversations of several messages need template='chat'")
    names = tuple(dict.fromkeys([*divided.datasets, *(instance.dataset for instance in divided.test)]))

    def tokenize(instances: list[Instance], what: str) -> list[Row]:
        if isinstance(template, ChatTemplate):
            return tokenize_chats(instances, tokenizer, template, limit, {end, *stop}, long=long, what=what)
        pairs = tokenize_pairs(instances, tokenizer, limit, end, long=long, template=template, what=what, stop=stop)
        return [(prompt + answer, [False] * len(prompt) + [True] * len(answer)) for prompt, answer in pairs]

    def examples(rows: list[Row], instances: list[Instance]) -> Examples:
        tokens, mask = pad_sequences([tokens for tokens, _ in rows], multiple, widest=limit)
        answers = [is_answer[is_answer.index(True) :] for _, is_answer in rows]
        answer = pad_sequences(answers, 1)[0].astype(bool)
        y = np.array([names.index(instance.dataset) for instance in instances], np.int32)
        return Examples({"tokens": tokens, "mask": mask, "answer": answer}, y)

    train, instances = tokenize(divided.train, "training texts"), divided.train
    segments = None
    if pack:
        bins = [pack_rows([len(train[i][0]) for i in index], limit) for index in divided.train_index]
        together = [[int(index[i]) for i in row] for index, own in zip(divided.train_index, bins, strict=True) for row in own]
        ends = np.cumsum([0, *map(len, bins)])
        divided = divided._replace(train_index=tuple(np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(ends)))
        segments = [[number for number, i in enumerate(row) for _ in train[i][0]] for row in together]
        instances = [instances[row[0]] for row in together]
        train = [([t for i in row for t in train[i][0]], [a for i in row for a in train[i][1]]) for row in together]
    packed = examples(train, instances)
    if segments is not None:
        packed = packed._replace(x=packed.x | {"segments": pad_sequences(segments, multiple, widest=limit)[0]})
    return _federated(divided, packed, examples(tokenize(divided.test, "test texts"), divided.test), names)


def pack_rows(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Packs texts into as few rows as first-fit of the longest first finds.

    >>> pack_rows([3, 7, 2, 5], limit=10)
    [[1, 0], [3, 2]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((row for row, left in enumerate(room) if lengths[i] <= left), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(limit)
        rows[place].append(i)
        room[place] -= lengths[i]
    return rows


def tokenize_chats(
    instances: Sequence[Instance],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    limit: int,
    ends: Collection[int],
    *,
    long: str = "refuse",
    what: str = "texts",
) -> list[Row]:
    """Tokenizes conversations, each as (tokens, which are the assistant's).

    A turn of the assistant ends with the first of `ends`, or where its template writes none, with
    all that it writes; then a warning is logged, because written answers do not end either. Long
    conversations are cut as `_find_chat_cut` says.

    Raises as `build_generation_data`, and for a template that writes a turn in another way once
    more turns follow.
    """
    rows, cut, is_open = [], [], False
    for instance in instances:
        turns, encode = instance.turns, _make_chat_encoder(tokenizer, template)
        whole, first = encode(turns), 0
        is_answer = [False] * len(whole)
        for i, (role, _) in enumerate(turns):
            if role == "assistant":
                before, after = encode(turns[:i], True), encode(turns[: i + 1])
                first, last = _count_shared(before, whole), _count_shared(after, whole)
                if first < len(before) - 1 or last < len(after) - 1 or first >= last:
                    raise ValueError(
                        f"{instance.dataset}: the chat template writes turn {i + 1} in another way in {len(turns)} turns"
                    )
                last = next((place + 1 for place in range(first, last) if whole[place] in ends), last)
                is_open |= whole[last - 1] not in ends
                learned = max(first, 1)  # nothing stands before the first token, by which it could be predicted
                is_answer[learned:last] = [True] * (last - learned)
        number = len(is_answer) - is_answer[::-1].index(True)  # what follows the last answer is never read
        kept = _find_chat_cut(encode, turns[:-1], number, number - first, limit, long, instance.dataset)
        rows.append(([whole[place] for place in kept], [is_answer[place] for place in kept]))
        cut += [instance.dataset] if len(kept) < number else []
    _log_cut(cut, [instance.dataset for instance in instances], limit, what)
    if is_open:
        _log.warning("the chat template ends no turn by an eos_token_id of the model, so written answers do not end")
    return rows


def _make_chat_encoder(tokenizer: Tokenizer, template: ChatTemplate) -> Callable[..., list[int]]:
    """Makes (turns, whether the assistant's next turn begins) -> tokens; the template has the special ones."""
    return lambda turns, prompt=False: tokenizer.encode([template.render(turns, prompt)], special=False)[0]


def _find_chat_cut(
    encode: Callable[..., list[int]],
    asked: Messages,
    number: int,
    taken: int,
    limit: int,
    long: str,
    dataset: str,
) -> list[int]:
    """Returns the places of a conversation's first `number` tokens that are kept, of which an answer takes some.

    The beginning of the user's first message is left out. Where that is not enough, it goes with the whole turns up to a
    later message of the user, of which the end stays, so that no turn is read below another's header.
    """
    registry.check_choice("long", long, LONG)
    over = number - limit
    if over <= 0:
        return list(range(number))
    if long == "refuse":
        _check_length(number, limit, dataset)
    users = [i for i, (role, _) in enumerate(asked) if role == "user"] or [0]
    contents = [_find_content(encode, asked, i) for i in users]
    header = contents[0][0]
    for start, end in contents:
        begin = max(header + over, start)
        if begin < end:
            return [*range(header), *range(begin, number)]
    raise ValueError(f"{dataset}: limit={limit} leaves no room for a message beside an answer of {taken} tokens")


def _find_content(encode: Callable[..., list[int]], asked: Messages, i: int) -> tuple[int, int]:
    """Returns the places in the prompt of `asked` where the content of message i begins and ends."""
    (role, content), prompt = asked[i], encode(asked, True)
    longer_before, longer_behind = (
        encode([*asked[:i], (role, text), *asked[i + 1 :]], True) for text in (f"#{content}", f"{content}#")
    )
    return _count_shared(longer_before, prompt), len(prompt) - _count_shared(longer_behind[::-1], prompt[::-1])


def tokenize_pairs(
    instances: Sequence[Instance],
    tokenizer: Tokenizer,
    limit: int,
    end: int,
    *,
    long: str = "refuse",
    template: str = ALPACA,
    what: str = "texts",
    stop: Sequence[int] = (),
) -> list[tuple[list[int], list[int]]]:
    """Tokenizes each example as (prompt, answer with `end`), together, as a model reads them.

    Raises as `build_generation_data`; `what` they are, the log says of those that are cut.
    """
    ends, texts = {end, *stop}, [template.replace("{instruction}", instance.instruction) for instance in instances]
    wholes = _encode_unended(tokenizer, [text + instance.answer for text, instance in zip(texts, instances, strict=True)], ends)
    fit, pairs, cut = _make_cutter(tokenizer, limit, long, template, ends), [], []
    for instance, prompt, whole in zip(instances, _encode_unended(tokenizer, texts, ends), wholes, strict=True):
        n = _count_shared(prompt, whole)
        answer = whole[n:] + [end]
        pairs.append((fit(prompt, n, len(answer), instance.dataset), answer))
        cut += [instance.dataset] if len(pairs[-1][0]) < n else []
    _log_cut(cut, [instance.dataset for instance in instances], limit, what)
    return pairs


def tokenize_prompts(
    instances: Sequence[Instance],
    tokenizer: Tokenizer,
    limit: int,
    end: int,
    *,
    long: str = "refuse",
    template: str | ChatTemplate = ALPACA,
    stop: Sequence[int] = (),
) -> list[list[int]]:
    """Tokenizes the prompts alone, as `tokenize_pairs` or `tokenize_chats`; at most `limit` tokens each."""
    if isinstance(template, ChatTemplate):
        encode, rows, cut = _make_chat_encoder(tokenizer, template), [], []
        for instance in instances:
            turns, row = instance.turns[:-1], encode(instance.turns[:-1], True)
            kept = _find_chat_cut(encode, turns, len(row), 0, limit, long, instance.dataset)
            rows.append([row[place] for place in kept])
            cut += [instance.dataset] if len(kept) < len(row) else []
        _log_cut(cut, [instance.dataset for instance in instances], limit, "prompts")
        return rows
    fit = _make_cutter(tokenizer, limit, long, template, {end, *stop})
    texts = [template.replace("{instruction}", instance.instruction) for instance in instances]
    whole = _encode_unended(tokenizer, texts, {end, *stop})
    fitted = [fit(prompt, len(prompt), 0, instance.dataset) for instance, prompt in zip(instances, whole, strict=True)]
    cut = [instance.dataset for instance, a, b in zip(instances, fitted, whole, strict=True) if len(a) < len(b)]
    _log_cut(cut, [instance.dataset for instance in instances], limit, "prompts")
    return fitted


def _encode_unended(tokenizer: Tokenizer, texts: Sequence[str], ends: Collection[int]) -> list[list[int]]:
    """Encodes texts without the end, one of `ends`, that a tokenizer may append."""
    return [tokens[:-1] if tokens and tokens[-1] in ends else tokens for tokens in tokenizer.encode(texts)]


def _check_length(tokens: int, limit: int, dataset: str) -> None:
    """Raises ValueError for a text that is longer than the limit."""
    if tokens > limit:
        raise ValueError(f"{dataset}: a text has {tokens} tokens, limit={limit}; raise it, or take long='cut'")


def _log_cut(cut: Sequence[str], datasets: Sequence[str], limit: int, what: str) -> None:
    """Logs how many texts of each data set were cut: `cut` has the sets of those, `datasets` all."""
    totals = Counter(datasets)
    for dataset, number in Counter(cut).items():
        message = "%s: %d of %d %s had more than %d tokens; their beginnings were left out"
        _log.warning(message, dataset, number, totals[dataset], what, limit)


def _make_cutter(tokenizer: Tokenizer, limit: int, long: str, template: str, ends: Collection[int]):
    """Makes (prompt, how many of its tokens are not the answer's, tokens taken, data set) -> a prompt that fits.

    It keeps the template, and a tail of the instruction.
    """
    registry.check_choice("long", long, LONG)
    before, after = _encode_unended(tokenizer, template.split("{instruction}", 1), ends)

    def fit(prompt: list[int], number: int, taken: int, dataset: str) -> list[int]:
        over = number + taken - limit
        if over <= 0:
            return prompt[:number]
        if long == "refuse":
            _check_length(number + taken, limit, dataset)
        kept, last = _count_shared(before, prompt), len(prompt) - _count_shared(after[::-1], prompt[::-1])
        if kept + over >= last:
            raise ValueError(f"{dataset}: limit={limit} leaves no room for an instruction beside an answer of {taken} tokens")
        return prompt[:kept] + prompt[kept + over : number]

    return fit


def _count_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the number of leading tokens that two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pad_sequences(
    sequences: Sequence[Sequence[int]], multiple: int, side: str = "left", widest: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pads sequences of tokens to one array: (tokens [n, T] int32, mask [n, T] bool).

    Args:
      sequences: of any lengths.
      multiple: T is the smallest multiple of it that holds the longest sequence, at least one.
      side: of the padding, "left" or "right"; it has the token 0.
      widest: largest T, such as a limit that all examples keep; None: no limit.
    """
    registry.check_choice("side", side, ("left", "right"))
    width = -(-max([1, *map(len, sequences)]) // multiple) * multiple
    width = width if widest is None else min(width, widest)
    tokens, mask = np.zeros((len(sequences), width), np.int32), np.zeros((len(sequences), width), bool)
    for i, row in enumerate(sequences):
        here = slice(width - len(row), None) if side == "left" else slice(len(row))
        tokens[i, here], mask[i, here] = row, True
    return tokens, mask


def _federated(divided: LeaveOneOutSplit, train: Examples, test: Examples, names: tuple[str, ...]) -> federated_data.FederatedData:
    dataset = Dataset("text", train, test, names)
    return federated_data.from_index(dataset, divided.train_index, divided.test_index)
