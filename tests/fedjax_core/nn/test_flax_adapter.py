"""Modules that know nothing of this library."""

import functools
import inspect
from collections.abc import Callable

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import fedavg, fedper, fedproto, fedrcl, fedrod
from fedjax_core import experiment
from fedjax_core.algorithm import Net
from fedjax_core.nn import flax_adapter, normalize_inputs
from fedjax_core.task import Model, feature_size

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)


class Plain(nnx.Module):
    """Logits, with dropout of Flax's own."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, width: int = 5, rngs: nnx.Rngs):
        self.first = nnx.Linear(int(np.prod(input_shape)), width, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.first(x.reshape(len(x), -1)))))


class Parted(nnx.Module):
    """A body and a head."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.layer = nnx.Linear(int(np.prod(input_shape)), 5, rngs=rngs)
        self.head = nnx.Linear(5, classes, rngs=rngs)

    def body(self, x):
        return nnx.relu(self.layer(x.reshape(len(x), -1)))


class Normalised(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(input_shape[0], rngs=rngs)
        self.last = nnx.Linear(input_shape[0], classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.norm(x))


class Masked(Normalised):
    def __call__(self, x, mask=None):
        return self.last(self.norm(x, mask=None if mask is None else mask[:, None]))


class OfLinen(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.relu(linen.Dense(5)(x.reshape(len(x), -1)))
        return linen.Dense(self.classes)(linen.Dropout(0.5, deterministic=not train)(x))


def of(builder, **options):
    return flax_adapter.build(builder, builder.__name__, 3, (4,), options)


def apply_once(builder, **how):
    """Returns the logits of a new network."""
    model = flax_adapter.build(builder, "mine", 3, (4,), {})
    return model.apply(model.init(jax.random.key(0)), X, **how)[0]["logits"]


@pytest.mark.parametrize("builder", [Plain, lambda classes: OfLinen(classes)], ids=["nnx", "linen"])
def test_dropout_draws_from_the_given_key_in_training_alone(builder):
    model = of(builder)
    net = model.init(jax.random.key(0))
    apply = jax.jit(lambda key, train: model.apply(net, X, key, train=train)[0]["logits"], static_argnums=1)
    a, b = jax.random.split(jax.random.key(1))
    assert apply(a, True).shape == (6, 3)
    np.testing.assert_array_equal(apply(a, True), apply(a, True))
    assert np.abs(np.subtract(apply(a, True), apply(b, True))).max() > 1e-3
    np.testing.assert_array_equal(apply(a, False), apply(b, False))
    other = model.init(jax.random.key(5))
    assert any(np.abs(np.subtract(x, y)).max() > 1e-3 for x, y in zip(*map(jax.tree.leaves, (net, other)), strict=True))


def test_a_plain_module_computes_what_it_computes_by_itself():
    model = of(Plain, width=7)
    net = model.init(jax.random.key(0))
    alone = Plain(3, (4,), width=7, rngs=nnx.Rngs(jax.random.key(0)))
    alone.eval()
    np.testing.assert_allclose(model.apply(net, X)[0]["logits"], alone(X), atol=1e-6)
    with pytest.raises(ValueError, match="'Plain' gives logits alone, and the method wants its features or its head"):
        model.features(net, X)


def test_a_body_and_a_head_make_features():
    model = of(Parted)
    net = model.init(jax.random.key(0))
    outputs, _ = model.apply(net, X)
    assert outputs["features"].shape == (6, 5)
    np.testing.assert_array_equal(outputs["logits"], model.head(net, model.features(net, X)[0]))
    assert set(net.params) == {"layer", "head"}
    np.testing.assert_array_equal(outputs["logits"], model.head(Net({"head": net.params["head"]}), outputs["features"]))


@pytest.mark.parametrize("axes", [{"first/kernel": -1}, {"first/kernel": 0}, {"first/kernel": "model"}, "first"])
def test_a_module_says_which_axes_several_devices_divide(axes):
    divided = type("Divided", (Plain,), {"model_axes": axes})
    if axes == {"first/kernel": -1}:
        assert of(divided).model_axes == (("first/kernel", -1),)
        assert of(Plain).model_axes == ()
        return
    with pytest.raises(ValueError, match=r"'Divided': model_axes=.* must map ends of paths to axes counted from the end, such as"):
        of(divided)


@pytest.mark.parametrize("flattened", [{}, {"first/kernel": 4}, {"first/kernel": 0}, "first"])
def test_a_module_says_where_it_flattens_images(flattened):
    declared = type("Declared", (Plain,), {"flattened": flattened})
    if flattened in ({}, {"first/kernel": 4}):
        assert of(declared).flattened == tuple(flattened.items())
        assert of(Plain).flattened is None
        return
    with pytest.raises(ValueError, match=r"'Declared': flattened=.* must map ends of paths to channels, such as"):
        of(declared)


def test_batch_statistics_leave_out_padding_or_are_refused():
    with pytest.raises(ValueError, match="has batch statistics, which padding would enter"):
        of(Normalised)
    model = of(Masked)
    net, mask = model.init(jax.random.key(0)), jnp.asarray([True] * 4 + [False] * 2)
    _, some = model.apply(net, X, train=True, mask=mask)
    _, same = model.apply(net, X.at[4:].set(99.0), train=True, mask=mask)
    for a, b, before in zip(*map(jax.tree.leaves, (some, same, net.stats)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(np.subtract(a, before)).max() > 1e-4
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (model.apply(net, X)[1], net.stats)), strict=True))


def test_what_is_no_module_is_told():
    with pytest.raises(TypeError, match="is a int; a builder returns a module"):
        flax_adapter.build(lambda classes: classes, "mine", 3, (4,), {})


def test_a_config_names_a_module_of_a_file(tmp_path):
    """By its path; FedAvg trains it. Methods that share a part, read features or replace heads say what to add."""
    file = tmp_path / "mine.py"
    source = inspect.getsource(Plain)
    file.write_text(f"import numpy as np\nfrom flax import nnx\n\n\n{source}")
    config = fedavg.get_config("smoke")
    config.models, config.plan.devices = (f"{file}:Plain(width=6)",), 1
    sim = experiment.build(config)
    state, records = sim.run_rounds(sim.init(0), 1)
    assert np.isfinite(records[0]["train/loss"])
    assert 0 <= sim.evaluate(state).metrics["test/global/accuracy"] <= 1
    for other in (fedper, fedproto, fedrcl, fedrod):
        asked = other.get_config("smoke")
        asked.models = config.models
        with pytest.raises(ValueError, match=r"give its module a method body\(x\) .* and a linear `head` for them"):
            experiment.build(asked)


class MaskedOfLinen(linen.Module):
    """Says at the call, or in its field, which statistics it uses."""

    classes: int
    at_call: bool = False

    @linen.compact
    def __call__(self, x, train=False, mask=None):
        mask = None if mask is None else mask[:, None]
        if self.at_call:
            x = linen.BatchNorm()(x, not train, mask=mask)
        else:
            x = linen.BatchNorm(use_running_average=not train)(x, mask=mask)
        return linen.Dense(self.classes)(linen.Dropout(0.5, deterministic=not train)(x))


class Stubborn(Masked):
    def __call__(self, x, mask=None):
        return self.last(self.norm(x, use_running_average=False, mask=mask[:, None]))


class Own(linen.Module):
    """A normalisation of one's own."""

    classes: int

    @linen.compact
    def __call__(self, x, train=False, mask=None):
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(x.shape[1:]))
        if train:
            mean.value = jnp.mean(x, 0, where=mask[:, None])
        return linen.Dense(self.classes)(x - mean.value[None])


