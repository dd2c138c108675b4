"""Instruction data: files are read, tasks left out, texts become arrays, and nothing is cut in
silence.
"""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from fedjax_core.language import instruction_data
from fedjax_core.language.instruction_data import Instance

TASKS = {"mood": ("films", "tweets"), "logic": ("pairs", "proofs"), "facts": ("school", "news")}
END = 9


class Letters:
    """A tokenizer: a letter is a token (its code), behind a first token 1."""

    def encode(self, texts, special=True, limit=None):
        found = [[1] * special + list(text.encode()) for text in texts]
        return [row if limit is None or len(row) <= limit else row[:special] + row[special - limit :] for row in found]


def decoded(tokens) -> str:
    return bytes(token for token in tokens if token > 9).decode()


def rows(each: int) -> list[Instance]:
    found = []
    for task, datasets in TASKS.items():
        for dataset in datasets:
            for i in range(each):
                options = ("no", "yes") if task != "facts" else ("a cat", "a dog", f"{dataset} {i}")
                question = f"{dataset}? {'really ' * i}"
                block = "\n".join(f"- {option}" for option in options)
                text = f"{question}\n\nOPTIONS:\n{block}"
                found.append(Instance(task, dataset, text, question.rstrip(), options, options[i % len(options)]))
    return found


def divided(**how) -> instruction_data.LeaveOneOutSplit:
    return instruction_data.leave_task_out(rows(10), rows(5), **({"task": "logic", "clients": 4, "seed": 0} | how))


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_read(tmp_path, packed):
    text = "".join(
        json.dumps({"task": row.task, "dataset": row.dataset, "instruction": row.instruction, "output": row.answer}) + "\n"
        for row in rows(3)
    )
    path = tmp_path / f"train.jsonl{'.gz' * packed}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert instruction_data.read(path) == rows(3)


def test_the_other_form_is_read_too(tmp_path):
    row = {"task": "mood", "dataset": "films", "input": "Good?", "target": "yes", "options": ["no", "yes"], "split": "test"}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"split": "train", "target": ""}) + "\n")
    assert instruction_data.read(path, "test") == [Instance("mood", "films", "Good?", "Good?", ("no", "yes"), "yes")]
    assert [found.answer for found in instruction_data.read(path)] == ["yes", ""]
    with pytest.raises(ValueError, match="no examples with split='other'"):
        instruction_data.read(path, "other")


def test_an_input_is_read_behind_its_instruction_and_other_texts_are_told(tmp_path, caplog):
    read = {"task": "a", "dataset": "b", "instruction": "Translate.", "output": "Bonjour"}
    said = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    lines = [
        read | {"input": "Good morning", "id": 3, "source": "web"},
        read | {"input": ""},
        read | {"input": None, "target": None},
    ]
    path = tmp_path / "rows.jsonl"

    def texts(lines):
        path.write_text("\n".join(map(json.dumps, lines)))
        return [row.instruction for row in instruction_data.read(path)]

    assert texts(lines) == ["Translate.\n\nGood morning", "Translate.", "Translate."]
    assert texts([read | {"context": "Translate"}, read | said | {"instruction": "Hi", "output": "Hello"}]) == ["Translate.", "Hi"]
    flan = read | {"instruction": "Is it?\n\nOPTIONS:\n- yes\n- no", "input": "A film"}
    assert texts([flan, read | {"instruction": "", "input": "Hi"}]) == ["Is it?\n\nA film\n\nOPTIONS:\n- yes\n- no", "Hi"]
    assert not caplog.messages
    assert texts([read | {"context": "Of 1900", "target": "Salut"}, read | said, read]) == ["Translate.", "Hi", "Translate."]
    told = ("context", "target", "instruction", "output")
    for name, text in zip(told, caplog.messages, strict=True):
        assert f"1 of 3 lines have a text in {name!r} that is not read" in text
    with pytest.raises(ValueError, match="line 1: lacks a text in 'input'"):
        texts([read | {"input": 5}])


