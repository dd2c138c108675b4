"""Learned prompts of a small random CLIP: against loops, and trained by FedAvg."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data
from fedjax_core.data.sources import Dataset
from fedjax_core.engine import simulator
from fedjax_core.language import clip_prompts
from fedjax_core.language.models import clip
from fedjax_core.task import make_partial_task
from fedjax_core.training import optimizers
from methods.fedavg import fedavg

SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.4}
CONFIG = {
    "model_type": "clip",
    "projection_dim": 6,
    "text_config": SIZES | {"vocab_size": 17, "max_position_embeddings": 9},
    "vision_config": SIZES | {"image_size": 4, "patch_size": 2},
}
TOKENS = np.array([[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 9, 2]], np.int32)
MASK = TOKENS > 0


@functools.cache
def network():
    model = clip.build(CONFIG)
    return model, jax.jit(model.init)(jax.random.key(0))


def norm(x, p):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p["scale"] + p["bias"]


def linear(x, p):
    return x @ p["kernel"] + p["bias"]


def generate(p, names):
    """FedTPG's prompts, one query and one head after another."""
    seen = [norm(name, p["names_norm"]) for name in names]
    keys, values = ([linear(name, p[part]) for name in seen] for part in ("key", "value"))
    prompts = []
    for query in p["queries"]:
        query, mixed = linear(norm(query, p["query_norm"]), p["query"]), []
        for head in range(4):
            own = slice(2 * head, 2 * head + 2)
            scores = np.exp([query[own] @ key[own] / np.sqrt(2) for key in keys])
            mixed.append(sum(score * value[own] for score, value in zip(scores / scores.sum(), values, strict=True)))
        x = linear(np.concatenate(mixed), p["output"])
        inner = norm(x, p["mlp_norm"])
        gate = np.asarray(jax.nn.gelu(linear(inner, p["gate"]), approximate=False))
        prompts.append(x + linear(gate * linear(inner, p["up"]), p["down"]))
    return np.stack(prompts)


@pytest.mark.parametrize("generated", [False, True])
def test_logits_are_those_of_each_class_by_itself(generated):
    text, params = network()
    model = clip_prompts.make_prompted_classifier(text, TOKENS, MASK, prompts=3, generated=generated)
    net = jax.jit(model.init)(jax.random.key(1))._replace(stats={})
    net = Net({"clip": params, "prompts": net.params["prompts"]}, {})
    images = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
    logits = np.asarray(jax.jit(model.apply)(net, images)[0]["logits"])
    own = jax.device_get(net.params["prompts"])
    names = [
        np.asarray(text.encode_text(params, TOKENS[k, None, : MASK[k].sum()], MASK[k, None, : MASK[k].sum()])[0]) for k in range(3)
    ]
    prompts = generate(own, names) if generated else own["vectors"]
    table = np.asarray(params["text"]["embedding"]["token"])
    for k in range(3):
        begin, *rest = TOKENS[k, : MASK[k].sum()]
        x = np.concatenate([table[begin][None], prompts, table[rest]])[None]
        encoded = text.encode_embeddings(params, jnp.asarray(x), np.ones(x.shape[:2], bool))[0]
        for b in range(2):
            image = text.encode_image(params, images[b, None])[0]
            assert logits[b, k] == pytest.approx(float(np.exp(params["scale"]) * image @ encoded), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("generated", [False, True])
def test_clients_learn_prompts_together(generated):
    """Labels of a classifier with other prompts; only prompts are trained and sent."""
    text, params = network()
    model = clip_prompts.make_prompted_classifier(text, TOKENS, MASK, prompts=3, generated=generated)
    images = np.random.default_rng(0).normal(size=(48, 4, 4, 3)).astype(np.float32)
    teacher = Net(
        {"clip": params, "prompts": jax.tree.map(lambda leaf: leaf + 1.0, model.init(jax.random.key(5)).params["prompts"])}, {}
    )
    labels = np.asarray(jnp.argmax(model.apply(teacher, images)[0]["logits"], -1), np.int32)
    dataset = Dataset("pictures", Examples(images, labels), Examples(images, labels), ("a", "b", "c"))
    index = [np.arange(i, 48, 4, dtype=np.int32) for i in range(4)]
    data = federated_data.from_index(dataset, index, index)
    task = make_partial_task(model, Net({"clip": params}, {}), ("prompts",), classes=3, population=4)
    build = functools.partial(fedavg, optimizer=optimizers.adam(0.03), epochs=2, batch=6)
    sim = simulator.Simulator(simulator.build_spec(simulator.one_group(build, task, 4), data))
    state, records = sim.run_rounds(sim.init(0), 5)
    assert set(state.server.net.params) == {"prompts"}
    assert records[-1]["train/loss"] < 0.9 * records[0]["train/loss"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompts": 0}, "prompts=0 must be at least 1"),
        ({"prompts": 6}, "4 tokens and prompts=6 for clip of widths 8 and 8: it takes at most 9"),
        ({"mask": MASK[:, ::-1]}, "padding on the right"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        clip_prompts.make_prompted_classifier(network()[0], **({"tokens": TOKENS, "mask": MASK, "prompts": 2} | change))