@pytest.mark.parametrize(
    "builder", [Masked, MaskedOfLinen, lambda classes: MaskedOfLinen(classes, True)], ids=["nnx", "field", "call"]
)
def test_frozen_statistics_are_used_in_training_too(builder):
    model = flax_adapter.build(builder, "frozen", 3, (4,), {}, stats_mode="freeze")
    net, mask = model.init(jax.random.key(0)), jnp.ones(6, bool)
    net = net._replace(stats=jax.tree.map(lambda leaf: leaf + 0.5, net.stats))
    run = jax.jit(lambda net, x: model.apply(net, x, jax.random.key(1), train=True, mask=mask))
    outputs, stats = run(net, X)
    jax.tree.map(np.testing.assert_array_equal, stats, net.stats)
    moved = run(net, X.at[3:].add(9.0))[0]  # of a batch's statistics these rows would be a part
    np.testing.assert_allclose(outputs["logits"][:3], moved["logits"][:3], atol=1e-6)
    if builder is Masked:
        np.testing.assert_allclose(outputs["logits"], model.apply(net, X)[0]["logits"], atol=1e-6)
    else:
        assert np.abs(np.subtract(outputs["logits"], model.apply(net, X)[0]["logits"])).max() > 1e-3  # dropout is not frozen


@pytest.mark.parametrize("builder", [Stubborn, Own])
def test_frozen_statistics_that_move_are_refused(builder):
    model = flax_adapter.build(builder, "mine", 3, (4,), {}, stats_mode="freeze")
    net, mask = model.init(jax.random.key(0)), jnp.ones(6, bool)
    with pytest.raises(ValueError, match="model 'mine' moves batch statistics, which are frozen"):
        model.apply(net, X, jax.random.key(1), train=True, mask=mask)


