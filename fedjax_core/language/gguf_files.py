"""Language models in GGUF files, llama.cpp's format: one file with the configuration, the weights
and the tokenizer.

A file is read as the folder in the public layout that it was made from: `read_config` returns what
config.json says, `read_weights` the tensors of a LLaMA (Mistral's files are such), Qwen 2 or Qwen 3,
`read_tokenizer` the text of tokenizer.json. Quantised weights are dequantised; training goes on from those values.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` reads it
(pip install 'fedjax-core[gguf]').
"""

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core import registry

SUFFIX = ".gguf"
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _split(pattern: str) -> list[dict[str, Any]]:
    """Returns pre-tokenizers that split by a pattern, and spell what it isolates as bytes."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _BYTES | {"use_regex": False}]


LLAMA_3 = "llama-bpe"  # its texts begin with a token, and whole words come before merges, where a file does not say so (llama.cpp)
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {  # by tokenizer.ggml.pre
    "gpt-2": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
    LLAMA_3: _split(rf"{_LETTERS}|\p{{N}}{{1,3}}|{_SPACES}"),
    "qwen2": _split(rf"{_LETTERS}|\p{{N}}|{_SPACES}"),
}
NORMALIZERS = {"qwen2": {"type": "NFC"}}  # likewise; others take texts as they are
_NORMAL = 1  # the type of tokens that text is made of; the others are added to the vocabulary
_CONTROL = 3  # special tokens, which decoding leaves out
_NAMES = {  # of a layer's tensors, in the file and in the public layout
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _open(path: str | os.PathLike) -> Any:
    """Opens a file of an architecture that is supported. It is memory-mapped.

    Raises:
      ImportError: the package `gguf` is not installed.
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or no GGUF file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {path}")
    return _open_version(Path(path), Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)  # the package takes seconds to index a vocabulary
def _open_version(path: Path, modified: int) -> Any:
    """Opens a file as it was at a time of modification."""
    del modified
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ImportError("GGUF files are read by the package gguf: pip install 'fedjax-core[gguf]'") from None
    try:
        reader: Any = GGUFReader(path)
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path} cannot be read as a GGUF file ({error})") from None
    reader.path = path
    registry.check_choice(f"general.architecture in {path}", _get(reader, "general.architecture"), ARCHITECTURES)
    return reader


_REQUIRED = object()


