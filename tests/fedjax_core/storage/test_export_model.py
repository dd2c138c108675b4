"""Saved models come back bit for bit and build themselves; other programs read them; damaged files are refused."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import nn
from fedjax_core.algorithm import Net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.streams import stream_key
from fedjax_core.storage import export_model
from fedjax_core.storage.safetensors_files import write_tensors
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from tests import toy

DESCRIPTION = {
    "model": "cnn(widths=(3, 4), dense=5)",
    "classes": 3,
    "class_names": ["cat", "dog", "Eule"],
    "input_shape": (8, 8, 3),
    "mean": (0.1, 1 / 3, 0.5),
    "std": 0.25,
    "statistics": "average",
    "method": "fedavg",
    "config": {"optimizer": {"lr": 0.1}, "data": None},
}
MODELS = {
    "mlp": {"model": "mlp(widths=(4,))", "input_shape": (5,), "mean": 0.0},
    "cnn": {},
    "resnet8": {"model": "resnet8(width=4)", "statistics": "local"},
    "bfloat16": {"model": "mlp(widths=(4,), dtype='bfloat16')", "input_shape": (5,), "mean": 0.0},
}


def described(name: str = "cnn") -> dict:
    return DESCRIPTION | MODELS[name]


def model(description: dict):
    name, _, rest = description["model"].partition("(")
    options = eval(f"dict({rest}") if rest else {}
    fields = ("classes", "input_shape", "mean", "std", "statistics")
    return nn.build(name, *(description[f] for f in fields), **options)


@functools.cache
def net(name: str, dtype: str = "float32") -> Net:
    """Any numbers, also the odd ones, in the model's form."""
    rng = np.random.default_rng(0)
    odd = [np.nan, -np.nan, np.inf, -0.0, 1e-45, 3e38]

    def fill(shape):
        values = rng.normal(size=shape.shape).astype(np.float32)
        values.flat[: min(len(odd), values.size)] = odd[: values.size]
        return jnp.asarray(values, dtype)

    return jax.tree.map(fill, jax.eval_shape(model(described(name)).init, jax.random.key(0)))


def bits(leaf) -> bytes:
    return np.asarray(leaf).tobytes()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_round_trip_is_exact(tmp_path, name, dtype):
    path = tmp_path / "model.safetensors"
    saved = net(name, dtype)
    export_model.save_model(path, saved, described(name))
    built, loaded, description = export_model.load_model(path)
    assert isinstance(loaded, Net)
    assert jax.tree.structure(loaded) == jax.tree.structure(saved)
    for a, b in zip(jax.tree.leaves(saved), jax.tree.leaves(loaded), strict=True):
        assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))
        assert isinstance(b, jax.Array)
    assert description == json.loads(json.dumps(described(name)))
    forms = [jax.eval_shape(m.init, jax.random.key(0)) for m in (built, model(described(name)))]
    assert forms[0] == forms[1]
    again = tmp_path / "again.safetensors"
    export_model.save_model(again, loaded, description)
    assert again.read_bytes() == path.read_bytes()


def test_the_loaded_model_computes_the_same(tmp_path):
    mine = model(described("bfloat16"))
    x = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    mine_net = mine.init(jax.random.key(0))
    export_model.save_model(tmp_path / "m", mine_net, described("bfloat16"))
    loaded, loaded_net, _ = export_model.load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.apply(loaded_net, x)[0]["logits"], mine.apply(mine_net, x)[0]["logits"])