class Words(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.classes)(linen.Embed(20, 8)(x).mean(1))


def test_a_linen_module_reads_token_ids():
    as_they_are = functools.partial(normalize_inputs, mean=None, std=None, dtype=None)
    model = flax_adapter.build(Words, "words", 3, (7,), {}, as_they_are)
    outputs, _ = model.apply(model.init(jax.random.key(0)), jnp.arange(14).reshape(2, 7))
    assert outputs["logits"].shape == (2, 3)


class InSetup(linen.Module):
    classes: int

    def setup(self):
        self.dense = linen.Dense(8)
        self.head = linen.Dense(self.classes)

    def body(self, x):
        return linen.relu(self.dense(x))


class ByMethod(InSetup):
    def setup(self):
        self.dense = linen.Dense(8)
        self.last = linen.Dense(self.classes)

    def head(self, features):
        return self.last(features)


def test_a_linen_module_makes_its_head_in_setup():
    model = of(InSetup)
    net = model.init(jax.random.key(0))
    outputs, _ = model.apply(net, X)
    assert set(net.params) == {"dense", "head"}
    assert outputs["features"].shape == (6, 8)
    np.testing.assert_allclose(outputs["logits"], model.head(net, model.features(net, X)[0]), atol=1e-6)
    with pytest.raises(
        ValueError, match="'ByMethod' has a method head whose layer is none of its params dense, last: name it head"
    ):
        of(ByMethod)


class Topped(nnx.Module):
    """Its head is of several layers."""

    def __init__(self, layers, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.layer = nnx.Linear(input_shape[0], 5, rngs=rngs)
        self.head = nnx.Sequential(*layers(rngs), nnx.Linear(5, 3, rngs=rngs))

    def body(self, x, mask=None):
        return self.layer(x)


class Beside(nnx.Module):
    """Its head is a method whose layers have other names."""

    def __init__(self, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.layer, self.last = nnx.Linear(input_shape[0], 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)

    def body(self, x, mask=None):
        return self.layer(x)

    def head(self, features):
        return self.last(self.norm(features))


class ToppedOfLinen(linen.Module):
    layers: Callable = lambda: ()

    def setup(self):
        self.layer, self.head = linen.Dense(5), linen.Sequential([*self.layers(), linen.Dense(3)])

    def body(self, x, mask=None):
        return self.layer(x)


class ByFlag(ToppedOfLinen):
    def setup(self):
        self.layer, self.last, self.drop = linen.Dense(5), linen.Dense(3, name="head"), linen.Dropout(0.5)

    def head(self, features, train=False):
        return self.last(self.drop(features, deterministic=not train))


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        (
            lambda input_shape, rngs: Topped(lambda r: [nnx.Dropout(0.5, rngs=r)], input_shape, rngs),
            "draws random numbers or moves",
        ),
        (Beside, "draws random numbers or moves batch statistics in its head"),
        (lambda input_shape, rngs: Topped(lambda r: [nnx.BatchNorm(5, rngs=r)], input_shape, rngs), "has batch statistics in its"),
        (lambda: ToppedOfLinen(lambda: [linen.BatchNorm(use_running_average=True)]), "has batch statistics in its head"),
        (
            lambda: ToppedOfLinen(lambda: [linen.Dropout(0.5, deterministic=False)]),
            "draws random numbers or moves batch statistics in its",
        ),
        (lambda: ByFlag(), "its head takes train=False"),
    ],
    ids=["dropout", "method", "batch norm", "batch norm of linen", "dropout of linen", "flag of linen"],
)
def test_a_head_that_differs_in_training_is_refused(builder, says):
    with pytest.raises(
        ValueError, match=rf"model 'mine'.* {says}.*, but a head is given features alone: move that to the end of body"
    ):
        apply_once(builder)  # what Linen's layers draw is known when traced


