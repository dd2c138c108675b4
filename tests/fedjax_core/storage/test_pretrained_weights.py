"""Weights in other programs' layouts: what those programs compute with them, we compute; and the other way round.

transformers is asked live (extra `reference`); timm's answers are in tests/fixtures/timm.npz; the first release's network is
written out in numpy.
"""

import contextlib
import functools
import json
import math
import zipfile
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import zoom

from fedjax_core import nn
from fedjax_core.nn.from_nnx import from_module
from fedjax_core.nn.resnet import Block, Bottleneck, ResNet
from fedjax_core.storage import export_model, pretrained_weights, weight_layouts
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

TIMM = Path(__file__).parents[2] / "fixtures" / "timm.npz"
VIT = {"patch": 8, "width": 16, "depth": 2, "heads": 2}


@functools.cache
def fixture(name):
    with np.load(TIMM) as archive:
        found = {key.removeprefix(f"{name}/"): archive[key] for key in archive.files if key.startswith(f"{name}/")}
    return {key: a.transpose(0, 2, 3, 1) if a.ndim == 4 and "/" not in key else a for key, a in found.items()}


def saved(path, name, **changes):
    """The fixture's weights as timm's own file has them."""
    tensors = {key.removeprefix("weights/"): a for key, a in fixture(name).items() if key.startswith("weights/")}
    tensors = {key: a for key, a in (tensors | changes).items() if a is not None}
    write_tensors(path, tensors, {"format": "pt"})
    return tensors


@functools.cache
def vit(classes=5, shape=(32, 32, 3), name="vit", **options):
    return nn.build(name, classes, shape, **(VIT | options))


@functools.cache
def resnet(classes=3, bottleneck=False, blocks=(1, 1), width=64, **options):
    settings = {"blocks": blocks, "block": Bottleneck if bottleneck else Block, "stem": "imagenet", "width": width} | options
    return from_module(lambda rngs: ResNet(classes, (30, 26, 3), rngs=rngs, **settings), "resnet")


MODELS = {"vit": vit, "resnet": resnet, "bottleneck": functools.partial(resnet, bottleneck=True)}


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def filled(model):
    """Any numbers; positive, where they may be variances."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: np.abs(rng.normal(0.5, 0.3, leaf.shape)).astype(np.float32), shapes(model))


def outputs(model, net, x):
    return jax.jit(functools.partial(model.apply, intermediates=True))(net, x)[0]


def close(found, wanted, name=""):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, err_msg=name)


# ----------------------------------------------------------------------------------------------------------------------- timm


@pytest.mark.parametrize("name", MODELS)
def test_timm(tmp_path, name):
    model, wanted, path = MODELS[name](), fixture(name), tmp_path / "m.safetensors"
    tensors = saved(path, name)
    net = pretrained_weights.read_backbone(path, name, shapes(model))
    chex.assert_trees_all_equal_shapes_and_dtypes(net, shapes(model))
    found = outputs(model, net, wanted["x"])
    for key in ("logits", "features"):
        close(found[key], wanted[key], key)
    hidden = ("block1", "block2") if name == "vit" else ("stage1", "stage2")
    for i, key in enumerate(hidden, 1):
        close(found["intermediates"][key], wanted[f"hidden{i}"], key)
    # what we write is what timm wrote, but for counters of batches
    pretrained_weights.write_weights(path, net, "timm", {"mean": (0.5,)})
    written, metadata = read_tensors(path)
    assert metadata["format"] == "pt"
    assert json.loads(metadata["description"]) == {"mean": [0.5]}
    assert written.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert written[key].dtype == tensor.dtype
        if "num_batches" not in key:
            np.testing.assert_array_equal(written[key], tensor, err_msg=key)


def test_timm_positions_of_another_grid(tmp_path):
    saved(tmp_path / "m", "vit")
    old = fixture("vit")["weights/pos_embed"][0]
    for grid in ((3, 5), (2, 2), (7, 6)):
        wanted = fixture("vit")["positions{}x{}".format(*grid)][0]
        close(weight_layouts.interpolate(old, grid, "timm"), wanted)
        image = (grid[0] * 8, grid[1] * 8)
        net = pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit(shape=(*image, 3))), image=image)
        close(net.params["positions"], wanted)


# --------------------------------------------------------------------------------------------------------------- transformers


@functools.cache
def reference():
    torch = pytest.importorskip("torch", reason="extra `reference` is not installed")
    return torch, pytest.importorskip("transformers", reason="extra `reference` is not installed")


def theirs(kind, name):
    """A network of transformers' with any weights, ours like it, and the directory-independent config."""
    torch, transformers = reference()
    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            num_labels=5,
        )
        ours = vit(epsilon=1e-12)
    else:
        config = transformers.ResNetConfig(
            embedding_size=4,
            hidden_sizes=[16, 32] if kind == "bottleneck" else [4, 8],
            depths=[1, 2],
            layer_type="bottleneck" if kind == "bottleneck" else "basic",
            num_labels=3,
        )
        ours = resnet(bottleneck=kind == "bottleneck", blocks=(1, 2), width=4)
    network = getattr(transformers, name)(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator) * 0.3
                tensor.copy_(drawn.abs() + 0.5 if key.endswith("running_var") else drawn)
    return torch, network.eval(), ours


