"""CLIP with learned prompts for images, as a config names it: the network and its task.

  config.models = ("clip(folder='clip-vit-base-patch16', prompts=16)",)  # PromptFL
  config.models = ("clip(folder='clip-vit-base-patch16', prompts=4, generated=True)",)  # FedTPG
  config.models = ("clip(prompts=16)",)  # small and random

Both encoders are frozen. Classes are called as the data set calls them, with spaces for "_". Images
are resized, bilinearly and whole, to the size of config.json, grey ones have three equal channels,
and all are normalized by CLIP's own mean and deviation.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Net
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.sources.dataset import is_images
from fedjax_core.language import clip_prompts, instruction_data, load_pretrained
from fedjax_core.language.models import clip
from fedjax_core.language.models.transformer import DTYPES
from fedjax_core.lazy_array import blank_array
from fedjax_core.nn import normalize_inputs
from fedjax_core.option_types import AtLeastOne, one_of
from fedjax_core.task import Model, Task, make_partial_task, map_inputs

MODEL, TRAINED = "clip", "prompts"
BEGIN, END = 256, 257  # tokens of the random network, after the bytes
_WIDTHS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.125,
}
RANDOM = {
    "model_type": "clip",
    "projection_dim": 64,
    "logit_scale_init_value": 4.6052,  # at which CLIP's training ends
    "text_config": _WIDTHS | {"vocab_size": END + 1},
    "vision_config": _WIDTHS | {"image_size": 16, "patch_size": 4},
}
PUBLISHED = {  # config.json of folders by name, to count and trace without the files
    f"clip-vit-base-patch{patch}": {"model_type": "clip", "vision_config": {"patch_size": patch}} for patch in (16, 32)
}


class Spec(NamedTuple):
    """CLIP, as classifier of images by the names of their classes.

    Attributes:
      folder: in the public layout (`load_pretrained.py`); None: a small random network, whose tokens
        are bytes.
      prompts: m, vectors between the begin of a text and its class.
      generated: whether a network makes the prompts from the names of classes; else they are
        learned as they are.
      text: of a class, with {} for its name.
      dtype: of parameters and computation.
      remat: whether backward passes compute layers anew, to save memory.
    """

    folder: str | None = None
    prompts: AtLeastOne = 16
    generated: bool = False
    text: str = "{}."
    dtype: Annotated[str, one_of(*DTYPES)] = "float32"
    remat: bool = False


def build_task(spec: Spec, data: FederatedData, seed: int, shapes_only: bool = False) -> Task:
    """Builds the task of the prompts of a CLIP.

    Args:
      spec: which CLIP.
      data: images [H, W, C], C of 1 or 3, and the names of their classes.
      seed: of the encoders of a random network.
      shapes_only: zeros that take no memory in place of the encoders, which are not read.

    Raises:
      ValueError: the data are no images, or a name has too many tokens; or as `load_clip`.
    """
    folder = None if spec.folder is None else Path(spec.folder).expanduser()
    config: Any = RANDOM
    encode = _encode_bytes
    if folder is not None:
        if not shapes_only or (folder / load_pretrained.CONFIG).is_file():
            config = load_pretrained.read_config(folder)
            encode = load_pretrained.load_tokenizer(folder).encode
        else:
            config = _published_config(folder)
    network = clip.build(config, spec.dtype, spec.remat)
    if not is_images(data.train.x):
        raise ValueError(
            f"model {MODEL!r} reads images [H, W, C] of 1 or 3 channels; examples have the shape {data.train.x.shape[1:]}"
        )
    if spec.text.count("{}") != 1:
        raise ValueError(f"model {MODEL!r}: text={spec.text!r} must have one {{}}, for the name of a class")
    texts = [spec.text.replace("{}", name.replace("_", " ")) for name in data.class_names]
    padded = instruction_data.pad_sequences(encode(texts), 1, side="right")
    model = clip_prompts.make_prompted_classifier(network, *padded, prompts=spec.prompts, generated=spec.generated)
    if shapes_only:
        params = jax.tree.map(blank_array, jax.eval_shape(network.init, jax.random.key(0)))
    elif folder is None:
        params = jax.device_get(jax.jit(network.init)(jax.random.key(seed)))
    else:
        params = clip.from_tensors(config, load_pretrained.read_folder_tensors(folder), spec.dtype)
    settings: Any = {"classes": data.classes, "population": data.clients, "shape": tuple(data.train.x.shape[1:])}
    return make_partial_task(_with_preprocessing(model, network.size), Net({"clip": params}, {}), (TRAINED,), **settings)


def _published_config(folder: Path) -> dict[str, Any]:
    if folder.name not in PUBLISHED:
        raise FileNotFoundError(f"{folder} has no {load_pretrained.CONFIG}; without it, {', '.join(PUBLISHED)} are known by name")
    return PUBLISHED[folder.name]


def _encode_bytes(texts: list[str]) -> list[list[int]]:
    return [[BEGIN, *text.encode(), END] for text in texts]


def _with_preprocessing(model: Model, size: int) -> Model:
    """Returns the model with resizing and normalization of its images."""

    def view(x: Array, key: Array | None, train: bool) -> Array:
        del key, train
        x = normalize_inputs(x, (0.0,), (1.0,), None)  # to [0, 1]
        x = jax.image.resize(x, (len(x), size, size, x.shape[-1]), "linear")
        return normalize_inputs(jnp.broadcast_to(x, (*x.shape[:3], 3)), clip.MEAN, clip.STD, None)

    return map_inputs(model, view)