@pytest.mark.parametrize(
    "builder",
    [
        lambda input_shape, rngs: Topped(lambda r: [nnx.Linear(5, 5, rngs=r), nnx.relu], input_shape, rngs),
        lambda: ToppedOfLinen(lambda: [linen.Dense(5), linen.relu]),
    ],
    ids=["nnx", "linen"],
)
def test_a_head_may_have_several_layers_where_no_method_reads_them(builder):
    model = flax_adapter.build(builder, "mine", 3, (4,), {})
    assert model.apply(model.init(jax.random.key(0)), X)[0]["logits"].shape == (6, 3)
    with pytest.raises(ValueError, match=r"'mine' has a head of layers.*; it must be one linear layer, with a kernel"):
        feature_size(model)


def with_flag(kind, name, default=False):
    """A network whose flag of training has this name."""
    scope = {"kind": kind, "linen": linen}
    exec(f"class Flagged(kind):\n    def __call__(self, x, {name}={default}):\n        return x", scope)
    return scope["Flagged"]


@pytest.mark.parametrize("name", ["training", "is_training", "use_running_average", "inference", "train_mode"])
@pytest.mark.parametrize("kind", [Plain, OfLinen], ids=["nnx", "linen"])
def test_a_flag_of_training_that_nothing_sets_is_refused(kind, name):
    with pytest.raises(ValueError, match=f"'Flagged': __call__ takes {name}=False, which nothing sets; .* of train, mask, key"):
        of(with_flag(kind, name))


class Settled(linen.Module):
    """Its field says for good whether it trains."""

    deterministic: bool | None = True

    @linen.compact
    def __call__(self, x):
        return linen.Dropout(0.5, deterministic=self.deterministic)(linen.Dense(3)(x))


def test_a_field_that_says_whether_a_linen_module_trains_is_refused():
    with pytest.raises(ValueError, match=r"'Settled' has the field deterministic=True, .* let __call__ take train=False"):
        of(Settled)
    of(linen.Dense, features=3)


@pytest.mark.parametrize("kind", [Plain, OfLinen], ids=["nnx", "linen"])
def test_a_second_input_is_refused(kind):
    with_call = lambda call: type("Paired", (kind,), {"__call__": call})
    for call in (lambda self, x, other: x, lambda self, x, *, other: x):
        with pytest.raises(
            ValueError, match=r"'Paired': .* takes other beside its inputs, which nothing sets; .* one array \[B, \.\.\.\]"
        ):
            of(with_call(call))
    of(with_call(lambda self, x, train, mask, key: x))


