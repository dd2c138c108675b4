"""Models from NNX modules: pure functions over plain nested dicts."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core import registry
from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.nn.causal_transformer import Causal
from fedjax_core.nn.cnn import CNN
from fedjax_core.nn.input_wrappers import with_frame, with_resizing
from fedjax_core.nn.layers import spread_mask
from fedjax_core.nn.lstm import LSTM
from fedjax_core.nn.mlp import MLP
from fedjax_core.nn.resnet import Bottleneck, ResNet
from fedjax_core.nn.vit import ViT
from fedjax_core.option_types import AtLeastOne, AtLeastZero
from fedjax_core.task import Model

STATS_MODES = ("average", "local", "freeze")
Scale = float | Sequence[float]


def from_module(
    make: Callable[[nnx.Rngs], Any],
    name: str,
    mean: Scale | None = 0.0,
    std: Scale | None = 1.0,
    stats_mode: str = "average",
    dtype: jax.typing.DTypeLike | None = None,
    images: bool = False,
    limit: float | None = None,
) -> Model:
    """Makes a Model of a module, split once into a static graph and pure nested dicts.

    The module has a linear `head` and a method `body(x, key=, train=, batch=, mask=) -> (features
    [B, D], {name: array})`, for texts [B, T, D], where `batch` is whether batch normalization uses
    (and updates by) the batch's statistics. Its variables are `nnx.Param` and `nnx.BatchStat` only,
    and it draws from `key` only. Its class may have `model_axes`, see `task.find_model_axis`, and
    `flattened`, see `task.Model`.

    Args:
      make: builds the module from its initial random streams.
      mean: subtracted from inputs, one number or one per channel; uint8 inputs are divided by 255
        first. None: inputs are not changed, such as tokens.
      std: inputs are divided by it.
      stats_mode: "average" and "local": training uses and updates batch statistics (the caller
        decides where they are kept); "freeze": the running statistics are always used, and never
        updated.
      dtype: of the computation, by default float32; parameters, statistics, features and logits are
        float32.
      images: whether inputs are images, which must be floats after normalization.
      limit: normalized inputs are clipped to [-limit, limit]; None: not at all.

    Raises:
      ValueError: unknown `stats_mode`, or variables of another kind; (when traced) images are ints.
    """
    registry.check_choice("stats_mode", stats_mode, STATS_MODES)
    abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    graphdef, _, _, others = nnx.split(abstract, nnx.Param, nnx.BatchStat, ...)
    if jax.tree.leaves(others):
        raise ValueError(f"{name} has variables besides Param and BatchStat: {nnx.to_pure_dict(others)}")
    head_graphdef, head_shapes = nnx.split(abstract.head, nnx.Param)
    no_head = {"head": nnx.to_pure_dict(head_shapes)}

    @jax.jit  # traced once, though a simulation calls it from several programs: a module's constructor traces slowly
    def init(key: Array) -> Net:
        _, params, stats = nnx.split(make(nnx.Rngs(params=key)), nnx.Param, nnx.BatchStat)
        return Net(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def run(net, x, key, train, mask):
        module = nnx.merge(graphdef, no_head | net.params, net.stats)
        x, given = normalize_inputs(x, mean, std, dtype, limit), x.dtype
        if images and not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"images must be uint8 or floats, {name} was given {given}{list(x.shape[1:])} and no mean to subtract")
        if mask is not None:
            x = jnp.where(spread_mask(mask, x), x, 0)
        batch = train and stats_mode != "freeze"
        features, seen = module.body(x, key=key, train=train, batch=batch, mask=mask)
        stats = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat)) if batch else net.stats
        return features.astype(jnp.float32), seen, stats

    def features(
        net: Net, x: Array, key: Array | None = None, train: bool = False, mask: Array | None = None
    ) -> tuple[Array, PyTree]:
        z, _, stats = run(net, x, key, train, mask)
        return z, stats

    def head(net: Net, features: Array) -> Array:
        return nnx.merge(head_graphdef, net.params["head"])(features).astype(jnp.float32)

    def apply(
        net: Net,
        x: Array,
        key: Array | None = None,
        train: bool = False,
        mask: Array | None = None,
        intermediates: bool = False,
    ) -> tuple[dict[str, Any], PyTree]:
        z, seen, stats = run(net, x, key, train, mask)
        outputs: dict[str, Any] = {"logits": head(net, z), "features": z}
        return (outputs | {"intermediates": seen} if intermediates else outputs), stats

    axes, flattened = getattr(abstract, "model_axes", {}), getattr(abstract, "flattened", None)
    flattened = None if flattened is None else tuple(flattened.items())
    return Model(init, apply, features, head, name, model_axes=tuple(axes.items()), flattened=flattened)


def normalize_inputs(
    x: Array, mean: Scale | None, std: Scale | None, dtype: jax.typing.DTypeLike | None, limit: float | None = None
) -> Array:
    """Normalizes inputs, see `from_module`."""

    def spread(scale: Scale) -> Array:
        """Reshapes one number or one per channel to broadcast against x."""
        array = jnp.asarray(scale, jnp.float32)
        return jnp.reshape(array, (1,) * (x.ndim - array.ndim) + array.shape)

    if mean is None or std is None:
        return x
    unit = 255.0 if x.dtype == jnp.uint8 else 1.0
    scaled = (x.astype(jnp.float32) / unit - spread(mean)) / spread(std)
    scaled = scaled if limit is None else jnp.clip(scaled, -limit, limit)
    return scaled.astype(dtype or jnp.float32)


TEXT_MODULES: dict[str, type[nnx.Module]] = {"lstm": LSTM, "causal": Causal}  # models of token ids [T]
MODULES: dict[str, type[nnx.Module]] = {"mlp": MLP, "cnn": CNN, "vit": ViT} | TEXT_MODULES
RESNETS = {
    "resnet8": {"blocks": (1, 1, 1)},
    "resnet10": {"blocks": (1, 1, 1, 1)},
    "resnet18": {"blocks": (2, 2, 2, 2)},
    "resnet34": {"blocks": (3, 4, 6, 3)},
    "resnet50": {"blocks": (3, 4, 6, 3), "block": Bottleneck},
}
VITS = {
    "vit_s16": {"patch": 16, "width": 384, "depth": 12, "heads": 6},
    "vit_b16": {"patch": 16, "width": 768, "depth": 12, "heads": 12},
    "vit_l16": {"patch": 16, "width": 1024, "depth": 24, "heads": 16},
}
FIXED_OPTIONS = RESNETS | VITS
MODULES |= dict.fromkeys(RESNETS, ResNet) | dict.fromkeys(VITS, ViT)


def build(
    name: str,
    classes: int,
    input_shape: tuple[int, ...],
    mean: Scale | None = 0.0,
    std: Scale | None = 1.0,
    stats_mode: str = "average",
    dtype: jax.typing.DTypeLike | None = None,
    limit: float | None = None,
    **options: Any,
) -> Model:
    """Builds a model of `MODULES` by name; equal arguments give equal tree structures.

    Args:
      input_shape: of one example, [H, W, C] for the convolutional ones.
      mean, std, stats_mode, dtype, limit: see `from_module`.
      **options: keyword arguments of the module (`widths`, `norm`, `stem`, `conv_form`, ...). Image
        models also take `resize`, the size (height and width, or one number) to which images are
        scaled first, and `frame`, the width of a frame of learnable pixels (`input_wrappers.py`).

    Raises:
      ValueError: unknown name or option, or `resize` or `frame` is out of range or given for inputs
        that are no images.
    """
    module = MODULES[registry.check_choice("model", name, MODULES)]
    own = {p.name for p in inspect.signature(module.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY}
    fixed = FIXED_OPTIONS.get(name, {})
    allowed = (own | {"resize", "frame"}) - {"rngs", "dtype", "blocks", "block", *fixed}
    for option in options:
        registry.check_choice(f"option of {name}", option, sorted(allowed))
    image = shape = tuple(input_shape)
    resize, frame = options.pop("resize", None), options.pop("frame", 0)
    if resize is not None or frame:
        if len(shape) != 3:
            raise ValueError(f"resize={resize}, frame={frame} of {name}: inputs of shape {list(shape)} are no images [H, W, C]")
        if frame and options.get("prompts"):
            raise ValueError(f"frame={frame} of {name}: it has prompts={options['prompts']} tokens; a network has one or the other")
        sizes = () if resize is None else (resize, resize) if isinstance(resize, int) else tuple(resize)
        are_sizes = len(sizes) in (0, 2) and all(isinstance(n, int) and n >= 1 for n in sizes)
        if not (isinstance(frame, int) and frame >= 0 and are_sizes):
            raise ValueError(f"resize={resize}, frame={frame} of {name}: must be positive, one number or (height, width), and >= 0")
        size = image_size(shape, resize=resize)
        assert size is not None
        image, shape = (*size, shape[2]), (size[0] + 2 * frame, size[1] + 2 * frame, shape[2])
    if name in TEXT_MODULES and (len(shape) != 1 or mean is not None):
        what = f"model {name!r} reads token ids [T], and these examples have the shape {list(shape)}"
        raise ValueError(what if len(shape) != 1 else f"{what} and are no ints that are left unchanged (mean=None)")
    images = name not in ("mlp", *TEXT_MODULES)
    if images and len(shape) != 3:
        what = f"model {name!r} reads images [H, W, C], and these examples have the shape {list(shape)}"
        raise ValueError(f"{what}; 'mlp' reads rows of numbers, and so may a network of yours")
    make = functools.partial(module, classes, shape, dtype=dtype, **fixed, **options)
    model = from_module(lambda rngs: make(rngs=rngs), name, mean, std, stats_mode, dtype, images, limit)
    model = with_frame(model, image, frame) if frame else model
    model = model._replace(vocabulary=classes) if name in TEXT_MODULES else model
    return model if resize is None else with_resizing(model, (image[0], image[1]))


def image_size(
    input_shape: Sequence[int],
    *,
    resize: AtLeastOne | tuple[AtLeastOne, AtLeastOne] | None = None,
    frame: AtLeastZero = 0,
    **others: Any,
) -> tuple[int, int] | None:
    """Returns the height and width of images as a network with these options sees them; None for other inputs."""
    del others
    if len(input_shape) != 3:
        return None
    height, width = input_shape[:2] if resize is None else (resize, resize) if isinstance(resize, int) else resize
    return height + 2 * frame, width + 2 * frame
