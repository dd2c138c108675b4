"""The decoder against two others: one written here in loops, and transformers with random weights
that it saved itself.
"""

import dataclasses
import functools
import math
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.language import load_pretrained
from fedjax_core.language.models import decoder, decoder_configs
from fedjax_core.nn import count_parameters
from tests import reference

PLAIN = {
    "model_type": "llama",
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "rope_theta": 100.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "plain": PLAIN,
    "scaled": PLAIN | {"rope_scaling": LLAMA3, "num_key_value_heads": 4, "head_dim": 6},
    "tied": PLAIN | {"tie_word_embeddings": True, "rope_scaling": {"type": "linear", "factor": 2.0}, "num_key_value_heads": 1},
}
LENGTHS = (9, 4, 7)


def tensors(config: dict) -> dict[str, np.ndarray]:
    """A file's worth of random ones."""
    rng = np.random.default_rng(0)
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    e = config.get("head_dim", d // config["num_attention_heads"])
    q, kv = e * config["num_attention_heads"], e * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    for i in range(config["num_hidden_layers"]):
        parts = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q)}
        parts |= {"mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
        parts |= {"input_layernorm": (d,), "post_attention_layernorm": (d,)}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in parts.items()}
    return {name: rng.normal(size=shape).astype(np.float32) * 0.4 for name, shape in shapes.items()}


class Built(NamedTuple):
    model: decoder.LanguageModel
    params: dict
    hidden: object
    logits: object


@functools.cache
def built(name: str) -> Built:
    model = decoder.build(CONFIGS[name])
    params = decoder.from_tensors(CONFIGS[name], tensors(CONFIGS[name]))
    return Built(model, params, jax.jit(model.hidden), jax.jit(lambda p, *text: model.logits(p, model.hidden(p, *text))))