def _get(reader: Any, name: str, default: Any = _REQUIRED) -> Any:
    """Returns an entry of the metadata; raises ValueError where one without a default is missing."""
    if name in reader.fields:
        return reader.fields[name].contents()
    if default is _REQUIRED:
        raise ValueError(f"{reader.path} has no {name}")
    return default


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """Returns what config.json says of the model.

    Raises:
      ValueError, FileNotFoundError, ImportError: see the module; the message names the file and
        what is missing, or not supported.
    """
    reader = _open(path)
    family = _get(reader, "general.architecture")
    number = lambda name, *default: _get(reader, f"{family}.{name}", *default)
    heads = int(number("attention.head_count"))
    if (scaling := number("rope.scaling.type", "none")) != "none":
        raise ValueError(f"{path}: {family}.rope.scaling.type={scaling!r} is not supported, only 'none'")
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        if (factor := float(number(name, 1.0))) not in (0.0, 1.0):  # 0: no scaling
            raise ValueError(f"{path}: {family}.{name}={factor:g} is not supported, only 1")
    width = int(number("attention.key_length", int(number("embedding_length")) // heads))
    if (rotated := int(number("rope.dimension_count", width))) != width:
        raise ValueError(f"{path}: {family}.rope.dimension_count={rotated} is not supported, only the width of a head, {width}")
    context = int(number("context_length"))
    if 0 < (window := int(number("attention.sliding_window", 0))) < context:
        what = f"{family}.attention.sliding_window={window} is not supported, only the context_length of {context} or more"
        raise ValueError(f"{path}: {what}; take the folder that the file was made from")
    if "tokenizer.ggml.tokens" not in reader.fields:
        raise ValueError(f"{path} has no tokenizer.ggml.tokens")
    tensors = {tensor.name for tensor in reader.tensors}
    if "rope_freqs.weight" in tensors:
        raise ValueError(f"{path}: rotary frequencies of Llama 3's long contexts (rope_freqs) are not supported")
    return {
        "model_type": family,
        "hidden_act": "silu",
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "hidden_size": int(number("embedding_length")),
        "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(number("attention.head_count_kv", heads)),
        "head_dim": width,
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(number("rope.freq_base", 10000.0)),
        "max_position_embeddings": context,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": int(_get(reader, "tokenizer.ggml.eos_token_id")),
    }


def read_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the weights by their names in the public layout, float32.

    llama.cpp stores the rows of a LLaMA's query and key by pairs of rotated numbers; they are put
    back into the public order, halves.

    Raises:
      ValueError: a tensor is unknown, or of a quantisation that the package does not know.
    """
    from gguf.quants import dequantize

    reader = _open(path)
    config = read_config(path)
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    weights = {}
    for tensor in reader.tensors:
        name = _public_name(tensor.name)
        if name is None:
            raise ValueError(f"{path} has the tensor {tensor.name!r}, which its architecture has not")
        try:
            array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(f"{path}: tensor {tensor.name!r} of {tensor.tensor_type.name} cannot be read ({error})") from None
        if config["model_type"] == "llama" and array.ndim == 2 and ("q_proj" in name or "k_proj" in name):
            array = _pairs_to_halves(array, heads if "q_proj" in name else groups)
        weights[name] = array
    return weights


def _public_name(name: str) -> str | None:
    """Returns a tensor's name in the public layout; None for one that no architecture has."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_NAMES[part]}.{kind}" if part in _NAMES else None
    part = name.removesuffix(".weight")
    return f"{_TOP[part]}.weight" if part in _TOP else None


def _pairs_to_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Returns the rows of each head, [H E, D], from the order 0, E/2, 1, E/2 + 1 ... in 0, 1, 2 ..."""
    rows, width = array.shape
    return np.ascontiguousarray(array.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2)).reshape(rows, width)


def read_chat_template(path: str | os.PathLike) -> tuple[str, dict[str, str | None]]:
    """Returns the chat template and its first and last token, None: the model has none; ValueError if there is no template."""
    reader = _open(path)
    tokens = _get(reader, "tokenizer.ggml.tokens")
    ids = {f"{name}_token": _get(reader, f"tokenizer.ggml.{name}_token_id", None) for name in ("bos", "eos")}
    return _get(reader, "tokenizer.chat_template"), {name: None if i is None else tokens[i] for name, i in ids.items()}


def read_tokenizer(path: str | os.PathLike) -> str:
    """Returns the text of a tokenizer.json, of a byte-level BPE tokenizer.

    Raises:
      ValueError: the tokenizer is of another kind; the message names it.
    """
    reader = _open(path)
    registry.check_choice(f"tokenizer.ggml.model in {path}", _get(reader, "tokenizer.ggml.model"), ("gpt2",))
    pre = _get(reader, "tokenizer.ggml.pre")  # llama.cpp's default is the split of no model
    pre_tokenizers = PRE_TOKENIZERS[registry.check_choice(f"tokenizer.ggml.pre in {path}", pre, PRE_TOKENIZERS)]
    tokens, types = (_get(reader, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    merges = [merge.split(" ") for merge in _get(reader, "tokenizer.ggml.merges")]
    added = [
        {
            **{"id": i, "content": token, "special": kind == _CONTROL, "normalized": False},
            **dict.fromkeys(("single_word", "lstrip", "rstrip"), False),
        }
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind != _NORMAL
    ]
    processor = None
    if _get(reader, "tokenizer.ggml.add_bos_token", pre == LLAMA_3):
        first = int(_get(reader, "tokenizer.ggml.bos_token_id"))
        piece = {"SpecialToken": {"id": tokens[first], "type_id": 0}}
        processor = {
            "type": "TemplateProcessing",
            "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [piece, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {tokens[first]: {"id": tokens[first], "ids": [first], "tokens": [tokens[first]]}},
        }
    bpe = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    bpe |= dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    bpe |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == LLAMA_3}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": NORMALIZERS.get(pre),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
            "post_processor": processor,
            "decoder": _BYTES | {"add_prefix_space": True},
            "model": bpe,
        }
    )