def asked(torch, network, x):
    """Their hidden states (images as ours are) and logits, or the final tokens."""
    with torch.no_grad():
        made = network(pixel_values=torch.as_tensor(x.transpose(0, 3, 1, 2).copy()), output_hidden_states=True)
    states = [h.numpy() for h in made.hidden_states]
    last = made.logits if hasattr(made, "logits") else made.last_hidden_state
    return [h.transpose(0, 2, 3, 1) if h.ndim == 4 else h for h in states], last.numpy()


CASES = [
    ("vit", "ViTModel"),
    ("vit", "ViTForImageClassification"),
    ("resnet", "ResNetModel"),
    ("resnet", "ResNetForImageClassification"),
    ("bottleneck", "ResNetForImageClassification"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_transformers(tmp_path, kind, name):
    torch, network, model = theirs(kind, name)
    network.save_pretrained(tmp_path, safe_serialization=True)
    path = tmp_path / "model.safetensors"
    net = pretrained_weights.read_backbone(path, kind, shapes(model))
    classifies = name.endswith("Classification")
    assert ("head" in net.params) == classifies
    assert pretrained_weights.read_options(path) == ({"epsilon": 1e-12} if kind == "vit" else {})
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3) if kind == "vit" else (2, 30, 26, 3)).astype(np.float32)
    states, last = asked(torch, network, x)
    whole = net._replace(params=filled(model).params | net.params)
    found = outputs(model, whole, x)
    seen = found["intermediates"]
    names = ("embedding", "block1", "block2") if kind == "vit" else ("stem", "stage1", "stage2")
    for key, state in zip(names, states, strict=True):
        close(seen[key], state, key)
    close(
        found["logits"] if classifies else seen["final" if kind == "vit" else "stage2"].reshape(last.shape[0], -1, 1),
        last if classifies else (last if last.ndim == 3 else last.transpose(0, 2, 3, 1)).reshape(last.shape[0], -1, 1),
    )


@pytest.mark.parametrize("kind", ["vit", "resnet", "bottleneck"])
def test_transformers_read_what_we_write(tmp_path, kind):
    torch, transformers = reference()
    name = "ViTForImageClassification" if kind == "vit" else "ResNetForImageClassification"
    _, _, model = theirs(kind, name)
    net = filled(model)
    net = net._replace(params=jax.tree.map(lambda leaf: leaf - 0.5, net.params))
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3) if kind == "vit" else (2, 30, 26, 3)).astype(np.float32)
    labels = [f"class {i}" for i in range(net.params["head"]["bias"].shape[0])]
    description = {"model": "vit(epsilon=1e-12)", "input_shape": x.shape[1:], "class_names": labels}
    pretrained_weights.write_weights(tmp_path / "model.safetensors", net, "transformers", description)
    pretrained_weights.write_config(tmp_path / "config.json", net, description)
    network, told = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert list(network.config.id2label.values()) == labels
    states, logits = asked(torch, network.eval(), x)
    found = outputs(model, net, x)
    close(found["logits"], logits)
    close(found["intermediates"]["block2" if kind == "vit" else "stage2"], states[-1])
    assert pretrained_weights.read_options(tmp_path / "model.safetensors") == ({"epsilon": 1e-12} if kind == "vit" else {})
    chex.assert_trees_all_equal(pretrained_weights.read_backbone(tmp_path / "model.safetensors", kind, shapes(model)), net)