class Constant(Parted):
    """Has arrays that are no variables."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        super().__init__(classes, input_shape, rngs=rngs)
        self.places, self.sizes = jnp.sin(jnp.arange(4.0)), np.asarray([2, 2])

    def body(self, x):
        return super().body((x + self.places[None]).reshape(-1, *map(int, self.sizes)))


def test_arrays_that_are_no_variables_are_constants():
    model, again, plain = of(Constant), of(Constant), of(Parted)
    net = jax.jit(model.init)(jax.random.key(0))
    for other in (again, plain):
        jax.tree.map(np.testing.assert_array_equal, net, jax.jit(other.init)(jax.random.key(0)))
    outputs = jax.jit(lambda net, x: model.apply(net, x)[0])(net, X)
    np.testing.assert_allclose(outputs["logits"], plain.apply(net, X + jnp.sin(jnp.arange(4.0))[None])[0]["logits"], atol=1e-6)


class Noisy(linen.Module):
    """Draws from two streams."""

    always: bool = False

    @linen.compact
    def __call__(self, x, train=False):
        a, b = (jax.random.normal(self.make_rng(name)) if train or self.always else 0.0 for name in ("dropout", "drop_path"))
        return linen.Dense(3)(x) * 0 + jnp.stack([a, b, a - b])[None]


def test_random_streams_of_all_names_are_given_in_training():
    a, b, difference = apply_once(lambda: Noisy(), key=jax.random.key(1), train=True)[0]
    assert min(abs(a), abs(b), abs(difference)) > 1e-3
    assert not np.allclose(apply_once(lambda: Noisy(), key=jax.random.key(2), train=True)[0], [a, b, difference])
    np.testing.assert_array_equal(apply_once(lambda: Noisy()), 0.0)
    with pytest.raises(ValueError, match="'mine' draws random numbers without a key, as in evaluation: draw where train=True"):
        apply_once(lambda: Noisy(always=True))


class NoisyNNX(Plain):
    """Draws noise; with `part` inside another part, as nnx.remat makes one."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, always: bool = True, part: bool = False, rngs: nnx.Rngs):
        super().__init__(classes, input_shape, rngs=rngs)
        self.always, self.part, self.streams = always, part, rngs

    def __call__(self, x, train=False):
        noise = jax.random.normal(self.streams.noise(), x.shape) if train or self.always else 0.0
        run = nnx.remat(lambda module, x: module.last(module.drop(module.first(x)))) if self.part else Plain.__call__
        return run(self, x + noise)


@pytest.mark.parametrize("part", [False, True], ids=["alone", "remat"])
def test_noise_of_nnx_streams_is_refused_in_evaluation(part):
    build = lambda always: lambda rngs: NoisyNNX(3, (4,), always=always, part=part, rngs=rngs)
    apply_once(build(always=False), key=jax.random.key(1), train=True)
    with pytest.raises(ValueError, match="'mine' draws random numbers without a key, as in evaluation: draw where train=True"):
        apply_once(build(always=True))


@pytest.mark.parametrize("kind", [Plain, OfLinen], ids=["nnx", "linen"])
def test_flags_without_names_are_refused(kind):
    with_call = lambda call: type("Flagged", (kind,), {"__call__": call})
    with pytest.raises(ValueError, match=r"'Flagged': .* takes \*\*kw, which stays empty; it must name train=False, or those"):
        of(with_call(lambda self, x, **kw: x))
    of(with_call(lambda self, x, train=False, **kw: x))
    apply_once(lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs)))
    apply_once(lambda: linen.Sequential([linen.Dense(3)]))


def test_other_arguments_with_defaults_are_left_alone():
    of(with_flag(OfLinen, "scale", 2.0))
    of(with_flag(Plain, "deterministic", None))
    with pytest.raises(ValueError, match="__call__ takes deterministic=True, which nothing sets"):
        of(with_flag(Plain, "deterministic", True))


