"""Networks as pure functions over plain dicts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_core import nn, registry
from fedjax_core.nn import from_nnx
from fedjax_core.nn.resnet import Bottleneck, ResNet
from fedjax_core.task import count_parameters

SMALL = {
    "mlp": {"widths": (8, 6)},
    "cnn": {"widths": (4, 6), "dense": 8},
    "resnet8": {"width": 4},
    "resnet10": {"width": 2, "stem": "imagenet", "norm": "none"},
    "vit": {"patch": 1, "width": 6, "depth": 2, "heads": 2, "prompts": 1},
}
SHAPE = (9, 8, 3)


def build(name, **options):
    return from_nnx.build(name, 5, SHAPE, mean=(0.4, 0.5, 0.6), std=0.25, **SMALL[name], **options)


def images(rows=4, seed=1):
    return jax.random.randint(jax.random.key(seed), (rows, *SHAPE), 0, 256).astype(jnp.uint8)


@pytest.mark.parametrize(
    ("name", "classes", "stem", "trainable", "all_but_head"),
    [
        ("resnet8", 10, "cifar", 1_227_594, None),  # FedSKC
        ("resnet8", 10, "imagenet", None, 1_235_392),  # FedPFT
        ("resnet10", 10, "imagenet", None, 4_911_552),
        ("resnet18", 10, "imagenet", 11_181_642, None),  # FedHPL
        ("resnet18", 1000, "imagenet", 11_689_512, None),  # torchvision
        ("resnet34", 1000, "imagenet", 21_797_672, None),
        ("resnet50", 1000, "imagenet", 25_557_032, None),
    ],
)
def test_published_parameter_counts(name, classes, stem, trainable, all_but_head):
    net = jax.eval_shape(from_nnx.build(name, classes, (32, 32, 3), stem=stem).init, jax.random.key(0))
    body = count_parameters(net.params) - count_parameters(net.params["head"]) + count_parameters(net.stats)
    assert trainable in (None, count_parameters(net.params))
    assert all_but_head in (None, body)


def test_cnn_parameter_count():
    net = jax.eval_shape(from_nnx.build("cnn", 62, (28, 28, 1)).init, jax.random.key(0))
    assert count_parameters(net.params) == (9 + 1) * 32 + (9 * 32 + 1) * 64 + (12 * 12 * 64 + 1) * 128 + (128 + 1) * 62


def test_the_cnn_of_tensorflows_tutorial_has_its_parameters():
    """It pools after each convolution but the last: 4 x 4 x 64 values enter the dense layer."""
    model = from_nnx.build("cnn", 10, (32, 32, 3), widths=(32, 64, 64), dense=64, pool="between")
    assert count_parameters(jax.eval_shape(model.init, jax.random.key(0)).params) == 122_570


def test_a_resnet_has_as_many_groups_as_it_is_told():
    network = ResNet(5, SHAPE, blocks=(1, 1), width=4, norm="group", groups=2, rngs=nnx.Rngs(0))
    norms = (network.stem_norm, network.stage1_block1.norm2, network.stage2_block1.shortcut_norm)
    assert [layer.norm.num_groups for layer in norms] == [2, 2, 2]


def test_a_cnn_may_have_several_dense_layers():
    """LeNet-5 as PyTorch's tutorial on CIFAR-10 has it: 62,006 parameters."""
    network = from_nnx.build("cnn", 10, (32, 32, 3), widths=(6, 16), kernel=5, pool="each", dense=(120, 84))
    net = jax.eval_shape(network.init, jax.random.key(0))
    assert count_parameters(net.params) == 62_006
    assert set(net.params) == {"conv1", "conv2", "dense1", "dense2", "head"}


def test_a_width_may_be_an_integer_of_numpy():
    network = from_nnx.build("cnn", 10, (28, 28, 1), dense=np.int64(64))
    assert set(jax.eval_shape(network.init, jax.random.key(0)).params) == {"conv1", "conv2", "dense", "head"}
    one, same = (from_nnx.build("cnn", 5, SHAPE, widths=(4,), dense=dense).init(jax.random.key(0)) for dense in (8, (8,)))
    chex.assert_trees_all_equal(one, same)


def test_the_cnn_of_mcmahan_et_al_has_the_published_parameters():
    """1,663,370, as they count: 5x5 convolutions of 32 and 64 channels, each with a 2x2 max-pool, 512 ReLU, softmax."""
    network = from_nnx.build("cnn", 10, (28, 28, 1), kernel=5, padding="SAME", pool="each", dense=512)
    assert count_parameters(jax.eval_shape(network.init, jax.random.key(0)).params) == 1_663_370