def test_fewer_rows_of_each_data_set():
    few = instruction_data.subsample(rows(10), 4)
    assert [row.dataset for row in few] == [name for names in TASKS.values() for name in names for _ in range(4)]
    assert few == [row for row in rows(10) if row in few], "in their order"
    assert few == instruction_data.subsample(rows(10), 4)
    with pytest.raises(ValueError, match="examples=11 of each data set: must lie between 1 and the 10 examples of films"):
        instruction_data.subsample(rows(10), 11)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: is not JSON"),
        ('{"task": "a", "dataset": "b", "output": "c"}', "line 2: lacks 'input'"),
        ('{"task": "a", "dataset": "b", "instruction": "c", "output": 3}', "line 2: lacks a text in 'output'"),
        ('{"task": "a", "dataset": "b", "input": "c", "target": "d", "options": "e"}', "line 2: lacks a list of texts"),
        (
            r'{"task": "a", "dataset": "b", "input": "c\ud83d", "target": "d"}',
            r"line 2: lacks the other half .*'\\ud83d' in 'instruction'",
        ),
        (
            r'{"task": "a", "dataset": "b", "messages": [{"role": "user", "content": "\ude00"}, '
            r'{"role": "user", "content": ""}, {"role": "assistant", "content": "\ud83d\ude00"}]}',
            r"line 2: lacks the other half of the character '\\ude00' in 'messages'",
        ),
        ("[]", "line 2: is list, must be an object"),
        ("[" * 100_000, "line 2: has lists or objects inside each other"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, line, says):
    path = tmp_path / "train.jsonl"
    path.write_text('{"task": "a", "dataset": "b", "instruction": "c", "output": ""}\n' + line)
    with pytest.raises(ValueError, match=says):
        instruction_data.read(path)
    packed = tmp_path / "train.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    with pytest.raises(ValueError, match="truncated or damaged"):
        instruction_data.read(packed)


@pytest.mark.parametrize(
    ("text", "question", "options"),
    [
        ("Is it?\n\nOPTIONS:\n- yes\n- no", "Is it?", ("yes", "no")),
        ("so tired.... \nOPTIONS:\n- it's not\n- a - b\n- a - b", "so tired....", ("it's not", "a - b")),
        ("the OPTIONS: are open", "the OPTIONS: are open", ()),
        ("OPTIONS:\n- a\n\nWhich?", "OPTIONS:\n- a\n\nWhich?", ()),
        ("of OPTIONS:\n- old\nOPTIONS:\n- new", "of OPTIONS:\n- old", ("new",)),
        ("", "", ()),
    ],
)
def test_options_are_parsed(text, question, options):
    assert instruction_data.parse_options(text) == (question, options)


def test_one_task_is_left_out():
    found = divided()
    assert {row.task for row in found.train} == {"mood", "facts"}
    assert {row.task for row in found.test} == {"logic"}
    assert found.datasets == ("films", "tweets", "school", "news")
    for i, index in enumerate(found.train_index):
        assert {found.train[row].dataset for row in index} == {found.datasets[i]}
        assert len(index) == 10
        assert found.test_index[i].tolist() == list(range(10))