def test_a_call_that_is_not_the_head_of_the_body_is_said_once(caplog):
    class Same(Parted):
        def __call__(self, x):
            return self.head(self.body(x))

    class Likewise(Parted):
        def __call__(self, x):
            return self.head(nnx.relu(self.layer(x.reshape(-1, 4) + 0.0)))

    class Scaled(Parted):
        def __call__(self, x):
            return 3 * self.head(self.body(x))

    class ScaledLinen(linen.Module):
        classes: int

        def setup(self):
            self.layer, self.head = linen.Dense(5), linen.Dense(self.classes)

        def body(self, x):
            return self.layer(x)

        def __call__(self, x):
            return 3 * self.head(self.body(x))

    for builder in (Parted, Same, Likewise):
        of(builder)
    assert not caplog.text
    for builder in (Scaled, Scaled, ScaledLinen):
        of(builder)
    assert caplog.text.count("its __call__ gives something else than head(body(x)), which is used in its place") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init": lambda key: {"w": jnp.zeros((4, 3))}}, r"init must return an algorithm.Net\(params, stats\), it returned a dict"),
        ({"apply": lambda net, x: ({"logits": x @ net.params["w"]}, ())}, "apply must take .*, it lacks key, mask, train"),
        ({"apply": lambda net, x, **_: x @ net.params["w"]}, r"apply must return \(.*, stats\), it returned a ShapeDtypeStruct"),
    ],
)
def test_a_model_of_functions_of_another_library_is_told(change, message):
    init = lambda key: Net({"w": jnp.zeros((4, 3))}, {})
    model = Model(init, lambda net, x, **_: ({"logits": x @ net.params["w"]}, net.stats), init, init, "own")
    assert flax_adapter.build(lambda: model, "own", 3, (4,), {}) is model
    with pytest.raises(TypeError, match=f"model 'own' is a task.Model: its {message}"):
        flax_adapter.build(lambda: model._replace(**change), "own", 3, (4,), {})


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (jax.nn.softmax, "softmax"),
        (lambda z: nnx.softmax(z, axis=1), "softmax"),
        (lambda z: jnp.exp(z) / jnp.exp(z).sum(1, keepdims=True), "softmax"),
        (nnx.sigmoid, "sigmoid"),
        (lambda z: jax.nn.softmax(z).astype(jnp.bfloat16), "softmax"),
        (jax.nn.log_softmax, ""),
        (lambda z: z / 4.0, ""),
        (lambda z: z * nnx.sigmoid(z), ""),
    ],
)
def test_probabilities_in_place_of_logits_are_said(caplog, end, said):
    class Ends(nnx.Module):
        def __init__(self, classes, input_shape, *, rngs):
            self.layer = nnx.Linear(input_shape[0], classes, rngs=rngs)

        def __call__(self, x):
            return end(self.layer(x))

    class LinenEnds(linen.Module):
        classes: int

        @linen.compact
        def __call__(self, x):
            return end(linen.Dense(self.classes)(x))

    for builder in (Ends, Ends, LinenEnds):
        of(builder)
    assert caplog.text.count(f"ends in a {said}: losses and scores take logits") == (2 if said else 0)
    assert ("ends in a" in caplog.text) == bool(said)


def test_probabilities_of_a_second_builder_of_one_class_are_said(caplog):
    def plain(rngs):
        return nnx.Sequential(nnx.Linear(4, 3, rngs=rngs))

    def probable(rngs):
        return nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), jax.nn.softmax)

    of(plain)
    assert "ends in a" not in caplog.text
    of(probable)
    assert caplog.text.count("model 'probable' ends in a softmax") == 1


class OneSeed(nnx.Module):
    """Draws from a key of its own."""

    def __init__(self, classes: int):
        self.layer = nnx.Linear(4, classes, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(x)


class Zeros(nnx.Module):
    """Logistic regression from 0."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs):
        self.head = nnx.Linear(4, classes, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def body(self, x):
        return x


def test_weights_that_are_the_same_for_every_seed_are_warned_of(caplog):
    with caplog.at_level("WARNING"):
        for builder in (Parted, OfLinen, Zeros):
            of(builder)
        assert "for every seed" not in caplog.text
        for _ in range(2):
            model = of(OneSeed)
    assert caplog.text.count("begins with the same weights for every seed; if they should differ, draw them from the rngs=") == 1
    jax.tree.map(np.testing.assert_array_equal, *(model.init(jax.random.key(seed)) for seed in (0, 1)))
