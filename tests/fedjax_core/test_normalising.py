"""What networks make of inputs: numbers, token ids, pixels in other ranges, columns far from 0, wild rows."""

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import fedavg, fedavg_regression, fedmd
from fedjax_core import experiment
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.experiment import build_task, config_warnings, input_normalization
from fedjax_core.storage import export_model

RNG = np.random.default_rng(0)
Y = np.arange(40) % 2


def divided(x, y=Y, **given):
    return federated_data.federate(sources.from_arrays(x, y, x, y, **given), "iid", clients=4, seed=0)


def built(data, model="mlp(widths=(4,))", normalise="data", get=fedavg, **given):
    config = get.get_config("smoke")
    config.models, config.normalise = (model,), normalise
    return experiment.build(config, data, **given)


def logits(simulation, x):
    """Of a network that begins as all of its kind do."""
    model = simulation.spec.bound_groups[0].task.model
    return np.asarray(model.apply(model.init(jax.random.key(0)), jnp.asarray(x))[0]["logits"])


class Embeds(nnx.Module):
    """Token ids, of which it does not say that it reads them: Flax's embedding refuses floats."""

    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.embed, self.last = nnx.Embed(50, 3, rngs=rngs), nnx.Linear(3, classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.embed(x).mean(1))


class Casts(Embeds):
    """Whatever it is given."""

    def __call__(self, x):
        return super().__call__(x.astype(jnp.int32))


class Says(Casts):
    reads_tokens = True


class Denies(Casts):
    reads_tokens = False


class OfLinen(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.classes)(linen.Embed(50, 3)(x).mean(1))


class Numbers(nnx.Module):
    def __init__(self, classes: int, input_shape: tuple[int, ...], *, rngs: nnx.Rngs):
        self.last = nnx.Linear(input_shape[0], classes, rngs=rngs)

    def __call__(self, x):
        return self.last(x)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int8])
def test_integers_are_normalised_as_the_same_floats(dtype):
    """Ages and incomes, which as token ids would reach the network as they are."""
    x = RNG.integers(18, 90, (40, 3)).astype(dtype)
    whole, floats = built(divided(x)), built(divided(x.astype(np.float32)))
    assert whole.spec.data.train.x.dtype == np.int32
    np.testing.assert_array_equal(logits(whole, whole.spec.data.train.x), logits(floats, floats.spec.data.train.x))
    assert np.abs(logits(whole, whole.spec.data.train.x)).max() < 10


def test_integers_are_numbers_in_a_network_from_outside(caplog):
    """One line says so, unless the network does."""
    x = RNG.integers(1, 50, (40, 3))
    sim = built(divided(x), f"{__name__}:Numbers")
    assert np.abs(logits(sim, x.astype(np.int32))).max() < 10
    assert f"model '{__name__}:Numbers' gets integers as numbers" in caplog.text
    caplog.clear()
    built(divided(x), f"{__name__}:Denies")
    built(divided(x.astype(np.float32)), f"{__name__}:Numbers")
    assert not caplog.messages


@pytest.mark.parametrize("name", ["Embeds", "Says", "OfLinen"])
def test_token_ids_reach_a_network_that_embeds_as_they_are(name, caplog):
    x = RNG.integers(1, 50, (40, 3))
    sim = built(divided(x), f"{__name__}:{name}")
    model = sim.spec.bound_groups[0].task.model
    net = model.init(jax.random.key(0))
    embedding = np.asarray(jax.tree.leaves(net.params["embed" if name != "OfLinen" else "Embed_0"])[0])
    last = net.params["last" if name != "OfLinen" else "Dense_0"]
    wanted = embedding[x].mean(1) @ np.asarray(last["kernel"]) + np.asarray(last["bias"])
    np.testing.assert_allclose(logits(sim, x.astype(np.int32)), wanted, atol=1e-5)
    assert not caplog.messages


def test_a_network_says_that_it_reads_tokens_by_true_or_false(monkeypatch):
    monkeypatch.setattr(Says, "reads_tokens", "yes")
    with pytest.raises(ValueError, match=r"Says': reads_tokens='yes' must be True or False"):
        built(divided(RNG.integers(1, 50, (40, 3))), f"{__name__}:Says")


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_are_no_token_ids_is_refused_by_a_network_that_reads_them(dtype):
    """They would be normalised, and be token ids near 0 after its cast."""
    x = RNG.integers(1, 50, (40, 3)).astype(dtype)
    with pytest.raises(ValueError, match=r"Says' reads token ids \(reads_tokens=True\), and these examples are floats or pixels"):
        built(divided(x), f"{__name__}:Says")
    built(divided(x), f"{__name__}:Casts")


