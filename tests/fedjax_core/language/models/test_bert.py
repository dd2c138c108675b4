"""The encoder against two others: one written here in loops, and transformers with random weights
that it saved itself.
"""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.language import load_pretrained
from fedjax_core.language.models import bert
from fedjax_core.language.models.transformer import Encoder
from tests import reference

CONFIG = {
    "model_type": "bert",
    "vocab_size": 19,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_act": "gelu",
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
}
LENGTHS = (7, 3, 5)


@functools.cache
def tensors() -> dict[str, np.ndarray]:
    """A file's worth of random ones."""
    rng = np.random.default_rng(0)
    d, f = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    norm = {"LayerNorm.weight": (d,), "LayerNorm.bias": (d,)}
    shapes = {"word_embeddings.weight": (19, d), "position_embeddings.weight": (16, d), "token_type_embeddings.weight": (2, d)}
    shapes = {f"embeddings.{name}": shape for name, shape in (shapes | norm).items()}
    for i in range(2):
        sizes = {f"attention.self.{p}": (d, d) for p in ("query", "key", "value")} | {"attention.output.dense": (d, d)}
        sizes |= {"intermediate.dense": (f, d), "output.dense": (d, f)}
        parts = {f"{name}.weight": shape for name, shape in sizes.items()}
        parts |= {f"{name}.bias": shape[:1] for name, shape in sizes.items()}
        parts |= {f"{part}.{name}": shape for part in ("attention.output", "output") for name, shape in norm.items()}
        shapes |= {f"encoder.layer.{i}.{name}": shape for name, shape in parts.items()}
    return {name: rng.normal(size=shape).astype(np.float32) * 0.4 for name, shape in shapes.items()}


@functools.cache
def model() -> tuple[Encoder, dict, object]:
    encoder = bert.build(CONFIG)
    return encoder, bert.from_tensors(CONFIG, tensors()), jax.jit(encoder.hidden)


def texts(side: str, width: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    tokens, types = rng.integers(0, 19, (3, width)).astype(np.int32), np.zeros((3, width), np.int32)
    mask = np.zeros((3, width), bool)
    for row, n in enumerate(LENGTHS):
        here = slice(width - n, width) if side == "left" else slice(n)
        tokens[row, here], mask[row, here] = np.random.default_rng(row).integers(0, 19, n), True
        types[row, here] = np.arange(n) >= 2
    return tokens, mask, types


def naive(tokens: list[int], types: list[int]) -> np.ndarray:
    """Hidden states [T, D] of one text, one token and one head after another."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors().items()}
    d, h = CONFIG["hidden_size"], CONFIG["num_attention_heads"]
    e = d // h
    affine = lambda name, x: w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean()) / np.sqrt(x.var() + CONFIG["layer_norm_eps"])
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    tables = [w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    xs = [norm("embeddings", tables[0][token] + tables[1][t] + tables[2][types[t]]) for t, token in enumerate(tokens)]
    for i in range(CONFIG["num_hidden_layers"]):
        part = f"encoder.layer.{i}"
        q, k, v = ([affine(f"{part}.attention.self.{p}", x) for x in xs] for p in ("query", "key", "value"))
        seen = []
        for t in range(len(xs)):
            mixed = []
            for head in range(h):
                here = slice(head * e, (head + 1) * e)
                scores = np.exp([q[t][here] @ k[s][here] / np.sqrt(e) for s in range(len(xs))])
                mixed.append(sum(p * v[s][here] for s, p in enumerate(scores / sum(scores))))
            seen.append(affine(f"{part}.attention.output.dense", np.concatenate(mixed)))
        xs = [norm(f"{part}.attention.output", x + s) for x, s in zip(xs, seen, strict=True)]
        for t, x in enumerate(xs):
            inner = [a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in affine(f"{part}.intermediate.dense", x)]
            xs[t] = norm(f"{part}.output", x + affine(f"{part}.output.dense", np.array(inner)))
    return np.stack(xs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_hidden_states_are_those_of_the_loops(side):
    tokens, mask, types = texts(side)
    _, params, hidden = model()
    found = np.asarray(hidden(params, tokens, mask, types))
    for row, real in enumerate(mask):
        np.testing.assert_allclose(found[row][real], naive(tokens[row][real].tolist(), types[row][real].tolist()), atol=1e-4)
    assert np.isfinite(found).all()


def test_hidden_states_are_those_of_transformers(tmp_path):
    library = reference.library()
    import torch

    own = {key: value for key, value in CONFIG.items() if key != "model_type"}
    other = reference.saved(library.BertModel(library.BertConfig(**own, attn_implementation="eager")), tmp_path)
    tokens, mask, types = texts("right")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}
        wanted = other(**{name: torch.from_numpy(array).long() for name, array in names.items()}).last_hidden_state.numpy()[mask]
    encoder, params = load_pretrained.load(tmp_path)
    assert isinstance(encoder, Encoder)
    assert jax.tree.structure(params) == jax.tree.structure(model()[1])
    np.testing.assert_allclose(np.asarray(model()[2](params, tokens, mask, types))[mask], wanted, atol=1e-4)


def test_older_names_and_what_is_left_out():
    """A model that contains it, with the norms' old names, a pooler and a head."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in tensors().items():
        for new, was in old.items():
            name = name.replace(new, was)
        renamed[f"bert.{name}"] = tensor
    left_out = ("bert.pooler.dense.weight", "cls.predictions.bias", "bert.embeddings.position_ids")
    renamed |= {name: np.zeros(1) for name in left_out}
    jax.tree.map(np.testing.assert_array_equal, bert.from_tensors(CONFIG, renamed), model()[1])


def test_a_fresh_model_has_the_files_form():
    encoder, params, _ = model()
    fresh = jax.eval_shape(encoder.init, jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_equal((a.shape, a.dtype), (b.shape, b.dtype)), fresh, params)
    assert params["layers"]["attention"]["value"]["kernel"].shape == (2, 12, 12)
    half = bert.from_tensors(CONFIG, tensors(), "bfloat16")
    tokens, mask, types = texts("right")
    found = model()[2](half, tokens, mask, types)
    assert found.dtype == jnp.bfloat16
    wanted = np.asarray(model()[2](params, tokens, mask, types))
    assert np.abs(np.asarray(found, np.float32) - wanted)[mask].mean() < 0.05 * np.abs(wanted).mean()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_act": "swish"}, "hidden_act='swish' is not supported; allowed: 'gelu', 'gelu_new', 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"num_attention_heads": 5}, "num_attention_heads=5 must divide hidden_size=12"),
        ({"vocab_size": "many"}, "vocab_size='many' must be a positive integer"),
    ],
)
def test_what_is_not_supported_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        bert.read_config(CONFIG | change)


def test_a_wrong_tensor_or_text_is_named():
    missing = {name: tensor for name, tensor in tensors().items() if name != "embeddings.LayerNorm.bias"}
    with pytest.raises(ValueError, match=r"embeddings\.LayerNorm\.bias is missing"):
        bert.from_tensors(CONFIG, missing)
    with pytest.raises(ValueError, match=r"extra\.weight is \[2\] in the files and missing"):
        bert.from_tensors(CONFIG, tensors() | {"extra.weight": np.zeros(2)})
    with pytest.raises(ValueError, match=r"17 tokens.*at most 16"):
        jax.eval_shape(model()[0].hidden, model()[1], np.zeros((1, 17), np.int32), np.ones((1, 17), bool))