def test_positions_are_interpolated_as_each_program_does_it():
    torch, _ = reference()
    old = np.random.default_rng(0).normal(size=(1 + 16, 3)).astype(np.float32)
    image = torch.as_tensor(old[1:].reshape(1, 4, 4, 3).transpose(0, 3, 1, 2).copy())
    for grid in ((2, 7), (5, 4), (1, 9)):
        for layout, antialias in {"transformers": False, "timm": True, "own": True}.items():
            wanted = torch.nn.functional.interpolate(image, size=grid, mode="bicubic", antialias=antialias)[0].numpy()
            found = weight_layouts.interpolate(old, grid, layout)
            np.testing.assert_array_equal(found[0], old[0])
            close(found[1:], wanted.transpose(1, 2, 0).reshape(-1, 3), layout)


def test_transformers_without_torch(tmp_path):
    """Names of version 4, with the prefix, and a pooler, which is behind the features."""
    net = filled(vit())
    pretrained_weights.write_weights(tmp_path / "m", net, "transformers")
    tensors, _ = read_tensors(tmp_path / "m")
    assert "vit.encoder.layer.1.attention.attention.key.weight" in tensors
    assert "classifier.weight" in tensors
    bare = {key.removeprefix("vit."): a for key, a in tensors.items()} | {"pooler.dense.weight": np.zeros((16, 16), np.float32)}
    for given in (tensors, bare):
        write_tensors(tmp_path / "m", given, {})
        chex.assert_trees_all_equal(pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit())), net)
    assert pretrained_weights.read_options(tmp_path / "m") == {"epsilon": 1e-12}
    (tmp_path / "config.json").write_text('{"layer_norm_eps": 1e-6}')
    assert pretrained_weights.read_options(tmp_path / "m") == {"epsilon": 1e-6}
    pretrained_weights.write_weights(tmp_path / "m", net, "transformers", {"model": "vit(epsilon=1e-3)"})
    assert pretrained_weights.read_options(tmp_path / "m") == {"epsilon": 1e-3}


# ------------------------------------------------------------------------------------------------------ the first release of ViT


def release(rng, width=16, depth=2, heads=2, patches=16):
    """A .npz as the first release names its arrays."""
    draw = lambda *shape: rng.normal(0.0, 0.4, shape).astype(np.float32)
    each, top = width // heads, "Transformer"
    found = {
        "embedding/kernel": draw(8, 8, 3, width),
        "embedding/bias": draw(width),
        "cls": draw(1, 1, width),
        f"{top}/posembed_input/pos_embedding": draw(1, 1 + patches, width),
        f"{top}/encoder_norm/scale": draw(width),
        f"{top}/encoder_norm/bias": draw(width),
        "head/kernel": draw(width, 5),
        "head/bias": draw(5),
    }
    for i in range(depth):
        block = f"{top}/encoderblock_{i}"
        for part in ("query", "key", "value"):
            found[f"{block}/MultiHeadDotProductAttention_1/{part}/kernel"] = draw(width, heads, each)
            found[f"{block}/MultiHeadDotProductAttention_1/{part}/bias"] = draw(heads, each)
        found[f"{block}/MultiHeadDotProductAttention_1/out/kernel"] = draw(heads, each, width)
        found[f"{block}/MultiHeadDotProductAttention_1/out/bias"] = draw(width)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            found[f"{block}/{norm}/scale"], found[f"{block}/{norm}/bias"] = draw(width), draw(width)
        found[f"{block}/MlpBlock_3/Dense_0/kernel"], found[f"{block}/MlpBlock_3/Dense_0/bias"] = draw(width, 64), draw(64)
        found[f"{block}/MlpBlock_3/Dense_1/kernel"], found[f"{block}/MlpBlock_3/Dense_1/bias"] = draw(64, width), draw(width)
    return found