@pytest.mark.parametrize("name", SMALL)
def test_model_is_pure_and_plain(name):
    chex.clear_trace_counter()
    network, key = build(name), jax.random.key(0)
    init, x = jax.jit(network.init), images()
    net = init(key)
    chex.assert_trees_all_equal(net, init(key))
    assert jax.tree.structure(net) == jax.tree.structure(jax.eval_shape(build(name).init, key))
    assert type(net.params) is dict
    assert type(net.stats) is dict
    assert bool(net.stats) == (name == "resnet8")

    @jax.jit
    @chex.assert_max_traces(1)
    def step(params, stats, x, mask):
        def loss(params):
            outputs, moved = network.apply(net._replace(params=params, stats=stats), x, None, True, mask)
            return jnp.sum(jnp.sin(outputs["logits"]) * mask[:, None]), moved

        return jax.value_and_grad(loss, has_aux=True)(params)

    mask = jnp.asarray([1.0, 1, 1, 0])
    (value, stats), gradient = step(net.params, net.stats, x, mask)
    step(jax.tree.map(lambda p: p * 0.9, net.params), stats, x, jnp.ones(4))
    chex.assert_trees_all_equal_shapes_and_dtypes((gradient, stats), (net.params, net.stats))
    assert all(float(jnp.max(jnp.abs(leaf))) > 0 for leaf in jax.tree.leaves(gradient["head"]))
    # rows that do not exist change nothing, whatever they hold
    again = step(net.params, net.stats, x.at[3].set(255), mask)
    chex.assert_trees_all_equal(((value, stats), gradient), again)

    @jax.jit
    def evaluate(net, x):
        outputs, kept = network.apply(net, x)
        assert kept is net.stats
        body = net._replace(params={k: v for k, v in net.params.items() if k != "head"})
        features, _ = network.features(body, x)
        return outputs, features, network.head(net, features)

    outputs, features, logits = evaluate(net, x)
    assert set(outputs) == {"logits", "features"}
    np.testing.assert_array_equal(features, outputs["features"])
    np.testing.assert_array_equal(logits, outputs["logits"])


def test_nan_in_masked_rows_reaches_nothing():
    network = build("resnet8")
    net, x = network.init(jax.random.key(0)), images() / 255.0
    mask = jnp.asarray([1.0, 1, 1, 0])

    @jax.jit
    def step(x):
        def loss(params):
            outputs, stats = network.apply(net._replace(params=params), x, None, True, mask)
            return jnp.sum(jnp.where(mask > 0, jnp.sum(jnp.sin(outputs["logits"]), 1), 0)), stats

        return jax.value_and_grad(loss, has_aux=True)(net.params)

    found = step(x.at[3].set(jnp.nan))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    chex.assert_trees_all_equal(found, step(x))


def test_vmap_over_clients_equals_one_by_one():
    network = build("cnn")
    nets = jax.vmap(network.init)(jax.random.split(jax.random.key(0), 2))
    x = images(6).reshape(2, 3, *SHAPE)

    def step(net, x):
        def loss(params):
            outputs, stats = network.apply(net._replace(params=params), x, train=True)
            return jnp.sum(jnp.sin(outputs["logits"])), stats

        return jax.grad(loss, has_aux=True)(net.params)

    together, apart = jax.jit(jax.vmap(step))(nets, x), jax.jit(lambda n, x: jax.lax.map(lambda a: step(*a), (n, x)))
    chex.assert_trees_all_close(together, apart(nets, x), rtol=1e-3, atol=1e-4)


def test_frozen_statistics_never_move():
    network, usual = build("resnet8", stats_mode="freeze"), build("resnet8")

    @jax.jit
    def logits(net, x):
        outputs, stats = network.apply(net, x, train=True)
        assert stats is net.stats
        others = network.apply(net, x)[0], usual.apply(net, x, train=True)[0]
        return [each["logits"] for each in (outputs, *others)]

    training, evaluation, moving = logits(jax.jit(network.init)(jax.random.key(0)), images())
    np.testing.assert_array_equal(training, evaluation)
    assert np.abs(training - moving).max() > 1e-3


def test_dropout_is_a_function_of_the_key():
    network = build("cnn", dropout=0.5)
    net, x = network.init(jax.random.key(0)), images()
    keys = jax.random.split(jax.random.key(3))
    a, b, c = (network.apply(net, x, key, train=True)[0]["logits"] for key in (keys[0], keys[0], keys[1]))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-3


def test_a_cnn_s_dropout_before_the_head_may_be_another():
    def zeros(**rates) -> float:
        network = from_nnx.build("cnn", 5, SHAPE, widths=(4,), dense=2000, **rates)
        run = lambda key, x: network.apply(network.init(jax.random.key(0)), x, key, train=True)[0]["features"]
        return float(np.mean(jax.jit(run)(jax.random.key(3), images()) == 0))

    without = zeros()
    assert abs(zeros(head_dropout=0.5) - (1 + without) / 2) < 0.03
    assert abs(zeros(dropout=0.5, head_dropout=0.0) - without) < 0.1
    assert zeros(dropout=0.5) == zeros(dropout=0.5, head_dropout=0.5)


