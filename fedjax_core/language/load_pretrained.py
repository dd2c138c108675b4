"""Pre-trained language models from a local folder in the public layout. Nothing is downloaded.

config.json           the network; its `model_type` is a key of `FAMILIES`: decoders of
                      `models/decoder.py`, encoders of `models/bert.py`; or "clip"
model.safetensors     its weights; or in several files, which model.safetensors.index.json names
tokenizer.json        read by the package `tokenizers` (pip install 'fedjax-core[text]')

model, params = load("llama-7b", dtype="bfloat16")
tokens = load_tokenizer("llama-7b").encode(["Hello"])
"""

import importlib.util
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import PyTree
from fedjax_core.language import gguf_files
from fedjax_core.language.chat_templates import TOKENIZER_CONFIG
from fedjax_core.language.models import bert, clip, decoder, decoder_configs
from fedjax_core.language.models.transformer import Encoder, LanguageModel
from fedjax_core.option_types import shorten
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.safetensors_files import read_tensors

FAMILIES: dict[str, Any] = dict.fromkeys(decoder_configs.DEFAULTS, decoder) | dict.fromkeys(("bert", "roberta"), bert)
NESTED = ("rope_parameters", "rope_scaling", "text_config", "vision_config")  # objects in config.json
CONFIG, ONE_FILE, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
_log = logging.getLogger(__name__)


def load(
    folder: str | os.PathLike, dtype: str = "float32", remat: bool = False, later: bool = False
) -> tuple[LanguageModel, PyTree] | tuple[Encoder, PyTree]:
    """Loads a model, a `LanguageModel` (decoders) or an `Encoder` (BERT), and its parameters.

    Args:
      folder: with config.json and the weights, or a GGUF file.
      dtype: of parameters and computation, "float32" or "bfloat16"; the files may have another.
      remat: whether a backward pass computes each layer anew, to save memory.
      later: True: parameters are `LazyArray`s, read when they are put on devices.

    Raises:
      ValueError: a value of the configuration or a tensor is not supported; the message names it.
    """
    config = read_config(folder)
    family = FAMILIES[registry.check_choice(f"model_type in {Path(folder) / CONFIG}", config["model_type"], FAMILIES)]
    params = family.from_tensors(config, read_folder_tensors(folder), dtype, later)
    return family.build(config, dtype, remat), params


def load_clip(folder: str | os.PathLike, dtype: str = "float32", remat: bool = False) -> tuple[clip.Clip, PyTree]:
    """Loads both encoders of a CLIP and their parameters; arguments and errors as `load`."""
    config = read_config(folder)
    return clip.build(config, dtype, remat), clip.from_tensors(config, read_folder_tensors(folder), dtype)


def is_gguf(folder: str | os.PathLike) -> bool:
    """Returns whether a model is a GGUF file, not a folder."""
    return Path(folder).suffix == gguf_files.SUFFIX