def forward(p, image, depth=2):
    """The release's network on one image, in numpy, by the names of its arrays."""
    erf = np.vectorize(math.erf)
    gelu = lambda v: v * 0.5 * (1 + erf(v / math.sqrt(2)))

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * p[f"{name}/scale"] + p[f"{name}/bias"]

    patches = [
        np.tensordot(image[i : i + 8, j : j + 8], p["embedding/kernel"], 3) + p["embedding/bias"]
        for i in range(0, image.shape[0], 8)
        for j in range(0, image.shape[1], 8)
    ]
    x = np.stack([p["cls"][0, 0], *patches]) + p["Transformer/posembed_input/pos_embedding"][0]
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        attention, y = f"{block}/MultiHeadDotProductAttention_1", norm(x, f"{block}/LayerNorm_0")
        q, k, v = (np.tensordot(y, p[f"{attention}/{n}/kernel"], 1) + p[f"{attention}/{n}/bias"] for n in ("query", "key", "value"))
        heads = []
        for h in range(q.shape[1]):
            score = np.exp(q[:, h] @ k[:, h].T / math.sqrt(q.shape[2]))
            heads.append(score / score.sum(1, keepdims=True) @ v[:, h])
        x = x + np.tensordot(np.stack(heads, 1), p[f"{attention}/out/kernel"], 2) + p[f"{attention}/out/bias"]
        y, dense = norm(x, f"{block}/LayerNorm_2"), f"{block}/MlpBlock_3/Dense_"
        x = x + gelu(y @ p[f"{dense}0/kernel"] + p[f"{dense}0/bias"]) @ p[f"{dense}1/kernel"] + p[f"{dense}1/bias"]
    return norm(x, "Transformer/encoder_norm")[0] @ p["head/kernel"] + p["head/bias"]


def test_the_first_release(tmp_path):
    arrays = release(np.random.default_rng(0))
    np.savez(tmp_path / "B_16.npz", **arrays)
    net = pretrained_weights.read_backbone(tmp_path / "B_16.npz", "vit", shapes(vit()))
    x = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    logits = outputs(vit(), net, x)["logits"]
    for row in range(2):
        close(logits[row], forward({key: a.astype(np.float64) for key, a in arrays.items()}, x[row].astype(np.float64)))
    assert pretrained_weights.read_options(tmp_path / "B_16.npz") == {}
    assert pretrained_weights.read_scaling(tmp_path / "B_16.npz") is None


def test_the_first_release_on_other_images_and_in_bfloat16(tmp_path):
    """Positions by scipy's zoom, as the release has it; arrays of two bytes of anything, as numpy saves bfloat16."""
    arrays = release(np.random.default_rng(0))
    np.savez(tmp_path / "m.npz", **{key: a.astype(jnp.bfloat16) for key, a in arrays.items()})
    net = pretrained_weights.read_backbone(tmp_path / "m.npz", "vit", shapes(vit(shape=(48, 24, 3))), image=(48, 24))
    old = arrays["Transformer/posembed_input/pos_embedding"][0].astype(jnp.bfloat16).astype(np.float32)
    wanted = zoom(old[1:].reshape(4, 4, 16), (6 / 4, 3 / 4, 1), order=1).reshape(18, 16)
    np.testing.assert_allclose(net.params["positions"][1:], wanted, rtol=1e-5, atol=1e-6)
    assert net.params["cls"].dtype == np.float32


def test_a_hidden_layer_before_the_head(tmp_path):
    """The head of a network with one does not fit ours, whatever its shape."""
    arrays = release(np.random.default_rng(0)) | {"pre_logits/kernel": np.zeros((16, 16)), "pre_logits/bias": np.zeros(16)}
    np.savez(tmp_path / "m.npz", **arrays)
    assert "head" not in pretrained_weights.read_backbone(tmp_path / "m.npz", "vit", shapes(vit())).params


# ------------------------------------------------------------------------------------------------------------------------- ours