def test_bytes_and_numbers_are_normalised_alike():
    network = build("mlp")
    net, x = network.init(jax.random.key(0)), images()
    found, wanted = (network.apply(net, v)[0]["logits"] for v in (x, x.astype(jnp.float32) / 255))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    bare = from_nnx.build("mlp", 5, SHAPE, **SMALL["mlp"])
    normal = (x / 255 - jnp.asarray([0.4, 0.5, 0.6])[None, None, None]) / 0.25
    np.testing.assert_allclose(found, bare.apply(net, normal)[0]["logits"], rtol=1e-4, atol=1e-5)


def test_bottlenecks():
    make = lambda rngs: ResNet(5, SHAPE, blocks=(1, 1), block=Bottleneck, width=2, norm="group", rngs=rngs)
    network = from_nnx.from_module(make, "bottlenecks")
    net = jax.eval_shape(network.init, jax.random.key(0))
    outputs, stats = jax.eval_shape(lambda net, x: network.apply(net, x, intermediates=True), net, images())
    assert outputs["features"].shape == (4, 2 * 2 * 4)
    assert outputs["intermediates"]["stage2"].shape == (4, 5, 4, 16)
    assert stats == {}


def test_intermediates_by_name():
    network = build("resnet8")
    run = lambda key, x: network.apply(network.init(key), x, intermediates=True)[0]["intermediates"]
    seen = jax.jit(run)(jax.random.key(0), images())
    assert set(seen) == {"stem_pre", "stem", "stage1_pre", "stage1", "stage2_pre", "stage2", "stage3_pre", "stage3"}
    for name in ("stem", "stage2"):
        np.testing.assert_array_equal(jax.nn.relu(seen[f"{name}_pre"]), seen[name])
    assert seen["stage3"].shape == (4, 3, 2, 16)


def test_features_are_averaged_in_groups():
    wide, narrow = build("resnet8"), build("resnet8", features=2)
    net = jax.jit(wide.init)(jax.random.key(0))
    body = net._replace(params={name: p for name, p in net.params.items() if name != "head"})
    whole, groups = jax.jit(lambda x: (wide.features(body, x)[0], narrow.features(body, x)[0]))(images())
    np.testing.assert_allclose(groups, np.asarray(whole).reshape(4, 2, -1).mean(2), rtol=1e-5)
    assert jax.eval_shape(narrow.init, jax.random.key(0)).params["head"]["kernel"].shape == (2, 5)


def test_bfloat16_computes_and_float32_stays():
    network = build("resnet8", dtype=jnp.bfloat16)
    net = jax.eval_shape(network.init, jax.random.key(0))
    outputs, stats = jax.eval_shape(lambda net, x: network.apply(net, x, train=True, intermediates=True), net, images())
    assert outputs["intermediates"]["stage1"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves((net, stats, outputs["logits"], outputs["features"]))} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet9", {}, "unknown model 'resnet9'; allowed: .*Did you mean 'resnet"),
        ("cnn", {"width": 3}, "unknown option of cnn 'width'; allowed: .*Did you mean 'widths'"),
        ("resnet8", {"stem": "small"}, "unknown stem 'small'; allowed: cifar, imagenet"),
        ("resnet8", {"norm": "layer"}, "unknown norm 'layer'"),
        ("resnet8", {"features": 100}, "features=100 does not divide the 256 channels"),
        ("resnet8", {"conv_form": "fft"}, "unknown convolution form 'fft'"),
        ("mlp", {"stats_mode": "mean"}, "unknown stats_mode 'mean'; allowed: average, local, freeze"),
        ("cnn", {"kernel": 5}, "too small"),
        ("cnn", {"dense": ()}, r"dense=\(\) has no dense layer"),
    ],
)
def test_errors(name, options, words):
    with pytest.raises(ValueError, match=words):
        from_nnx.build(name, 5, SHAPE, **options)


def test_other_variables_are_refused():
    class Counting(nnx.Module):
        def __init__(self, rngs):
            self.count, self.head = nnx.Cache(jnp.zeros(())), nnx.Linear(2, 2, rngs=rngs)

    with pytest.raises(ValueError, match="variables besides Param and BatchStat"):
        from_nnx.from_module(Counting, "counting")


@pytest.mark.parametrize("name", ["cnn(widths=(4,), dense=4)", "resnet8(width=4)", "vit(patch=4, width=8, depth=1, heads=2)"])
def test_images_of_whole_numbers_are_bytes(name):
    name, options = registry.parse_spec(name)
    built = nn.build(name, 3, (8, 8, 2), None, None, **options)
    net = jax.eval_shape(built.init, jax.random.key(0))
    apply = lambda x: jax.eval_shape(lambda net, x: built.apply(net, x)[0]["logits"], net, x)
    with pytest.raises(ValueError, match=rf"^images must be uint8 or floats, {name} was given int32\[8, 8, 2\] and no mean"):
        apply(jnp.zeros((3, 8, 8, 2), int))
    assert apply(jnp.zeros((3, 8, 8, 2))).shape == (3, 3)