def test_more_clients_have_parts_of_a_data_set():
    found = divided(clients=20, tested="own")
    assert {row.task for row in found.test} == {"mood", "facts"}
    for name in found.datasets:
        mine = [i for i in range(20) if {found.train[row].dataset for row in found.train_index[i]} == {name}]
        assert len(mine) == 5
        joined = np.concatenate([found.train_index[i] for i in mine])
        assert len(joined) == len(set(joined.tolist())) == 10
    own = divided(tested="own")
    assert [{own.test[row].dataset for row in index} for index in own.test_index] == [{name} for name in own.datasets]
    again, other = divided(clients=20, tested="own"), divided(clients=20, tested="own", seed=1)
    same = [np.array_equal(a, b) for a, b in zip(found.train_index, again.train_index, strict=True)]
    assert all(same)
    assert not all(np.array_equal(a, b) for a, b in zip(found.train_index, other.train_index, strict=True))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"task": "logics"}, "unknown task to leave out 'logics'; allowed: facts, logic, mood. Did you mean 'logic'"),
        ({"clients": 5}, "5 clients for 4 domains: must be a multiple of 4"),
        ({"tested": "all"}, "unknown tested 'all'; allowed: left_out, own"),
    ],
)
def test_what_cannot_be_divided_is_named(how, says):
    with pytest.raises(ValueError, match=says):
        divided(**how)
    for test, clients, says in (
        (rows(5)[5:], 4, "tested='own': data set 'films' has 0 test examples for 1 clients"),
        (rows(1), 8, "'films' has 1 test examples for 2 clients, each of which needs at least one"),
    ):
        with pytest.raises(ValueError, match=says):
            instruction_data.leave_task_out(rows(10), test, "logic", clients, 0, "own")
    with pytest.raises(ValueError, match="there are 0 training and 1 test examples"):
        instruction_data.leave_task_out(rows(1)[:1], rows(1)[:1], "mood", 1, 0)


def test_questions_with_their_options(caplog):
    found = divided()
    with caplog.at_level("WARNING"):
        data, options = instruction_data.build_option_data(found, Letters(), limit=40, multiple=8, long="cut")
    told = caplog.messages
    for dataset in found.datasets:
        cut = sum(len(row.question) + 1 > 40 for row in found.train if row.dataset == dataset)
        assert f"{dataset}: {cut} of 10 training texts had more than 40 tokens; their beginnings were left out" in told
    assert len(told) == 4, "the test texts fit"
    with pytest.raises(ValueError, match=r"films: a text has 42 tokens, limit=40; raise it, or take long='cut'"):
        instruction_data.build_option_data(found, Letters(), limit=40)
    assert instruction_data.build_option_data(found, Letters(), limit=76)[0].train.x["tokens"].shape[1] == 76, (
        "no wider than the limit"
    )
    texts = [decoded(tokens[mask]) for tokens, mask in zip(options["tokens"], options["mask"], strict=True)]
    assert len(texts) == len(set(texts))
    for examples, mine in ((data.train, found.train), (data.test, found.test)):
        tokens, mask, listed = (examples.x[name] for name in ("tokens", "mask", "options"))
        assert tokens.shape == mask.shape
        assert tokens.shape[1] % 8 == 0
        assert tokens.shape[1] - 8 < mask.sum(1).max() <= min(tokens.shape[1], 40)
        for i, row in enumerate(mine):
            n = mask[i].sum()
            assert mask[i, :n].all()
            assert tokens[i, 0] == 1
            assert decoded(tokens[i, :n]) == row.question[-39:]
            assert tuple(texts[place] for place in listed[i] if place >= 0) == row.options
            assert row.options[examples.y[i]] == row.answer
    assert data.train.x["options"].shape[1] == data.classes == 3
    assert data.clients == 4
    wrong = found._replace(test=[dataclasses.replace(found.test[0], answer="perhaps")])
    turns = (("user", "Is it?"), ("assistant", "Yes."), ("user", "Sure?"), ("assistant", "no"))
    long = found._replace(test=[dataclasses.replace(found.test[0], messages=turns)])
    with pytest.raises(ValueError, match=r"pairs: an encoder reads one question; conversations .* need a language model"):
        instruction_data.build_option_data(long, Letters(), limit=40, long="cut")
    with pytest.raises(ValueError, match=r"pairs: the answer 'perhaps' must be one of its options \['no', 'yes'\]"):
        instruction_data.build_option_data(wrong, Letters(), limit=40, long="cut")