def test_our_own_files(tmp_path):
    description = {
        "model": "vit(patch=4, width=8, depth=2, heads=2, prompts=3)",
        "classes": 3,
        "class_names": ["a", "b", "c"],
        "input_shape": (8, 12, 3),
        "mean": (0.1, 0.2, 0.3),
        "std": 0.25,
        "statistics": "average",
    }
    small = functools.partial(nn.build, "vit", patch=4, width=8, depth=2, heads=2)
    net, path = filled(small(3, (8, 12, 3), prompts=3)), tmp_path / "m"
    export_model.save_model(path, net, description)
    assert pretrained_weights.read_scaling(path) == ((0.1, 0.2, 0.3), (0.25,))
    chex.assert_trees_all_equal(pretrained_weights.read_backbone(path, "vit", shapes(small(3, (8, 12, 3), prompts=3))), net)
    wider = pretrained_weights.read_backbone(path, "vit", shapes(small(4, (16, 12, 3), prompts=3)), image=(16, 12))
    assert "head" not in wider.params
    like = shapes(small(3, (8, 12, 3), prompts=3))
    for names, kept in ((("a", "b", "c"), True), (("d", "e", "f"), False), (("a", "c", "b"), False)):
        assert ("head" in pretrained_weights.read_backbone(path, "vit", like, class_names=names).params) is kept, names
    np.testing.assert_array_equal(wider.params["prompts"], net.params["prompts"])
    close(wider.params["positions"], weight_layouts.interpolate(net.params["positions"], (4, 3), "own", (2, 3)))
    with pytest.raises(ValueError, match=r"params.prompts has no place in vit$"):
        pretrained_weights.read_backbone(path, "vit", shapes(small(3, (8, 12, 3))))
    with pytest.raises(ValueError, match=r"m \(own\): the 9 patches of the network are not a grid of 2 x 2"):
        pretrained_weights.read_backbone(path, "vit", shapes(small(3, (12, 12, 3), prompts=3)), image=(8, 8))
    with pytest.raises(ValueError, match=r"layout timm has no place for params\.prompts; layout own has"):
        pretrained_weights.write_weights(path, net, "timm")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"std": -1.0}, r"m: std=-1.0 must be finite and positive: inputs are normalised by it"),
        ({"std": [1.0, 1e308]}, r"m: std=\[1.0, 1e\+308\] must be finite and positive"),
        ({"mean": 1e308}, r"m: mean=1e\+308 must be finite"),
        ({"params.head.bias": np.inf}, r"m \(own\): params.head.bias is not finite; a network needs finite weights"),
        ({"params.head.bias": 1e308}, r"m \(own\): params.head.bias is not finite"),
        ({"params.head.bias": -1e38}, r"m \(own\): params.head.bias has -1e\+38; a weight must lie between -1.8e\+19 and 1.8e\+19"),
        (
            {"stats.stage1_block1.norm1.var": -1.0},
            r"m \(own\): stats.stage1_block1.norm1.var has -1; a variance must be at least 0",
        ),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_refused(tmp_path, change, said):
    """As `predict` refuses them."""
    description = {"model": "resnet8", "classes": 2, "class_names": ["a", "b"], "input_shape": (8, 8, 3), "statistics": "average"}
    model = nn.build("resnet8", 2, (8, 8, 3))
    net = jax.tree.map(np.array, model.init(jax.random.key(0)))
    arrays = export_model.named_arrays(net)
    for name in change.keys() & arrays.keys():
        arrays[name] = np.full(arrays[name].shape, change[name], np.float64)
    told = description | {"mean": 0.0, "std": 1.0} | {name: change[name] for name in change if name in ("mean", "std")}
    write_tensors(tmp_path / "m", arrays, {"description": json.dumps(told)})
    read = (
        functools.partial(pretrained_weights.read_backbone, name="resnet8", like=shapes(model))
        if change.keys() & arrays.keys()
        else pretrained_weights.read_scaling
    )
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "m")


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_networks_that_others_have_not(tmp_path, name):
    model = nn.build(name, 3, (8, 8, 3))
    with pytest.raises(ValueError, match=r"layout timm has no place for params\.\w+\.bias; such files hold ViTs"):
        pretrained_weights.write_weights(tmp_path / "m", filled(model), "timm")
    with pytest.raises(ValueError, match=r"layout transformers has no place for params\.\w+\.bias; such files hold ViTs"):
        pretrained_weights.write_config(tmp_path / "config.json", filled(model), {})
    saved(tmp_path / "m", "vit")
    with pytest.raises(ValueError, match=r"m \(timm\) has no place for params"):
        pretrained_weights.read_backbone(tmp_path / "m", name, shapes(model))


