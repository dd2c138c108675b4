"""Classifiers of images by CLIP, whose classes are texts with learned prompts; CLIP is frozen.

Zhou, Yang, Loy, Liu. Learning to Prompt for Vision-Language Models. IJCV 2022 (CoOp).
https://arxiv.org/abs/2109.01134
Guo, Guo, Wang, Xu. PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
Models. 2022. https://arxiv.org/abs/2208.11625
Qiu, Li, Mummadi, Ganesh, Li, Peng, Lin. Federated Text-driven Prompt Generation for
Vision-Language Models. ICLR 2024 (FedTPG). https://arxiv.org/abs/2310.06123

  model = make_prompted_classifier(clip, tokens, mask, prompts=16)  # CoOp's, for PromptFL
  model = make_prompted_classifier(clip, tokens, mask, prompts=4, generated=True)  # for FedTPG
  task = make_partial_task(model, Net({"clip": params}, {}), ("prompts",), classes=K, population=N)

  paper          here                 meaning
  t_k            tokens, mask         tokens of class k: begin, name, end
  v_1 .. v_m     prompts              [m, D] vectors between the begin and the name
  T              names                [K, P] texts of the classes, encoded without prompts
  f_theta        PromptGenerator      x = attention of Q over T; v = x + MLP(x)
  logit_k        exp(scale) cos(image, text of (begin, v_1 .. v_m, name k, end))

A further entry "classes" of the params, a mask [K], restricts T and the logits to these classes:
others have the logit `ABSENT_LOGIT`. `clip_task.py` makes the task of a config.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.language.models.blocks import LayerNorm
from fedjax_core.language.models.clip import Clip
from fedjax_core.language.models.transformer import Linear, as_pure_functions
from fedjax_core.nn.kernels.attention import attend, gelu, split_heads
from fedjax_core.task import Model
from fedjax_core.training.few_shot import ABSENT_LOGIT

HEADS, WIDER, STD, EPSILON = 4, 4, 0.02, 1e-5  # FedTPG's released sizes


class PromptGenerator(nnx.Module):
    """FedTPG's network: prompts [m, D] from the encoded names [K, P] of classes."""

    def __init__(self, prompts: int, width: int, names: int, rngs: nnx.Rngs):
        make = lambda inputs, outputs, bias=True: Linear(inputs, outputs, bias=bias, std=inputs**-0.5, rngs=rngs)
        norm = lambda width: LayerNorm(width, EPSILON, jnp.float32)
        self.queries = nnx.Param(STD * jax.random.normal(rngs.params(), (prompts, width)))
        self.query, self.key = make(width, width), make(names, width)
        self.value, self.output = make(names, width), make(width, width)
        self.gate, self.up, self.down = make(width, WIDER * width), make(width, WIDER * width), make(WIDER * width, width)
        self.query_norm, self.names_norm, self.mlp_norm = norm(width), norm(names), norm(width)

    def __call__(self, names: Array, classes: Array | None = None) -> Array:
        """Maps [K, P] to [m, D], by the names in the mask [K] alone."""
        attended = None if classes is None else jnp.broadcast_to(classes, (1, len(self.queries.get_value()), len(classes)))
        names = self.names_norm(names[None])
        query, key, value = self.query(self.query_norm(self.queries.get_value()[None])), self.key(names), self.value(names)
        query, key, value = (split_heads(part, HEADS) for part in (query, key, value))
        x = self.output(attend(query, key, value, attended))
        inner = self.mlp_norm(x)
        return (x + self.down(gelu(self.gate(inner)) * self.up(inner)))[0]


class Prompts(nnx.Module):
    """Learned prompts [m, D], which depend on nothing."""

    def __init__(self, prompts: int, width: int, rngs: nnx.Rngs):
        self.vectors = nnx.Param(STD * jax.random.normal(rngs.params(), (prompts, width)))

    def __call__(self, names: Array, classes: Array | None = None) -> Array:
        """Returns [m, D]."""
        del names, classes
        return self.vectors.get_value()


def make_prompted_classifier(clip: Clip, tokens: np.ndarray, mask: np.ndarray, prompts: int = 16, generated: bool = False) -> Model:
    """Makes a classifier of images [B, H, W, 3], normalized as CLIP's.

    Its params are {"clip", "prompts"}; no gradient reaches the former. Features are the encoded
    images. The same prompts serve other classes: make another classifier of their tokens.

    Args:
      clip: by `load_pretrained.load_clip`.
      tokens: [K, T] int32 of the classes' texts, such as "a cat.", with begin and end.
      mask: [K, T] bool, padding on the right.
      prompts: m.
      generated: whether FedTPG's network makes them; else they are learned as they are.

    Raises:
      ValueError: no prompts, padding on the left, or more tokens than CLIP takes.
    """
    texts: Any = np.asarray(tokens, np.int32)
    shown: Any = np.asarray(mask, bool)
    if prompts < 1:
        raise ValueError(f"prompts={prompts} must be at least 1")
    if not shown[:, :2].all() or (np.diff(shown.astype(int), axis=1) > 0).any():
        raise ValueError("mask: each class needs a begin and an end, and padding on the right")
    if texts.shape[1] + prompts > clip.context:
        raise ValueError(f"{texts.shape[1]} tokens and prompts={prompts} for {clip.name}: it takes at most {clip.context}")
    if generated and clip.width % HEADS:
        raise ValueError(f"{clip.name}: generated prompts need a width of texts that {HEADS} divides")
    make: Any = lambda rngs: (
        PromptGenerator(prompts, clip.width, clip.projection, rngs) if generated else Prompts(prompts, clip.width, rngs)
    )
    init_prompts, prompter = as_pure_functions(make)

    def init(key: Array) -> Net:
        clip_key, own_key = jax.random.split(key)
        return Net({"clip": clip.init(clip_key), "prompts": init_prompts(own_key)}, {})

    def encode_classes(params: PyTree) -> Array:
        frozen = jax.lax.stop_gradient(params["clip"])
        own = prompter(params["prompts"])(clip.encode_text(frozen, texts, shown), params.get("classes"))
        seen: Any = np.pad(shown, ((0, 0), (prompts, 0)), constant_values=True)
        x = clip.embed_tokens(frozen, texts)
        own = jnp.broadcast_to(own.astype(x.dtype), (len(texts), *own.shape))
        x = jnp.concatenate([x[:, :1], own, x[:, 1:]], 1)
        return clip.encode_embeddings(frozen, x, seen)

    def head(net: Net, features: Array) -> Array:
        scale = jnp.exp(jax.lax.stop_gradient(net.params["clip"]["scale"]).astype(jnp.float32))
        logits = scale * jnp.matmul(features, encode_classes(net.params).T, preferred_element_type=jnp.float32)
        classes = net.params.get("classes")
        return logits if classes is None else jnp.where(classes, logits, ABSENT_LOGIT)

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train, mask
        return clip.encode_image(jax.lax.stop_gradient(net.params["clip"]), x), net.stats

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        encoded, stats = features(net, x)
        outputs = {"logits": head(net, encoded), "features": encoded}
        return outputs | ({"intermediates": {}} if intermediates else {}), stats

    name = f"{'generated' if generated else 'learned'} prompts of {clip.name}"
    return Model(init, apply, features, head, name, takes_classes=True)