def texts(side: str, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    tokens, mask = rng.integers(3, 23, (3, width)).astype(np.int32), np.zeros((3, width), bool)  # the padding has any tokens
    for row, n in enumerate(LENGTHS):
        real = np.random.default_rng(row).integers(3, 23, n)
        here = slice(width - n, width) if side == "left" else slice(n)
        tokens[row, here], mask[row, here] = real, True
    return tokens, mask


def angle(config: dict, j: int, e: int) -> float:
    """Per position, of the pair j."""
    plain = config["rope_theta"] ** (-2 * j / e)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return plain
    if scaling.get("type") == "linear":
        return plain / scaling["factor"]
    length = 2 * math.pi / plain
    old, low, high = (scaling[f"{key}"] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    if length < old / high:
        return plain
    if length > old / low:
        return plain / scaling["factor"]
    smooth = (old / length - low) / (high - low)
    return (1 - smooth) * plain / scaling["factor"] + smooth * plain


def naive(config: dict, weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits [T, V] of one text, one token and one head after another."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    h, g = config["num_attention_heads"], config["num_key_value_heads"]
    e = config.get("head_dim", config["hidden_size"] // h)

    def norm(x, scale):
        return x / np.sqrt(np.mean(x * x) + config["rms_norm_eps"]) * scale

    def turned(x, place):
        out = np.empty(e)
        for j in range(e // 2):
            a = place * angle(config, j, e)
            out[j] = x[j] * np.cos(a) - x[j + e // 2] * np.sin(a)
            out[j + e // 2] = x[j + e // 2] * np.cos(a) + x[j] * np.sin(a)
        return out

    xs = [w["model.embed_tokens.weight"][token] for token in tokens]
    for i in range(config["num_hidden_layers"]):
        of = lambda name, i=i: w[f"model.layers.{i}.{name}.weight"]
        seen = [norm(x, of("input_layernorm")) for x in xs]
        q, k, v = ([of(f"self_attn.{p}_proj") @ x for x in seen] for p in "qkv")
        for t in range(len(xs)):
            mixed = []
            for head in range(h):
                group = head // (h // g)
                query = turned(q[t][head * e : (head + 1) * e], t)
                keys = [turned(k[s][group * e : (group + 1) * e], s) for s in range(t + 1)]
                scores = np.exp([query @ key / np.sqrt(e) for key in keys])
                mixed.append(sum(p * v[s][group * e : (group + 1) * e] for s, p in enumerate(scores / sum(scores))))
            xs[t] = xs[t] + of("self_attn.o_proj") @ np.concatenate(mixed)
        for t, x in enumerate(xs):
            x = norm(x, of("post_attention_layernorm"))
            gate = of("mlp.gate_proj") @ x
            xs[t] = xs[t] + of("mlp.down_proj") @ (gate / (1 + np.exp(-gate)) * (of("mlp.up_proj") @ x))
    head = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return np.stack([head @ norm(x, w["model.norm.weight"]) for x in xs])


@pytest.mark.parametrize(("name", "side"), [("plain", "left"), ("scaled", "right"), ("tied", "left")])
def test_logits_are_those_of_the_loops(name, side):
    tokens, mask = texts(side)
    found = np.asarray(built(name).logits(built(name).params, tokens, mask))
    for row, real in enumerate(mask):
        wanted = naive(CONFIGS[name], tensors(CONFIGS[name]), tokens[row][real].tolist())
        np.testing.assert_allclose(found[row][real], wanted, atol=1e-4)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name, tmp_path):
    """Weights that it drew and saved, in one file or several; also in bfloat16, as far as that
    goes.
    """
    library = reference.library()
    import torch

    own = {key: value for key, value in CONFIGS[name].items() if key not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(CONFIGS[name].get("rope_scaling", {"rope_type": "default"}))
    rope = {"rope_theta": 100.0, "rope_type": scaling.pop("type", scaling.get("rope_type"))} | scaling
    config = library.LlamaConfig(**own, rope_parameters=rope, attn_implementation="eager")
    sizes = {"max_shard_size": "8KB"} if name == "plain" else {}
    other = reference.saved(library.LlamaForCausalLM(config), tmp_path, **sizes)
    assert (tmp_path / load_pretrained.INDEX).is_file() == (name == "plain")
    tokens, mask = texts("left")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(mask).long()}
        wanted = other(**text).logits.numpy()[mask]
    model, params = load_pretrained.load(tmp_path)
    assert isinstance(model, decoder.LanguageModel)
    logits = jax.jit(lambda p: model.logits(p, model.hidden(p, jnp.asarray(tokens), jnp.asarray(mask))))
    np.testing.assert_allclose(np.asarray(logits(params))[mask], wanted, atol=1e-4)
    if name == "plain":
        half = load_pretrained.load(tmp_path, dtype="bfloat16")[1]
        assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype("bfloat16")}
        assert np.abs(np.asarray(logits(half))[mask] - wanted).mean() < 0.05 * np.abs(wanted).mean()


def test_a_fresh_model_has_the_files_form():
    for name, config in CONFIGS.items():
        fresh = jax.eval_shape(built(name).model.init, jax.random.key(0))
        jax.tree.map(lambda a, b: np.testing.assert_equal((a.shape, a.dtype), (b.shape, b.dtype)), fresh, built(name).params)
        assert fresh["layers"]["attention"]["query"]["kernel"].shape[0] == config["num_hidden_layers"]
        assert ("head" in fresh) != config["tie_word_embeddings"]
    params = jax.jit(built("plain").model.init)(jax.random.key(0))
    assert not np.array_equal(*params["layers"]["mlp"]["up"]["kernel"])


def test_the_published_sizes():
    """LLaMA-7B's and Llama-3.2-1B's numbers of parameters, without making them."""
    seven = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    seven |= {"model_type": "llama", "num_attention_heads": 32}
    one = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    one |= {"model_type": "llama", "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
    for config, wanted in ((seven, 6_738_415_616), (one, 1_235_814_400)):
        assert count_parameters(jax.eval_shape(decoder.build(config, "bfloat16").init, jax.random.key(0))) == wanted


@functools.cache
def generated(side: str, stop: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    model, params, *_ = built("plain")
    written = jax.jit(lambda p, *text: model.generate(p, *text, limit=6, stop=stop))(params, *texts(side))
    return tuple(np.asarray(part) for part in written)


@functools.cache
def continued(steps: int = 6) -> list[list[int]]:
    """The greedy continuation of each text by the whole network anew for every token."""
    found = []
    for row, n in enumerate(LENGTHS):
        text = np.random.default_rng(row).integers(3, 23, n).tolist()
        for _ in range(steps):
            text.append(int(np.argmax(naive(PLAIN, tensors(PLAIN), text)[-1])))
        found.append(text[n:])
    return found


@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_with_a_cache_is_decoding_without(side):
    tokens, mask = generated(side, ())
    assert mask.all()
    assert tokens.tolist() == continued()


def test_decoding_ends_at_the_stop():
    stop = continued()[0][2]
    tokens, mask = generated("left", (stop, 22))
    for row, wanted in enumerate(continued()):
        ends = [i for i, token in enumerate(wanted) if token in (stop, 22)]
        assert tokens[row][mask[row]].tolist() == wanted[: ends[0] if ends else None]
    assert mask[0].sum() <= 2


WINDOWED = PLAIN | {  # windows of 3 tokens in two of three layers, whose angles differ
    **{"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 3, "sliding_window": 3},
    **{"num_hidden_layers": 3, "head_dim": 4, "query_pre_attn_scalar": 4, "initializer_range": 0.5},
}


@functools.cache
def windowed() -> tuple[decoder.LanguageModel, dict]:
    model = decoder.build(WINDOWED)
    return model, jax.jit(model.init)(jax.random.key(0))


def test_texts_in_one_row_do_not_see_each_other():
    for model, params in (windowed(), built("plain")[:2]):
        rows = [np.random.default_rng(row).integers(3, 23, n) for row, n in enumerate(LENGTHS)]
        tokens = np.concatenate([[0, 0], *rows])[None]
        segments = np.concatenate([[0, 0], *(np.full(n, row) for row, n in enumerate(LENGTHS))])[None]
        together = jax.jit(model.hidden)(params, tokens, np.arange(22)[None] > 1, segments=segments)[0, 2:]
        alone = jax.jit(model.hidden)(params, *texts("right"))
        for row, part in enumerate(np.split(together, np.cumsum(LENGTHS)[:-1])):
            np.testing.assert_allclose(part, alone[row, : LENGTHS[row]], atol=1e-4)


def test_a_window_sees_the_last_tokens():
    mask = np.random.default_rng(0).random((2, 5, 9)) < 0.6
    kept = np.asarray(decoder.keep_last(jnp.asarray(mask), 2))
    for before, after in zip(mask.reshape(-1, 9), kept.reshape(-1, 9), strict=True):
        assert np.flatnonzero(after).tolist() == np.flatnonzero(before)[-2:].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_with_windows_is_decoding_without_a_cache(side):
    model, params = windowed()
    tokens, mask = jax.jit(lambda p, *text: model.generate(p, *text, limit=5, stop=()))(params, *texts(side))
    assert mask.all()
    row, real = np.zeros((3, 14), np.int32), np.zeros((3, 14), bool)
    for i, n in enumerate(LENGTHS):
        row[i, : n + 5] = [*np.random.default_rng(i).integers(3, 23, n), *np.asarray(tokens)[i]]
        real[i, : n + 5] = True
    following = np.argmax(jax.jit(lambda p: model.logits(p, model.hidden(p, row, real)))(params), -1)
    for i, n in enumerate(LENGTHS):
        assert following[i, n - 1 : n + 4].tolist() == np.asarray(tokens)[i].tolist()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Factors:
    base: jax.Array
    a: jax.Array
    b: jax.Array

    def __rmatmul__(self, x):
        return x @ self.base + (x @ self.a) @ self.b


def test_a_kernel_can_be_replaced_from_outside():
    """By anything that multiplies; the base is not trained, and with a zero factor nothing changes."""
    model, params, hidden, _ = built("plain")
    text = texts("left")

    def adapted(a, b):
        attention = params["layers"]["attention"]
        query = {"kernel": Factors(attention["query"]["kernel"], a, b)}
        return params | {"layers": params["layers"] | {"attention": attention | {"query": query}}}

    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 16, 3), (2, 3, 16)))
    run = jax.jit(lambda a, b: model.hidden(adapted(a, b), *text))
    np.testing.assert_array_equal(run(a, b * 0), hidden(params, *text))
    merged = jax.tree.map(lambda x: x, params)
    kernel = params["layers"]["attention"]["query"]["kernel"] + jnp.einsum("lir,lro->lio", a, b)
    merged["layers"]["attention"]["query"]["kernel"] = kernel
    real = texts("left")[1]
    np.testing.assert_allclose(run(a, b)[real], hidden(merged, *text)[real], atol=1e-4)
    slopes = jax.jit(jax.grad(lambda b: jnp.sum(model.hidden(adapted(a, b), *text) ** 2)))(b)
    assert all(float(jnp.abs(layer).max()) > 0 for layer in slopes)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_finer_than_the_parameters(tied):
    """Sums of the products of bfloat16 numbers, which are float32 and are not rounded."""
    model = decoder.build(PLAIN | {"tie_word_embeddings": tied}, "bfloat16")
    params = jax.jit(model.init)(jax.random.key(0))
    hidden = jax.random.normal(jax.random.key(1), (3, model.width), jnp.bfloat16)
    found = np.asarray(model.logits(params, hidden))
    kernel = params["embedding"].T if tied else params["head"]["kernel"]
    np.testing.assert_allclose(found, np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64), rtol=1e-5, atol=1e-6)
    assert np.mean(found != found.astype(jnp.bfloat16)) > 0.5
    np.testing.assert_array_equal(found, model.logits(jax.device_get(params), hidden), "of arrays on the host, too")


@pytest.mark.parametrize("config", [PLAIN, WINDOWED])
def test_less_memory_is_the_same_gradient(config):
    text = texts("left", 9)
    model, params, *_ = built("plain") if config is PLAIN else windowed()
    less = decoder.build(config, remat=True)
    slopes = [jax.jit(jax.grad(lambda p, m=m: jnp.sum(m.hidden(p, *text) ** 2)))(params) for m in (model, less)]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), *slopes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; allowed: 'silu'"),
        ({"model_type": "opt"}, "model_type='opt'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_size": None}, "hidden_size=None must be a positive integer"),
        ({"hidden_size": 18}, "num_attention_heads=4 must divide hidden_size=18"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type='yarn' is not supported; allowed: 'default'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor=None must be a positive number"),
        ({"head_dim": 5}, "head_dim=5 must be even"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "must be a list of num_hidden_layers=2"),
        ({"model_type": "mistral", "layer_types": ["full_attention", "odd"]}, "layer_types='odd' is not supported"),
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "hidden_activation='relu'"),
    ],
)
def test_what_is_not_supported_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        decoder.read_config(PLAIN | change)