def test_what_has_no_place_is_not_written(tmp_path):
    for options, leaf in (({"norm": "group"}, r"\w+.norm1.norm.bias"), ({"stem": "cifar"}, "stem.kernel")):
        with pytest.raises(ValueError, match=f"layout transformers has no place for params.{leaf}"):
            pretrained_weights.write_weights(tmp_path / "m", filled(resnet(width=4, **options)), "transformers")
    with pytest.raises(ValueError, match="unknown layout 'npz'; allowed: timm, transformers"):
        pretrained_weights.write_weights(tmp_path / "m", filled(vit()), "npz")
    assert not list(tmp_path.iterdir())


def test_a_configuration_of_something_else_stays(tmp_path):
    (tmp_path / "config.json").write_text('{"rounds": 3}')
    with pytest.raises(ValueError, match=r"config.json is where transformers looks"):
        pretrained_weights.write_config(
            tmp_path / "config.json", filled(vit()), {"model": "vit", "class_names": [], "input_shape": [32, 32, 3]}
        )
    assert (tmp_path / "config.json").read_text() == '{"rounds": 3}'


ZERO = functools.partial(np.zeros, dtype=np.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks.1.attn.qkv.weight": None}, r"m \(timm\) has no blocks.1.attn.qkv.weight, which tiny needs, of shape \[48, 16\]"),
        (
            {"patch_embed.proj.weight": ZERO((16, 3, 4, 4))},
            r"patch_embed.proj.weight is \[16, 3, 4, 4\], tiny needs \[16, 3, 8, 8\]",
        ),
        ({"pos_embed": ZERO((1, 17, 8))}, r"pos_embed is \[1, 17, 8\], tiny needs \[1, 17, 16\]"),
        ({"pos_embed": ZERO((17, 16))}, r"pos_embed is \[17, 16\], tiny needs \[1, 17, 16\]"),
        ({"pos_embed": ZERO((1, 19, 16))}, r"the 18 patches of its network are not a grid of 4 x 4"),
        ({"norm.bias": np.zeros(16, np.int32)}, "norm.bias is of int32, tiny needs floating-point numbers"),
        ({"dist_token": ZERO((1, 1, 16))}, r"dist_token has no place in tiny$"),
        (
            {"blocks.2.norm1.bias": ZERO(16), "blocks.2.norm1.weight": ZERO(16)},
            r"blocks.2.norm1.bias has no place in tiny \(nor have 1 o",
        ),
        ({"blocks.0.ls1.gamma": ZERO(16)}, r"blocks.0.ls1.gamma has no place in tiny"),
    ],
)
def test_files_that_do_not_fit(tmp_path, changes, words):
    saved(tmp_path / "m", "vit", **changes)
    with pytest.raises(ValueError, match=words) as caught:
        pretrained_weights.read_backbone(tmp_path / "m", "tiny", shapes(vit()))
    assert "\n" not in str(caught.value)


def test_a_head_that_does_not_fit_is_left_out(tmp_path):
    saved(tmp_path / "m", "vit")
    net = pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit(classes=7)))
    assert set(net.params) == {"patches", "cls", "positions", "blocks", "norm"}
    saved(tmp_path / "m", "vit", **{"head.bias": None, "head.weight": None})
    assert "head" not in pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit())).params
    assert "prompts" not in pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit(prompts=2))).params


def test_files_of_no_layout(tmp_path):
    write_tensors(tmp_path / "m", {"w.b": ZERO(1), "w.a": ZERO(1)}, {})
    with pytest.raises(ValueError, match=r"m has none of the layouts own, timm, transformers, npz; its first tensors are w.a, w.b"):
        pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit()))
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "objects.npz").read_bytes()[:40])
    for name in ("pytorch_model.bin", "objects.npz", "cut.npz"):
        with pytest.raises(ValueError, match=rf"{name} is not a .npz file of plain arrays, or is damaged; pickles"):
            pretrained_weights.read_weights(tmp_path / name)
    (tmp_path / "old.pth").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        pretrained_weights.read_weights(tmp_path / "old.pth")
    with pytest.raises(FileNotFoundError):
        pretrained_weights.read_weights(tmp_path / "none")


