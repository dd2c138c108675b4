"""Gradient inversion: an exact case, labels from the head's bias, and what protects."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import fedavg
from fedjax_core import audit, experiment
from fedjax_core.audit import images, inversion
from fedjax_core.commands import audit as command


def observe(steps: int = 1, number: int = 1, **changes):
    config = fedavg.get_config("smoke")
    config.normalise, config.data.examples = "unit", 200
    config.optimizer.momentum = None
    config.method.update(epochs=steps, batch=number)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in changes.items()})
    simulator = experiment.build(config)
    observed = inversion.observe_uplink(simulator, simulator.init(0), 0, number, steps=steps, lr=config.optimizer.lr)
    return simulator.spec.bound_groups[0].task.model, observed


def test_an_uplink_of_one_step_is_minus_the_gradient_by_the_learning_rate():
    model, observed = observe()
    x, y = observed.examples

    def loss(params):
        logits = model.apply(observed.before._replace(params=params), jnp.asarray(x))[0]["logits"]
        return -jax.nn.log_softmax(logits)[0, int(y[0])]

    expected = jax.tree.map(lambda g: -observed.lr * g, jax.grad(loss)(observed.before.params))
    for ours, naive in zip(jax.tree.leaves(observed.delta), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, naive, atol=1e-6)
    assert inversion.infer_labels(observed.delta, 1).tolist() == y.tolist()


def test_an_example_is_read_from_its_uplink_unless_noise_hides_it():
    attack = audit.UplinkAttack("cosine", iterations=400, variation=1e-6)
    model, plain = observe()
    result = audit.invert_uplink(model, plain, attack)
    assert result.labels.tolist() == plain.examples.y.tolist()
    assert result.psnr[0] > 22
    assert result.ssim[0] > 0.8
    noise = {"privacy__mechanism": "local_gaussian", "privacy__clip": 1.0, "privacy__noise": 1.0, "privacy__delta": 1e-5}
    hidden = audit.invert_uplink(*observe(method__weights="uniform", privacy__accountant="rdp", **noise), attack)
    assert hidden.psnr[0] < 14
    assert hidden.psnr[0] < result.psnr[0] - 8


@pytest.mark.parametrize("name", ["dlg", "idlg"])
def test_matching_gradients_finds_the_example(name: str):
    model, observed = observe()
    result = audit.invert_uplink(model, observed, audit.UplinkAttack(name, iterations=100))
    assert result.distance < 1e-2
    assert result.psnr[0] > 15
    if name == "idlg":
        assert result.labels.tolist() == observed.examples.y.tolist()


def test_a_convolutional_network_is_attacked_too():
    """Its kernels have gradients alone, and the attack takes gradients of gradients."""
    network = ("cnn(widths=(4, 4), dense=8, padding='SAME', pool='each')",)
    model, observed = observe(models=network)
    assert inversion.measure_difference(model, observed) < 1e-3
    first, later = (audit.invert_uplink(model, observed, audit.UplinkAttack("dlg", iterations=n)).distance for n in (1, 30))
    assert later < first


def test_similarities_are_those_of_their_formulas():
    rng = np.random.default_rng(0)
    image = rng.random((16, 16, 1))
    assert images.peak_signal_to_noise(image, image + 0.1, 1.0) == pytest.approx(20)
    assert images.peak_signal_to_noise(image, image, 1.0) == float("inf")
    assert images.structural_similarity(image, image, 1.0) == pytest.approx(1)
    flat = np.full((16, 16, 1), 0.5)
    expected = (2 * 0.5 * 0.7 + 1e-4) / (0.5**2 + 0.7**2 + 1e-4)  # only the means differ
    assert images.structural_similarity(flat, flat + 0.2, 1.0) == pytest.approx(expected)
    assert images.structural_similarity(image, rng.random((16, 16, 1)), 1.0) < 0.2
    assert images.peak_signal_to_noise(255 * image, 255 * image + 1, 255.0) == pytest.approx(20 * np.log10(255))
    one, two = rng.random((2, 16, 16, 3))
    by_channel = [images.structural_similarity(one[..., c : c + 1], two[..., c : c + 1], 1.0) for c in range(3)]
    assert images.structural_similarity(one, two, 1.0) == pytest.approx(np.mean(by_channel))


def test_streamed_examples_are_observed_too():
    observed, streamed = (observe(plan__data=where)[1] for where in ("device", "host"))
    jax.tree.map(np.testing.assert_array_equal, observed.delta, streamed.delta)


def test_what_the_attack_does_not_simulate_is_refused():
    config = fedavg.get_config("smoke")
    simulator = experiment.build(config)
    state = simulator.init(0)
    prepare = lambda client=0: command._prepare_inversion(config, simulator, state, "cosine", client, 1, 5)
    with pytest.raises(ValueError, match=r"audit: client=20 must be in \[0, 20\)"):
        prepare(client=20)
    config.optimizer.name = "adam"
    with pytest.raises(ValueError, match=r"optimizer.name='adam': audit --invert simulates SGD .*, for which it must be 'sgd'"):
        prepare()


@pytest.mark.parametrize(
    ("field", "value", "epochs", "attack", "where"),
    [
        ("optimizer.weight_decay", 0.01, 1, "cosine", ""),
        ("augment", "crop(padding=1)", 1, "cosine", ""),
        ("regularizers", ("decorrelation(coefficient=0.1)",), 1, "cosine", ""),
        ("optimizer.momentum", 0.9, 5, "cosine", " with 5 local steps"),
        ("optimizer.momentum", 0.9, 1, "dlg", None),
        ("optimizer.anneal", "cosine", 5, "cosine", " with 5 local steps"),
        ("optimizer.anneal", "cosine", 1, "dlg", None),
        ("optimizer.clip", 0.01, 5, "cosine", " with 5 local steps"),
        ("optimizer.clip", 0.01, 1, "idlg", " with 'idlg', which compares lengths"),
        ("optimizer.clip", 0.01, 1, "cosine", None),
        ("optimizer.momentum", 0.0, 5, "cosine", None),
        ("optimizer.weight_decay", 0.0, 5, "cosine", None),
    ],
)
def test_local_training_that_is_no_plain_descent_is_refused(field, value, epochs, attack, where):
    config = fedavg.get_config("smoke")
    simulator = experiment.build(config)
    config.method.epochs = epochs
    with config.unlocked():
        config.update_from_flattened_dict({field: value})
    prepare = lambda: command._prepare_inversion(config, simulator, simulator.init(0), attack, 0, 1, 5)
    if where is None:
        assert callable(prepare())
        return
    with pytest.raises(ValueError, match=rf"^{re.escape(f'{field}={value!r}')}: audit --invert .* must be (None|\(\)){where}$"):
        prepare()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedlc", {}),
        ("fedsam", {}),
        ("fedavg", {"models": ("resnet8(width=4)",)}),
        ("fedavg", {"models": ("cnn(dropout=0.5)",)}),
        ("fedprox", {"method.epochs": 3, "method.mu": 50.0}),
    ],
)
def test_a_loss_or_a_network_that_trains_otherwise_is_refused(name, changes):
    config = experiment.load_config(f"{name}:smoke")
    config.method.epochs = 1
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    simulator = experiment.build(config)
    for examples in (2, config.method.batch + 1):
        with pytest.raises(ValueError, match=rf"^method.name='{name}' with model .*: audit --invert simulates plain SGD"):
            command._prepare_inversion(config, simulator, simulator.init(0), "cosine", 0, examples, 5)


def test_several_minibatches_of_plain_descent_are_attacked():
    config = experiment.load_config("fedavg:smoke")
    config.method.update(epochs=2, batch=5)
    simulator = experiment.build(config)
    assert callable(command._prepare_inversion(config, simulator, simulator.init(0), "cosine", 0, 12, 5))


def test_what_changes_an_uplink_later_is_not_taken_for_training():
    config = fedavg.get_config("smoke")
    config.compression.uplink = "top_k(fraction=0.01)"
    simulator = experiment.build(config)
    assert callable(command._prepare_inversion(config, simulator, simulator.init(0), "cosine", 0, 1, 5))
    config.aggregation.rule = "median"
    simulator = experiment.build(config)
    with pytest.raises(ValueError, match="robust rule or vote takes its place; use method 'fedavg' without them"):
        command._prepare_inversion(config, simulator, simulator.init(0), "cosine", 0, 1, 5)


def test_a_first_step_is_plain_descent_with_momentum_and_in_its_direction_with_clip():
    (_, plain), (_, momentum), (_, clipped) = observe(), observe(optimizer__momentum=0.9), observe(optimizer__clip=0.01)
    jax.tree.map(np.testing.assert_array_equal, plain.delta, momentum.delta)
    scale = 0.001 / float(optax.tree.norm(plain.delta))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a * scale, b, rtol=1e-3, atol=1e-7), plain.delta, clipped.delta)


def test_methods_that_send_no_single_difference_are_refused():
    config = experiment.load_config("fedproto:smoke")
    config.data.examples = 60
    simulator = experiment.build(config)
    with pytest.raises(ValueError, match="reads a network that a client sends, and none is there"):
        inversion.observe_uplink(simulator, simulator.init(0), 0, 1, steps=1, lr=0.1)