def test_words_of_texts_are_refused_by_a_network_that_reads_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("says,mood\n" + "\n".join(f"word{i % 3} more,{('sad', 'glad')[i % 2]}" for i in range(20)))
    source = f"csv(path='{tmp_path}/t.csv', x='says', y='mood', test_fraction=0.25, words=5, length=4)"
    config = fedavg.get_config("smoke")
    config.data.update(source=source, partition="iid", clients=3)
    for model in ("mlp", f"{__name__}:Numbers"):
        config.models = (model,)
        with pytest.raises(
            ValueError, match=rf"model '{model}' reads numbers, and with words=5 data.source has texts, as token ids"
        ):
            experiment.build(config)
    config.models = (f"{__name__}:Says",)
    assert experiment.build(config).spec.data.train.x.dtype == np.int32


PIXELS = RNG.uniform(size=(40, 4, 4, 3))


@pytest.mark.parametrize("normalise", ["half", "unit", "imagenet"])
def test_pixels_to_255_are_refused_where_the_normalisation_is_for_others(normalise):
    for x in (PIXELS, (PIXELS * 255).astype(np.uint8)):
        built(divided(x), normalise=normalise)
    for x in (PIXELS * 255, (PIXELS * 255).astype(int), (PIXELS * 65535).astype(np.uint16)):
        with pytest.raises(ValueError, match=rf"normalise='{normalise}' is for pixels in \[0, 1\], these .*32 are in \[.*x / 255"):
            built(divided(x), normalise=normalise)
        built(divided(x))  # by mean and deviation of its own


def test_pixels_that_are_normalised_already_are_not_normalised_again():
    for normalise in ("half", "imagenet"):
        with pytest.raises(ValueError, match="take normalise='unit' if they are normalised already"):
            built(divided(2 * PIXELS - 1), normalise=normalise)
    built(divided(2 * PIXELS - 1), normalise="unit")


def test_columns_that_are_left_large_are_warned_of(caplog):
    x = np.stack([RNG.normal(size=40), RNG.uniform(1e4, 2e5, 40)], 1)
    built(divided(x[:, :1]), normalise="unit")
    built(divided(x))
    assert not caplog.messages
    built(divided(x), normalise="unit")
    (line,) = caplog.messages
    assert line.startswith("normalise='unit': column 1 of x is float32 in [1")
    assert "scale them first" in line


def test_pixels_in_another_range_than_those_of_a_file_are_refused(tmp_path):
    scale = experiment.compute_mean_and_std(Examples(PIXELS.astype(np.float32), None))
    found = input_normalization.Scaling(*scale)
    path = tmp_path / "m"
    sim = built(divided(PIXELS))
    model = sim.spec.bound_groups[0].task.model
    description = {"model": "mlp(widths=(4,))", "classes": 2, "class_names": ["a", "b"], "input_shape": [4, 4, 3]}
    description |= {"mean": list(scale[0]), "std": list(scale[1]), "statistics": "average"}
    export_model.save_model(path, model.init(jax.random.key(0)), description)
    for x, refused in ((PIXELS, False), (PIXELS * 255, True)):
        examples = Examples(x.astype(np.float32), Y)
        if not refused:
            assert input_normalization.check_inputs("data", str(path), found, examples) == []
            continue
        with pytest.raises(ValueError, match=r"weights='.*' is for pixels in \[0, 1\], these float32"):
            input_normalization.check_inputs("data", str(path), found, examples)


def test_outliers_are_warned_of_and_robust_statistics_withstand_them(caplog):
    """One row of 1e30 makes all others alike; by median and quartiles they stay as they would be without it."""
    x = RNG.normal(5, 2, (400, 3)).astype(np.float32)
    y = np.arange(400) % 2
    clean = built(divided(x, y), normalise="robust")
    wild = x.copy()
    wild[7] = 1e30
    assert not caplog.messages
    flat = built(divided(wild, y))
    assert np.ptp(logits(flat, x), axis=0).max() < 1e-6
    (line,) = caplog.messages
    assert "3 columns of x are such; column 0 is in [" in line
    assert "1e+30], and half of it in [3." in line
    caplog.clear()
    robust = built(divided(wild, y), normalise="robust")
    assert not caplog.messages
    np.testing.assert_allclose(logits(robust, x), logits(clean, x), atol=0.1)
    assert np.abs(logits(robust, wild)).max() < 100  # cut, so that the row does no harm
    mean, std, limit = input_normalization.compute_robust_scaling(Examples(x, None))
    np.testing.assert_allclose(mean, np.median(x, 0), rtol=1e-6)
    np.testing.assert_allclose(std, 2, rtol=0.2)
    assert limit == input_normalization.ROBUST_LIMIT


def test_robust_statistics_of_bytes_are_in_units_of_255():
    x = RNG.integers(0, 256, (40, 4, 4, 3)).astype(np.uint8)
    mean, std, _ = input_normalization.compute_robust_scaling(Examples(x, None))
    np.testing.assert_allclose(mean, np.median(x.reshape(-1, 3), 0) / 255)
    assert 0.2 < min(std) <= max(std) < 0.6
    assert input_normalization.compute_robust_scaling(Examples(np.zeros_like(x), None)).std == (1.0, 1.0, 1.0)