def test_questions_with_their_answers():
    found = divided()
    silent = found._replace(train=[dataclasses.replace(row, answer="") for row in found.train[:1]] + found.train[1:])
    data = instruction_data.build_generation_data(silent, Letters(), 400, END)
    for examples, mine in ((data.train, silent.train), (data.test, silent.test)):
        tokens, mask, answer = (examples.x[name] for name in ("tokens", "mask", "answer"))
        assert tokens.shape[1] % 16 == 0
        assert tokens.shape[1] - 16 < mask.sum(1).max()
        for i, row in enumerate(mine):
            n, a = mask[i].sum(), answer[i].sum()
            assert mask[i, -n:].all()
            assert answer[i, -a:].all()
            assert tokens[i, -1] == END
            assert decoded(tokens[i, -a:]) == row.answer
            prompt = f"### Instruction:\n{row.instruction}\n\n### Response:\n"
            assert tokens[i, -n] == 1
            assert decoded(tokens[i, -n + 1 : -a]) == prompt
            assert instruction_data.tokenize_prompts([row], Letters(), 400, END) == [tokens[i, -n:-a].tolist()]
    assert data.class_names == (*found.datasets, "pairs", "proofs")
    assert data.label_table[2].tolist() == [0, 0, 10, 0, 0, 0]


def test_packed_texts_share_rows_of_their_client():
    split = divided()
    plain = instruction_data.build_generation_data(split, Letters(), 400, END)
    packed = instruction_data.build_generation_data(split, Letters(), 400, END, pack=True)
    texts = lambda x, i: [(x["tokens"][i][x["mask"][i]]).tolist()]
    assert len(packed.train.y) < len(plain.train.y) / 2
    np.testing.assert_array_equal(packed.test.x["tokens"], plain.test.x["tokens"])
    for client in range(4):
        alone = [text for i in plain.train_index[client] for text in texts(plain.train.x, i)]
        together = []
        for i in packed.train_index[client]:
            x = {name: leaf[i] for name, leaf in packed.train.x.items()}
            whole = np.pad(x["answer"], (len(x["tokens"]) - len(x["answer"]), 0))
            for number in range(x["segments"].max() + 1):
                own = x["mask"] & (x["segments"] == number)
                together.append(x["tokens"][own].tolist())
                answer = x["tokens"][own & whole].tolist()
                assert answer[-1] == END
                assert answer == together[-1][-len(answer) :]
        assert sorted(together) == sorted(alone)


def test_long_texts_are_cut_as_asked_or_refused():
    row = rows(9)[8]
    with pytest.raises(ValueError, match=r"films: a text has \d+ tokens, limit=90; raise it, or take long='cut'"):
        instruction_data.tokenize_pairs([row], Letters(), 90, END)
    [(prompt, answer)] = instruction_data.tokenize_pairs([row], Letters(), 90, END, long="cut")
    assert len(prompt) + len(answer) == 90
    whole = instruction_data.ALPACA.replace("{instruction}", row.instruction)
    before = len("### Instruction:\n")
    assert decoded(prompt) == whole[:before] + whole[-(90 - 1 - before - len(answer)) :]
    assert decoded(answer) == row.answer
    [asked] = instruction_data.tokenize_prompts([row], Letters(), 90, END, long="cut")
    assert len(asked) == 90
    with pytest.raises(ValueError, match="limit=20 leaves no room for an instruction beside an answer of 3 tokens"):
        instruction_data.tokenize_pairs([row], Letters(), 20, END, long="cut")
    short = len(instruction_data.ALPACA.replace("{instruction}", "e")) + 1 + len(answer)  # with one letter of it
    [(prompt, _)] = instruction_data.tokenize_pairs([row], Letters(), short, END, long="cut")
    assert decoded(prompt) == instruction_data.ALPACA.replace("{instruction}", row.instruction[-1])
    with pytest.raises(ValueError, match=f"limit={short - 1} leaves no room for an instruction beside an answer of 3 tokens"):
        instruction_data.tokenize_pairs([row], Letters(), short - 1, END, long="cut")
    with pytest.raises(ValueError, match="unknown long 'drop'; allowed: refuse, cut"):
        instruction_data.tokenize_prompts([row], Letters(), 90, END, long="drop")