def test_layers_have_windows_as_older_files_say():
    local = lambda **own: decoder_configs.read_config(PLAIN | {"num_hidden_layers": 4} | own).local
    assert local(model_type="mistral", sliding_window=None) == local(model_type="qwen2") == ()
    assert local(model_type="mistral") == (True,) * 4
    assert local(model_type="qwen3", use_sliding_window=True, max_window_layers=3) == (False, False, False, True)
    assert local(model_type="gemma2") == (True, False, True, False)
    gemma3 = decoder_configs.read_config(PLAIN | {"model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6})
    assert gemma3.local == (True,) * 5 + (False, True)
    assert (gemma3.frequencies[1], gemma3.local_frequencies[1]) == pytest.approx((1e6 ** (-2 / 256), 1e4 ** (-2 / 256)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model.norm.weight": None}, r"model\.norm\.weight is missing in the files and \[16\] in the model"),
        ({"model.layers.1.mlp.up_proj.weight": np.zeros((16, 20))}, r"mlp\.up_proj\.weight is \[16, 20\] in .* and \[20, 16\]"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.zeros((20, 16))},
            r"layers\.2.* is \[20, 16\] in the files and missing in the model",
        ),
        ({"lm_head.weight": np.zeros((23, 16), np.int8)}, "lm_head.weight is of int8"),
    ],
)
def test_a_wrong_tensor_is_named(change, says):
    changed = {name: tensor for name, tensor in (tensors(PLAIN) | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=says):
        decoder.from_tensors(PLAIN, changed)


def test_too_long_a_text_is_refused():
    model, params, *_ = built("plain")
    tokens, mask = np.zeros((1, 65), np.int32), np.ones((1, 65), bool)
    with pytest.raises(ValueError, match=r"65 tokens.*at most 64"):
        jax.eval_shape(model.hidden, params, tokens, mask)
    with pytest.raises(ValueError, match=r"70 tokens.*at most 64"):
        model.generate(params, tokens[:, :60], mask[:, :60], limit=10)
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        model.generate(params, tokens[:, :60], mask[:, :60], limit=0)
    with pytest.raises(ValueError, match="unknown dtype 'float16'"):
        decoder.from_tensors(PLAIN, tensors(PLAIN), "float16")