def read_config(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns what config.json says.

    Raises:
      ValueError, OSError: it is damaged, or not there.
    """
    if is_gguf(folder):
        return gguf_files.read_config(folder)
    nested = (dict, type(None))
    return read_json(Path(folder) / CONFIG, {"model_type": str, **{f"{name}?": nested for name in NESTED}})


def list_files(folder: str | os.PathLike) -> list[Path]:
    """Returns the files of a model, sorted."""
    return [Path(folder)] if is_gguf(folder) else sorted(Path(folder).iterdir())


def read_folder_tensors(folder: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns all arrays of `model.safetensors`, or of the files that its index names."""
    if is_gguf(folder):
        return gguf_files.read_weights(folder)
    where = Path(folder)
    if not (where / INDEX).is_file():
        if not (where / ONE_FILE).is_file():
            raise FileNotFoundError(f"{where} has neither {ONE_FILE} nor {INDEX}; weights are read from safetensors alone")
        return read_tensors(where / ONE_FILE)[0]
    files = read_json(where / INDEX, {"weight_map": {str: str}})["weight_map"]
    if any(Path(file).name != file for file in files.values()):
        raise ValueError(f"{where / INDEX} must have a weight_map: tensor -> file beside it")
    parts = {file: read_tensors(where / file)[0] for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in parts[file]:
            raise ValueError(f"{where / file} has no tensor {name}, which {INDEX} says is there")
    return {name: array for part in parts.values() for name, array in part.items()}


def find_package_folder(package: str) -> Path:
    """Returns the folder with config.json in an installed Python package that ships a model."""
    spec = importlib.util.find_spec(package)
    for root in [] if spec is None else spec.submodule_search_locations or []:
        folders = [path.parent for path in sorted(Path(root).rglob(CONFIG), key=lambda path: (len(path.parts), path))]
        models = [folder for folder in folders if (folder / ONE_FILE).is_file() or (folder / INDEX).is_file()]
        models += sorted(Path(root).rglob(f"*{gguf_files.SUFFIX}"))
        if models:
            return models[0]
    raise FileNotFoundError(f"no installed package {package!r} with a {CONFIG} and weights beside it, or a GGUF file")


class Tokenizer:
    """Text to tokens and back; `size` is the number of tokens."""

    def __init__(self, path: str | os.PathLike, embedded: int | None = None):
        """Reads tokenizer.json, without its settings of truncation and padding.

        Args:
          path: of the file.
          embedded: number of tokens that the network embeds, so that `encode` refuses others; None:
            any.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError("tokenizer.json is read by the package tokenizers: pip install 'fedjax-core[text]'") from None
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no {path}; a tokenizer is read from tokenizer.json alone")
        try:
            text = gguf_files.read_tokenizer(path) if is_gguf(path) else Path(path).read_text(encoding="utf-8")
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"{path} is no tokenizer ({error})") from None
        _check_template(path, json.loads(self._tokenizer.to_str()).get("post_processor"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size, self._embedded, self._path = self._tokenizer.get_vocab_size(), embedded, path

    def encode(self, texts: Sequence[str], special: bool = True, limit: int | None = None) -> list[list[int]]:
        """Encodes each text as tokens.

        Args:
          texts: any number.
          special: whether to add the tokens that the model expects at the beginning and the end.
          limit: the most tokens, those included; of a longer text the tail is kept. None: no limit.

        Raises:
          ValueError: the limit has no room for text, or a text has a token that the network does
            not embed.
        """
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        if limit is not None:
            room = limit - (self._tokenizer.num_special_tokens_to_add(False) if special else 0)
            if room < 1:
                raise ValueError(f"limit={limit} leaves no room for text")
            for encoding in encodings:
                encoding.truncate(room, direction="left")
        if special:
            encodings = [self._tokenizer.post_process(encoding, None, True) for encoding in encodings]
        rows = [encoding.ids for encoding in encodings]
        self._check(rows, texts)
        return rows

    def _check(self, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> None:
        """Raises ValueError for a token that the network does not embed."""
        size = self._embedded
        if size is None:
            return
        for row, text in zip(rows, texts, strict=True):
            if row and max(row) >= size:
                token = self._tokenizer.id_to_token(max(row))
                raise ValueError(
                    f"{self._path} makes the token {token!r} of the text {shorten(text)}; its id is {max(row)}, "
                    f"and the model embeds vocab_size={size} tokens, ids 0 to {size - 1}: resize its embedding "
                    "for the tokens that were added, or take the tokenizer of these weights"
                )

    def decode_special(self, tokens: Sequence[int]) -> list[str | None]:
        """Returns the text of each token, special ones too."""
        return [self._tokenizer.id_to_token(token) for token in tokens]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Decodes each sequence of tokens, without the special ones."""
        return self._tokenizer.decode_batch([list(row) for row in tokens], skip_special_tokens=True)


def _check_template(path: str | os.PathLike, processor: Any) -> None:
    """Raises ValueError for a template that names a special token that it does not list.

    The package would end the process.
    """
    if not isinstance(processor, dict):
        return
    for inner in processor.get("processors") or ():  # of a sequence
        _check_template(path, inner)
    listed = processor.get("special_tokens")
    if processor.get("type") != "TemplateProcessing" or not isinstance(listed, dict):
        return
    for piece in [*processor.get("single", ()), *processor.get("pair", ())]:
        name = piece.get("SpecialToken", {}).get("id")
        if name is not None and name not in listed:
            known = ", ".join(map(repr, listed)) or "none"
            raise ValueError(f"{path}: the template of its post_processor names {name!r}, its special_tokens are: {known}")


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Returns the tokenizer of a folder, for the network of its config.json, if it has one."""
    if is_gguf(folder):
        return Tokenizer(folder, gguf_files.read_config(folder)["vocab_size"])
    path = Path(folder) / CONFIG
    size = read_json(path, {"vocab_size?": (int, type(None))}).get("vocab_size") if path.is_file() else None
    tokenizer = Tokenizer(Path(folder) / TOKENIZER, size)
    _warn_of_ends(Path(folder) / TOKENIZER_CONFIG, tokenizer)
    return tokenizer


def _warn_of_ends(path: Path, tokenizer: Tokenizer) -> None:
    """Warns where tokenizer_config.json asks for a first or last token and tokenizer.json, which is read, does otherwise."""
    config = read_json(path, {}) if path.is_file() else {}
    added = tokenizer.decode_special(tokenizer.encode([""])[0])
    asked = {name: flag for name in ("bos", "eos") if isinstance(flag := config.get(f"add_{name}_token"), bool)}
    given = {name: config.get(f"{name}_token") for name in asked}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
    wanted = [texts[name] for name in asked if asked[name]]  # both may be one token
    for name, token in texts.items():
        if isinstance(token, str) and (token in wanted) != (token in added):
            does = f"adds {token!r}" if token in added else "adds none"
            _log.warning("%s has add_%s_token=%s, and %s, which is read alone, %s", path, name, asked[name], TOKENIZER, does)