def test_the_loaded_model_refuses_other_inputs_than_in_training(tmp_path):
    told = described("mlp") | {"input_dtype": "uint8"}
    export_model.save_model(tmp_path / "m", net("mlp"), told)
    loaded, loaded_net, _ = export_model.load_model(tmp_path / "m")
    x = np.arange(10, dtype=np.uint8).reshape(2, 5)
    loaded.apply(loaded_net, x)
    for other, says in ((x.astype(np.float32), "x has floats from 0 to 9: must be uint8"), (x[:, :4], r"x has the shape \(2, 4\)")):
        with pytest.raises(ValueError, match=says):
            loaded.apply(loaded_net, other)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({}, "is not a model saved by this program"),
        ({"description": "{"}, "is not a model saved by this program"),
        ({"description": "[]"}, "x.safetensors has no model, expected a string"),
        ({"description": json.dumps({k: v for k, v in DESCRIPTION.items() if k != "std"})}, "has no std, expected a number"),
        ({"description": json.dumps(DESCRIPTION | {"classes": 4})}, "has 3 class_names for 4 classes"),
        (
            {"description": json.dumps(DESCRIPTION | {"model": "resnet9"})},
            "unknown model 'resnet9'; allowed: ",
        ),
        ({"description": json.dumps(DESCRIPTION | {"model": "__import__('os')"})}, "is not of the form name(key=value, ...)"),
        ({"description": json.dumps(DESCRIPTION)}, "missing, in the model ["),
        ({"description": "[" * 100_000}, "is not a model saved by this program"),
        ({"description": json.dumps(DESCRIPTION | {"model": 3})}, "x.safetensors is an int (3), expected a string"),
        ({"description": json.dumps(DESCRIPTION | {"classes": "3"})}, "is a string ('3'), expected an int"),
        ({"description": json.dumps(DESCRIPTION | {"class_names": 3})}, "class_names of the description of"),
        ({"description": json.dumps(DESCRIPTION | {"input_shape": 8})}, "expected a list"),
        ({"description": json.dumps(DESCRIPTION | {"mean": [[0.5]]})}, "mean[0] of the description of"),
    ],
)
def test_files_that_hold_no_model(tmp_path, metadata, said):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": np.zeros((2, 3), np.float32)}, metadata)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        export_model.load_model(path)
    assert "\n" not in str(caught.value)


def test_networks_of_another_form_are_not_saved(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match=r"params\.head\.bias is \[3\], in the model \[4\]"):
        export_model.save_model(path, net("cnn"), described() | {"classes": 4, "class_names": list("abcd")})
    more = net("mlp")._replace(stats={"mean": np.zeros(2)})
    with pytest.raises(ValueError, match=r"stats\.mean is \[2\], in the model missing"):
        export_model.save_model(path, more, described("mlp"))
    assert not path.exists()


def test_what_jax_cannot_hold_is_named(tmp_path):
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), net("mlp"))
    export_model.save_model(tmp_path / "x", wide, described("mlp"))
    with pytest.raises(ValueError, match=r"params\.\S+ is of float64, which needs jax_enable_x64"):
        export_model.load_model(tmp_path / "x")


# ------------------------------------------------------------------------------------------------ which network a model is

X = toy.data().test.x[:4]


def simulate(build, mixed=False):
    build = functools.partial(build, optimizer=local_training.sgd(0.1))
    return simulator.Simulator(simulator.build_spec(toy.groups(build, mixed), toy.data(), plan=client_loop.Plan(1, 1), cohort=5))


def held(build):
    """A view of client 1 that predicts as `build` says: (task -> (name, holds, predict))."""
    task = toy.task()
    holds, predict = build(task.model)
    return simulator.ClientView(1, task, {"personal": holds}, lambda name, held, x: predict(*held, x))


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", ["scaffold", "fedhe"])
def test_the_network_of_a_method(name):
    """SCAFFOLD's server holds a control variate beside it; FedHe's clients hold theirs, here of two architectures."""
    sim = simulate(toy.METHODS[name], mixed=name == "fedhe")
    state = sim.init(0)
    if name == "scaffold":
        equal(export_model.find_network(sim.client_view(state, 0), "global", X), state.server.net)
    else:
        (found,) = jax.tree.leaves(sim.client_view(state, 3).holds["personal"][1], is_leaf=lambda x: isinstance(x, Net))[:1]
        equal(export_model.find_network(sim.client_view(state, 3), "personal", X), found)


def test_the_network_under_local_statistics():
    sim = simulate(lambda task, **options: with_local_statistics(lambda task: toy.METHODS["fedavg"](task, **options))(task))
    state = sim.init(0)
    moved = jax.tree.map(lambda x: x + 1.0, state.clients[0][1])
    state = state._replace(clients=((state.clients[0][0], moved),))
    found = export_model.find_network(sim.client_view(state, 2), "personal", X)
    equal(found.params, state.server.net.params)
    equal(found.stats, {"mean": jnp.ones(toy.INPUTS)})


@pytest.mark.parametrize("local", [False, True])
def test_the_network_of_two_parts(local):
    """FedPer's clients hold a head, its server the body."""

    def build(task, **options):
        make = functools.partial(toy.METHODS["fedper"], **options)
        return (with_local_statistics(make) if local else make)(task)

    sim = simulate(build)
    state = sim.init(0)
    moved = jax.tree.map(lambda x: x + jnp.arange(len(x), dtype=x.dtype).reshape(-1, *(1,) * (x.ndim - 1)), state.clients[0])
    found = export_model.find_network(sim.client_view(state._replace(clients=(moved,)), 2), "personal", X)
    first = sim.spec.bound_groups[0].task.model.init(stream_key(state.key, "init", 0))
    equal(found.params, {"body": first.params["body"], "head": jax.tree.map(lambda x: x + 2, first.params["head"])})
    equal(found.stats, jax.tree.map(lambda x: x + 2 * local, first.stats))