def test_robust_statistics_are_no_secret_either():
    config = fedavg.get_config("smoke")
    config.normalise = "robust"
    config.privacy.update(mechanism="gaussian", clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(
        ValueError, match="normalise='robust': mean and deviation of all clients' examples would be used without noise"
    ):
        experiment.resolve(config)


SECONDS = RNG.integers(0, 60, (40, 1)).astype(np.float64)


def test_columns_far_from_zero_keep_their_digits(caplog):
    """In float32 all seconds of a minute of 2023 are one number."""
    near, far = built(divided(SECONDS)), built(divided(SECONDS + 1_700_000_000))
    assert far.spec.data.x_offset is not None
    assert far.spec.data.train.x.dtype == np.float32
    for part in (far.spec.data.train, far.spec.data.test):
        np.testing.assert_array_equal(part.x + far.spec.data.x_offset, SECONDS + 1_700_000_000)
    np.testing.assert_allclose(logits(far, far.spec.data.train.x), logits(near, near.spec.data.train.x), atol=1e-5)
    (line,) = caplog.messages
    assert "x[..., 0] is centred at 17000000" in line
    assert near.spec.data.x_offset is None


def test_what_was_taken_off_is_not_private():
    asked = experiment.resolve(fedavg.get_config("smoke"))
    private = asked._replace(mechanism=asked.method)
    (line,) = config_warnings.check_offset(private, True)
    assert "read from all clients' training examples, which epsilon does not cover" in line
    assert config_warnings.check_offset(asked, True) == config_warnings.check_offset(private, False) == []


def test_targets_far_from_zero_keep_their_digits():
    x = RNG.normal(size=(40, 2))
    far = built(divided(x, SECONDS + 1_700_000_000, targets="numbers"), get=fedavg_regression)
    assert far.spec.data.y_offset is not None
    np.testing.assert_array_equal(far.spec.data.train.y + far.spec.data.y_offset, SECONDS + 1_700_000_000)
    assert far.spec.data.x_offset is None


def test_what_was_taken_off_stays_with_the_data():
    """Whatever divides them anew."""
    config = fedavg.get_config("smoke")
    asked = experiment.resolve(config)
    data = build_task.hold_out_examples(asked, divided(SECONDS + 1e9))
    again = build_task.hold_out_examples(asked, federated_data.pool_clients(data))
    assert again.x_offset is data.x_offset
    np.testing.assert_array_equal(again.train.x, data.train.x)


def test_the_mean_of_a_file_is_of_inputs_as_they_are(tmp_path):
    """A network that goes on from a file, whose own mean lies far from 0, too."""
    path, offset = tmp_path / "m", np.array([1.7e9])
    model = built(divided(SECONDS)).spec.bound_groups[0].task.model
    description = {"model": "mlp(widths=(4,))", "classes": 2, "class_names": ["a", "b"], "input_shape": [1]}
    description |= {"mean": [2.5], "std": [17.0], "offset": [1.7e9 + 20], "statistics": "average", "limit": 8.0}
    export_model.save_model(path, model.init(jax.random.key(0)), description)
    found = input_normalization.find_scaling("data", Examples(SECONDS, Y), str(path), None, offset)
    assert (tuple(found.mean), tuple(found.std), found.limit) == ((22.5,), (17.0,), 8.0)


def test_the_public_set_is_as_the_data(tmp_path, monkeypatch):
    """Its columns lose what those of the training set lose; images on another scale are refused."""
    config = fedavg.get_config("smoke")
    config.public = "digits"
    asked = experiment.resolve(config)
    data = build_task.hold_out_examples(asked, divided(SECONDS + 1e9))
    monkeypatch.setattr(sources, "read_dataset", lambda *given: sources.from_arrays(SECONDS + 1e9 + 7, Y, SECONDS + 1e9, Y))
    found = experiment.read_public(config, data)
    assert isinstance(found, Examples)
    np.testing.assert_array_equal(found.x, data.train.x + 7)
    monkeypatch.setattr(sources, "read_dataset", lambda *given: sources.from_arrays(PIXELS * 255, Y, PIXELS * 255, Y))
    with pytest.raises(ValueError, match=r"public='digits' in .*: must be on one scale"):
        experiment.read_public(config, build_task.hold_out_examples(asked, divided(PIXELS)))


@pytest.mark.parametrize(("split", "said"), [("merged", True), ("proportional", False)])
def test_public_examples_that_clients_are_tested_on_are_told(split, said, caplog):
    config = fedmd.get_config("smoke")
    config.data.update(source="digits", test_split=split)
    config.public = "digits(examples=500)"
    experiment.build(config)
    assert ("of its 500 examples are test or validation examples of clients" in caplog.text) == said