def test_tensors_are_read_where_they_lie(tmp_path):
    """A map of the file, not a copy; what is made of it does not depend on the file any more."""
    saved(tmp_path / "m", "vit")
    arrays, _ = read_tensors(tmp_path / "m")
    bases = [arrays["cls_token"]]
    while isinstance(bases[-1].base, np.ndarray):
        bases.append(bases[-1].base)
    assert isinstance(bases[-1], np.memmap)
    net = pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit()))
    assert all(leaf.flags.owndata and leaf.flags.writeable for leaf in jax.tree.leaves(net))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("3", "config.json is an int .3., expected an object"),
        ('{"layer_norm_eps": [1e-6]}', "layer_norm_eps of .*config.json is a list, expected a number"),
        ("[" * 100_000, "config.json is nested more than 100 levels deep"),
    ],
)
def test_a_config_of_another_shape_is_told(tmp_path, content, said):
    write_tensors(tmp_path / "m", {"embeddings.patch_embeddings.projection.weight": np.zeros(1, np.float32)}, {"format": "pt"})
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=said):
        pretrained_weights.read_options(tmp_path / "m")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_attention_heads", 8), ("hidden_act", "relu")],
)
def test_a_config_of_another_network_of_these_shapes_is_told(tmp_path, field, value):
    pretrained_weights.write_weights(tmp_path / "m", filled(vit()), "transformers")
    config = {"model_type": "vit", "num_attention_heads": 2, "hidden_act": "gelu"}
    for given, is_refused in ((config, False), (config | {field: value}, True), ({field: value}, False)):
        (tmp_path / "config.json").write_text(json.dumps(given))
        with (
            pytest.raises(ValueError, match=f"config.json: {field}={value!r}, vit has") if is_refused else contextlib.nullcontext()
        ):
            pretrained_weights.read_backbone(tmp_path / "m", "vit", shapes(vit()))


@pytest.mark.parametrize("field", ["model", "input_shape", "mean"])
def test_a_description_of_another_shape_is_told(tmp_path, field):
    path = tmp_path / "m"
    tensors = {"embeddings.patch_embeddings.projection.weight": np.zeros(1, np.float32)}
    write_tensors(path, tensors, {"description": json.dumps({"mean": 0.5, "std": 0.5} | {field: {"a": 3}})})
    for read in (pretrained_weights.read_options, pretrained_weights.read_scaling):
        with pytest.raises(ValueError, match=f"{field} of the description of {path} is an object, expected"):
            read(path)


def test_an_npz_that_claims_64_terabytes_is_told(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**44,)}
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive, archive.open("embedding/kernel.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ValueError, match=r"m\.npz is not a \.npz file of plain arrays, or is damaged"):
        pretrained_weights.read_weights(tmp_path / "m.npz")


def test_every_tensor_lands_somewhere_else():
    """Of all layouts: places cover our leaves exactly once."""
    for model in (vit(), resnet(bottleneck=True)):
        like = shapes(model)
        for layout in weight_layouts.LAYOUTS[: 4 if "blocks" in like.params else 3]:
            hits = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.int32), like)
            flat = export_model.named_arrays(hits)
            for place in weight_layouts.map_tensors(like, layout, "").values():
                flat[place.leaf][place.at] += 1
            assert all((leaf == 1).all() for leaf in flat.values())


def test_positions_of_another_grid_of_as_many_patches(tmp_path):
    """4 x 4 and 2 x 8; what the file's own network saw is told by its shape and its resizing, or is a square."""
    small = functools.partial(nn.build, "vit", patch=4, width=8, depth=1, heads=2)
    net, path = filled(small(3, (16, 16, 3))), tmp_path / "m"
    wide = shapes(small(3, (8, 32, 3)))
    wanted = weight_layouts.interpolate(net.params["positions"], (2, 8), "timm", (4, 4))
    assert np.abs(wanted - net.params["positions"]).max() > 0.01
    description = {"model": "vit(patch=4)", "input_shape": (16, 16, 3)}
    for told, changes in (
        (None, True),
        (description, True),
        (description | {"input_shape": (8, 32, 3)}, False),
        (description | {"model": "vit(patch=4, resize=(8, 32))"}, False),
    ):
        pretrained_weights.write_weights(path, net, "timm", told)
        found = pretrained_weights.read_backbone(path, "vit", wide, image=(8, 32)).params["positions"]
        np.testing.assert_allclose(found, wanted if changes else net.params["positions"], rtol=1e-5, atol=1e-6)
        close(pretrained_weights.read_backbone(path, "vit", wide).params["positions"], net.params["positions"])