def test_the_one_that_predicts_is_taken():
    model = toy.model()
    a, b = (model.init(jax.random.key(k)) for k in (0, 1))
    for own in (a, b):
        view = held(lambda m, own=own: (((a, ()), (b, a.params)), lambda sent, client, x: m.apply(own, x)[0]))
        equal(export_model.find_network(view, "personal", X), own)


def test_two_programs_of_one_network_may_differ_by_what_its_format_rounds():
    """A hundredth is nothing in bfloat16, where the nearest network is taken unless another is nearly as near; a tenth is much."""

    def found(dtype, factor, other):
        model = nn.build("mlp", 3, (5,), widths=(4,), dtype=dtype)
        net = model.init(jax.random.key(0))
        second = net._replace(params=net.params | {"head": jax.tree.map(lambda w: other * w, net.params["head"])})
        predict = lambda name, holds, x: {"logits": factor * model.apply(holds[0], x)[0]["logits"]}
        view = simulator.ClientView(0, make_task(model, classes=3, population=1), {"personal": (net, second)}, predict)
        equal(export_model.find_trained_network(view, "personal", X), net)

    found("float32", 1.0001, 1.1)
    found("bfloat16", 1.01, 1.1)
    for dtype, factor, other, said in (
        ("float32", 1.01, 1.1, "no mlp that predicts"),
        ("bfloat16", 0.9, 1.1, "no mlp that predicts"),
        ("bfloat16", 1.01, 1.015, "several networks that predict alike"),
    ):
        with pytest.raises(ValueError, match=said):
            found(dtype, factor, other)


def test_what_is_not_one_network_is_refused():
    model = toy.model()
    a, b = (model.init(jax.random.key(k)) for k in (0, 1))
    both = held(lambda m: ((a, b), lambda sent, client, x: {"logits": m.apply(a, x)[0]["logits"] + m.apply(b, x)[0]["logits"]}))
    with pytest.raises(ValueError, match="'personal' holds no toy6 that predicts as it does"):
        export_model.find_network(both, "personal", X)
    order = np.array([1, 0, 2, 3, 4, 5])  # of hidden units: another network with the same function
    body, head = a.params["body"], a.params["head"]
    turned = {"kernel": body["kernel"][:, order], "bias": body["bias"][order]}
    alike = a._replace(params={"body": turned, "head": head | {"kernel": head["kernel"][order]}})
    with pytest.raises(ValueError, match="'personal' holds several networks that predict alike"):
        export_model.find_network(held(lambda m: ((a, alike), lambda sent, client, x: m.apply(a, x)[0])), "personal", X)
    equal(export_model.find_network(held(lambda m: ((a, a), lambda sent, client, x: m.apply(a, x)[0])), "personal", X), a)
    with pytest.raises(ValueError, match="unknown model of this method 'global'; allowed: personal"):
        export_model.find_network(both, "global", X)


def test_what_a_description_says_of_preprocessing_is_what_networks_do():
    """With an offset far from 0 and a limit, which other programs have to apply as well."""
    description = {"input_dtype": "float32", "input_shape": [2], "offset": [1.7e9, 0.0], "limit": 2.0}
    description |= {"mean": [3.0, 0.5], "std": [2.0, 0.25]}
    use = export_model.add_usage(description)["preprocessing"]
    x = np.array([[1.7e9 + 4, 0.6], [1.7e9 + 90, -3.0]])
    scaled = ((x - use["offset"]) / use["divide"] - use["mean"]) / use["std"]
    scaled = np.clip(scaled, -use["limit"], use["limit"])
    inputs = (x - description["offset"]).astype(np.float32)
    wanted = nn.normalize_inputs(inputs, description["mean"], description["std"], None, limit=description["limit"])
    np.testing.assert_allclose(scaled, wanted, rtol=1e-5)
    plain = export_model.add_usage({"input_shape": [2], "mean": 0.0, "std": 1.0})["preprocessing"]
    assert (plain["offset"], plain["limit"]) == (None, None)
