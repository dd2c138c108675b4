"""Models in GGUF files are those of the folders that they were made from."""

import json

import jax
import numpy as np
import pytest

from fedjax_core.language import gguf_files, load_pretrained
from fedjax_core.storage.safetensors_files import write_tensors
from tests import reference

gguf = pytest.importorskip("gguf", reason="no gguf: pip install -e '.[gguf]'")

HEADS, GROUPS, WIDTH, INNER, LAYERS = 4, 2, 64, 96, 2  # rows of 32, which Q8_0 needs
TOKENS = ["<|endoftext|>", "<|im_start|>", *sorted({chr(c) for c in range(33, 127)} | {"Ġ", "Ġt", "he", "Ġthe"})]
MERGES = ["Ġ t", "h e", "Ġt he"]


def public_weights(tied: bool, architecture: str = "llama") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32) / 8
    weights = {"model.embed_tokens.weight": draw(len(TOKENS), WIDTH), "model.norm.weight": 1 + draw(WIDTH)}
    weights |= {} if tied else {"lm_head.weight": draw(len(TOKENS), WIDTH)}
    for i in range(LAYERS):
        layer, narrow = f"model.layers.{i}", WIDTH // HEADS * GROUPS
        for name, shape in (
            *(("self_attn.q_proj", (WIDTH, WIDTH)), ("self_attn.k_proj", (narrow, WIDTH))),
            *(("self_attn.v_proj", (narrow, WIDTH)), ("self_attn.o_proj", (WIDTH, WIDTH))),
            *(("mlp.gate_proj", (INNER, WIDTH)), ("mlp.up_proj", (INNER, WIDTH)), ("mlp.down_proj", (WIDTH, INNER))),
            *(("input_layernorm", (WIDTH,)), ("post_attention_layernorm", (WIDTH,))),
        ):
            weights[f"{layer}.{name}.weight"] = draw(*shape) + (1 if "norm" in name else 0)
        if architecture == "qwen2":
            weights |= {f"{layer}.self_attn.{p}_proj.bias": draw(n) for p, n in (("q", WIDTH), ("k", narrow), ("v", narrow))}
        if architecture == "qwen3":
            weights |= {f"{layer}.self_attn.{p}_norm.weight": 1 + draw(WIDTH // HEADS) for p in "qk"}
    return weights


def in_pairs(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of a head's rows, one after the other: 0, E/2, 1, E/2 + 1 ..."""
    size = len(array) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return array[order]


def write(path, weights, *, pre="smollm", quantised=False, model="gpt2", architecture="llama", more=None, facts=None):
    """Writes a file as llama.cpp's converter does; `facts` are further numbers of its architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for name, value in (facts or {}).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{architecture}.{name}", value)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    own = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    own |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    own |= {f"self_attn.{a}_proj": f"attn_{b}" for a, b in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))}
    own |= {f"self_attn.{a}_norm": f"attn_{a}_norm" for a in "qk"}
    own |= {f"mlp.{a}_proj": f"ffn_{a}" for a in ("gate", "up", "down")}
    for name, array in (weights | (more or {})).items():
        bare, _, last = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "weight")
        if bare.startswith("model.layers."):
            _, _, layer, part = bare.split(".", 3)
            if architecture == "llama" and part.startswith(("self_attn.q", "self_attn.k")):
                array = in_pairs(array, HEADS if "q_proj" in part else GROUPS)
            bare = f"blk.{layer}.{own[part]}"
        else:
            bare = own.get(bare, bare)
        kind = gguf.GGMLQuantizationType.Q8_0
        if quantised and array.ndim == 2:
            writer.add_tensor(f"{bare}.{last}", gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{bare}.{last}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_the_public_layout(tmp_path, tied):
    weights = public_weights(tied)
    found = gguf_files.read_weights(write(tmp_path / "a.gguf", weights))
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    config = gguf_files.read_config(tmp_path / "a.gguf")
    assert config["tie_word_embeddings"] == tied
    assert (config["rope_theta"], config["rms_norm_eps"], config["eos_token_id"]) == (50_000.0, pytest.approx(1e-5), 0)


def test_quantised_weights_are_close(tmp_path):
    weights = public_weights(True)
    found = gguf_files.read_weights(write(tmp_path / "a.gguf", weights, quantised=True))
    worst = max(np.abs(found[name] - array).max() / np.abs(array).max() for name, array in weights.items())
    assert 0 < worst < 1 / 127


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_a_file_loads_as_its_folder_does(tmp_path, architecture):
    weights = public_weights(True, architecture)
    model, params = load_pretrained.load(write(tmp_path / "a.gguf", weights, architecture=architecture))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(gguf_files.read_config(tmp_path / "a.gguf")))
    write_tensors(folder / "model.safetensors", weights, {})
    other, theirs = load_pretrained.load(folder)
    assert (model.name, model.context, model.stop) == (other.name, other.context, other.stop)
    jax.tree.map(np.testing.assert_array_equal, params, theirs)


def test_texts_become_tokens_and_texts_again(tmp_path):
    tokenizer = load_pretrained.load_tokenizer(write(tmp_path / "a.gguf", public_weights(True)))
    text = "at the year 1984"
    (row,) = tokenizer.encode([text])
    assert [TOKENS[i] for i in row] == ["a", "t", "Ġthe", "Ġ", *"year", "Ġ", *"1984"]
    assert tokenizer.decode([[1, *row, 0]]) == [text]
    assert tokenizer.size == len(TOKENS)


def test_llama_3_begins_texts_and_takes_whole_words_first(tmp_path):
    text = json.loads(gguf_files.read_tokenizer(write(tmp_path / "a.gguf", public_weights(True), pre=gguf_files.LLAMA_3)))
    assert text["model"]["ignore_merges"]
    assert text["post_processor"]["single"][0] == {"SpecialToken": {"id": TOKENS[1], "type_id": 0}}
    other = json.loads(gguf_files.read_tokenizer(write(tmp_path / "b.gguf", public_weights(True))))
    assert not other["model"]["ignore_merges"]
    assert other["post_processor"] is None


@pytest.mark.parametrize("pre", list(gguf_files.PRE_TOKENIZERS))
def test_every_split_of_texts_is_one_that_the_package_reads(tmp_path, pre):
    tokenizer = load_pretrained.load_tokenizer(write(tmp_path / "a.gguf", public_weights(True), pre=pre))
    assert tokenizer.decode(tokenizer.encode(["the 12 cats, the dog's"])) == ["the 12 cats, the dog's"]


@pytest.mark.parametrize(("pre", "is_composed"), [("qwen2", True), ("gpt-2", False)])
def test_qwen_composes_letters_and_their_accents(tmp_path, monkeypatch, pre, is_composed):
    monkeypatch.setitem(globals(), "TOKENS", [*TOKENS, *"ÃĨ©Ìģ"])  # the bytes of both forms of é, but for "e"
    tokenizer = load_pretrained.load_tokenizer(write(tmp_path / "a.gguf", public_weights(True), pre=pre))
    composed, apart = tokenizer.encode(["\u00e9", "e\u0301"])
    assert (apart == composed) == is_composed


@pytest.mark.parametrize(
    ("changed", "read", "says"),
    [
        ({"architecture": "gemma"}, gguf_files.read_config, r"general\.architecture in .*'gemma'.*llama"),
        ({"model": "llama"}, gguf_files.read_tokenizer, r"tokenizer\.ggml\.model in .*'llama'.*gpt2"),
        ({"pre": "tekken"}, gguf_files.read_tokenizer, r"tokenizer\.ggml\.pre in .*'tekken'"),
        (
            {"more": {"blk.0.attn_qkv.bias": np.ones(4, np.float32)}},
            gguf_files.read_weights,
            r"has the tensor 'blk\.0\.attn_qkv\.bias",
        ),
        ({"more": {"rope_freqs": np.ones(8, np.float32)}}, gguf_files.read_config, "rope_freqs.* not supported"),
        ({"pre": "default"}, gguf_files.read_tokenizer, r"tokenizer\.ggml\.pre in .*'default'; allowed: gpt-2, "),
        ({"pre": None}, gguf_files.read_tokenizer, r"has no tokenizer\.ggml\.pre"),
        ({"facts": {"rope.scaling.factor": 4.0}}, gguf_files.read_config, r"llama\.rope\.scaling\.factor=4 is not supported"),
        ({"facts": {"rope.scale_linear": 0.5}}, gguf_files.read_config, r"llama\.rope\.scale_linear=0\.5 is not supported"),
        ({"facts": {"rope.dimension_count": 8}}, gguf_files.read_config, r"rope\.dimension_count=8 .* width of a head, 16"),
        ({"facts": {"attention.sliding_window": 64}}, gguf_files.read_config, r"sliding_window=64 .* context_length of 128"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, changed, read, says):
    path = write(tmp_path / "a.gguf", public_weights(True), **changed)
    with pytest.raises(ValueError, match=says):
        read(path)


def test_numbers_that_change_nothing_are_read(tmp_path):
    facts = {"rope.scaling.factor": 1.0, "rope.dimension_count": WIDTH // HEADS, "attention.sliding_window": 128}
    assert gguf_files.read_config(write(tmp_path / "a.gguf", public_weights(True), facts=facts))["head_dim"] == WIDTH // HEADS


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*b\.gguf"):
        load_pretrained.load(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF but not for long")
    with pytest.raises(ValueError, match=r"b\.gguf cannot be read as a GGUF file"):
        load_pretrained.load(tmp_path / "b.gguf")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # of qwen3 it does not read the width of heads
def test_logits_are_those_that_transformers_reads(tmp_path, architecture):
    library = reference.library()
    pytest.importorskip("accelerate", reason="no accelerate: pip install -e '.[reference]'")
    import torch

    write(tmp_path / "a.gguf", public_weights(False, architecture), pre="gpt-2", quantised=True, architecture=architecture)
    other = library.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="a.gguf", attn_implementation="eager").eval()
    tokens = np.arange(2, 14).reshape(2, 6)
    with torch.no_grad():
        wanted = other(input_ids=torch.from_numpy(tokens)).logits.numpy()
    model, params = load_pretrained.load(tmp_path / "a.gguf")
    logits = model.logits(params, model.hidden(params, tokens, np.ones(tokens.shape, bool)))
    np.testing.assert_allclose(logits, wanted, atol=2e-4)