def test_it_is_told_how_many_texts_were_cut(caplog):
    instruction_data.tokenize_pairs(rows(9), Letters(), 400, END, long="cut")
    assert not caplog.messages
    long = {row.dataset: 0 for row in rows(9)}
    for row in rows(9):
        length = len(Letters().encode([instruction_data.ALPACA.replace("{instruction}", row.instruction) + row.answer])[0]) + 1
        long[row.dataset] += length > 100
    instruction_data.tokenize_pairs(rows(9), Letters(), 100, END, long="cut", what="training texts")
    assert caplog.messages == [
        f"{dataset}: {number} of 9 training texts had more than 100 tokens; their beginnings were left out"
        for dataset, number in long.items()
    ]
    assert 0 < long["films"] < 9


def test_an_end_that_the_tokenizer_sets_is_no_part_of_a_prompt():
    """Training and decoding begin with the same tokens, whatever the answer, and an answer ends
    once.
    """

    class Ending(Letters):
        """Sets an end behind each text."""

        def encode(self, texts, special=True, limit=None):
            return [row + [END] * special for row in super().encode(texts, special, limit)]

    few = [*rows(2), dataclasses.replace(rows(1)[0], answer="")]
    for limit, long in ((400, "refuse"), (60, "cut")):
        with_end, plain = ([*instruction_data.tokenize_pairs(few, kind(), limit, END, long=long)] for kind in (Ending, Letters))
        assert with_end == plain
        asked = instruction_data.tokenize_prompts(few, Ending(), limit, END, long=long)
        assert asked == instruction_data.tokenize_prompts(few, Letters(), limit, END, long=long)
        assert not any(END in prompt for prompt in asked)
        other = [instruction_data.tokenize_pairs(few, kind(), limit, 3, long=long, stop=(3, END)) for kind in (Ending, Letters)]
        assert other[0] == other[1], "whichever of a model's ends it is"
        assert instruction_data.tokenize_prompts(few, Ending(), limit, 3, long=long, stop=(3, END)) == asked
    assert asked != [prompt for prompt, _ in plain], "an answer takes room"
    assert instruction_data.tokenize_prompts(few, Ending(), 400, END) == [
        prompt for prompt, _ in instruction_data.tokenize_pairs(few, Ending(), 400, END)
    ]


def test_tokens_that_run_over_the_boundary_belong_to_the_answer():
    class Pairs(Letters):
        """Two equal letters in an example are one token."""

        def encode(self, texts, special=True, limit=None):
            found = []
            for row in super().encode(texts, special, limit):
                joined: list[int] = []
                for token in row:
                    if joined and joined[-1] == token:
                        joined[-1] += 1000
                    else:
                        joined.append(token)
                found.append(joined)
            return found

    row = Instance("mood", "films", "q", "q", (), "aab")
    [(prompt, answer)] = instruction_data.tokenize_pairs([row], Pairs(), 90, END, template="{instruction} a")
    assert (prompt, answer) == ([1, ord("q"), ord(" ")], [ord("a") + 1000, ord("a"), ord("b"), END])


def test_the_published_rows_are_read(shared_data):
    """8,000 and 1,600 examples; every answer is among its options."""
    train, test = (instruction_data.read(shared_data / "flan_ood" / f"{part}.jsonl.gz") for part in ("train", "test"))
    assert (len(train), len(test)) == (8000, 1600)
    assert all(row.answer in row.options and instruction_data.OPTIONS not in row.question for row in train + test)
    other = instruction_data.read(shared_data / "text_tasks.jsonl.gz", "test")
    assert len(other) == 1600
    assert all(row.answer in row.options for row in other)
    found = instruction_data.leave_task_out(train, test, "reading_comprehension", 30, 0)
    assert [len(index) for index in found.train_index] == [200] * 30
    assert {row.dataset for row in found.test} == {"openbook_qa", "record"}
    assert len(found.test_index[0]) == 400
