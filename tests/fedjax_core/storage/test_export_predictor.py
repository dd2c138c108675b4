"""Models that are more than one network come back from their file as what predicted: the same logits, whatever a method keeps."""

import functools
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import experiment, nn
from fedjax_core.engine.client_view import ClientView
from fedjax_core.storage import export_model, export_predictor
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.task import Task, make_partial_task, make_task
from fedjax_core.training import adapters, local_training
from fedjax_core.training.local_batch_norm import with_local_statistics

SHAPE, CLIENTS = (4, 4, 1), 3
MLP = "mlp(widths=(5,))"
VIT = "vit(patch=2, width=8, depth=1, heads=2, prompts=2, deep=False)"
DESCRIPTION = {
    "classes": 3,
    "class_names": ["a", "b", "c"],
    "input_shape": SHAPE,
    "mean": 0.2,
    "std": 0.5,
    "statistics": "average",
    "population": CLIENTS,
    "round": 2,
    "train": "all",
    "adapter": None,
    "client": 1,
}
METHODS: dict[str, dict[str, Any]] = {  # how a description differs, and the method's options
    "fedcac": {},
    "fedrod": {},
    "pfedpt": {"options": {"pad": 1}},
    "fedavg_linear": {},
    "moon": {"predictor": "global", "options": {"projection": 4}},
    "fednh": {"predictor": "global", "options": {"scale": 3.0}},
    "fedgh": {"options": {"projection": 4}},
    "fedgen": {"options": {"noise": 3, "hidden": 4}},
    "fedper": {"options": {"personal": ("head",)}},
    "pfedpg": {"model": VIT, "train": "prompts", "options": {"heads": 2, "inner": 4}},
    "fedrod of statistics of its own": {"method": "fedrod", "model": "resnet8(width=2)", "statistics": "local"},
    "fedrod of an adapter": {"method": "fedrod", "model": VIT, "train": "head", "adapter": "lora(rank=1)"},
}
X = np.random.default_rng(0).uniform(size=(5, *SHAPE)).astype(np.float32)


def described(name: str) -> dict[str, Any]:
    return DESCRIPTION | {"model": MLP, "method": name, "predictor": "personal", "options": {}} | METHODS[name]


def task(told: dict[str, Any]) -> Task:
    model_name, _, rest = told["model"].partition("(")
    model = nn.build(
        model_name, *(told[f] for f in ("classes", "input_shape", "mean", "std", "statistics")), **eval(f"dict({rest}")
    )
    settings = {"classes": told["classes"], "population": told["population"], "shape": SHAPE}
    if told["train"] == "all":
        return make_task(model, **settings)
    net = model.init(jax.random.key(5))
    if told["adapter"] is not None:
        return adapters.adapter_task(model, net, adapters.parse(told["adapter"]), told["train"], **settings)
    return make_partial_task(model, net, told["train"], **settings)


@functools.cache
def view(name: str) -> ClientView:
    """What client 1 holds, every number of it moved; nothing is compiled."""
    told, bound = described(name), task(described(name))
    build = functools.partial(experiment.method_builder(told["method"]), optimizer=local_training.sgd(0.1), **told["options"])
    algorithm = (with_local_statistics(build) if told["statistics"] == "local" else build)(bound)
    key, client = jax.random.key(1), jnp.int32(1)
    server = algorithm.server_init(key)
    held = algorithm.broadcast(server, client), algorithm.client_init(key, server, client)
    rng = np.random.default_rng(3)

    def moved(leaf):
        if leaf.dtype == jnp.uint8:  # FedCAC's mask has been used when the client got its model
            return leaf
        return leaf + jnp.asarray(rng.uniform(0.1, 0.3, leaf.shape), leaf.dtype)

    held = jax.tree.map(moved, held)
    return ClientView(1, bound, {told["predictor"]: held}, lambda name, held, x: algorithm.predict[name](*held, x))


@pytest.mark.parametrize("name", METHODS)
def test_it_predicts_as_it_did(tmp_path, name):
    path, told, of_client = tmp_path / "model.safetensors", described(name), view(name)
    export_predictor.save_predictor(path, of_client, told["predictor"], X, told, experiment.method_builder)
    found = export_predictor.load_predictor(path, experiment.method_builder)
    wanted = of_client.predict(told["predictor"], of_client.holds[told["predictor"]], X)["logits"]
    np.testing.assert_allclose(found.apply(found.arrays, X)["logits"], wanted, rtol=1e-5, atol=1e-5)
    held = of_client.holds[told["predictor"]]
    assert jax.tree.structure(found.arrays["held"]) == jax.tree.structure(held)
    jax.tree.map(np.testing.assert_array_equal, found.arrays["held"], held)
    assert found.description["method"] == told["method"]
    with pytest.raises(ValueError, match=r"not one network: load_predictor reads it"):
        export_model.load_model(path)


ONE = ("fedper", "fedrod of statistics of its own", "fedrod of an adapter")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONE])
def test_they_are_not_one_network(name):
    with pytest.raises(export_model.NotOneNetwork):
        export_model.find_trained_network(view(name), described(name)["predictor"], X)


def test_what_does_not_come_back_is_not_saved(tmp_path):
    """Options that are not the run's: another width does not fit, another mean predicts something else."""
    told = described("fednh")
    with pytest.raises(ValueError, match=r"the description is no fedgh of mlp as described: held\.0\.kernel is \[4, 3\]"):
        export_predictor.save_predictor(
            tmp_path / "m", view("fedgh"), "personal", X, described("fedgh") | {"options": {}}, experiment.method_builder
        )
    with pytest.raises(ValueError, match="predicts something else when it is rebuilt"):
        export_predictor.save_predictor(tmp_path / "m", view("fednh"), "global", X, told | {"mean": 5.0}, experiment.method_builder)
    less = {field: value for field, value in told.items() if field != "options"}
    with pytest.raises(ValueError, match="the description has no options, expected an object"):
        export_predictor.save_predictor(tmp_path / "m", view("fednh"), "global", X, less, experiment.method_builder)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "fedprx"}, "unknown method 'fedprx'"),
        ({"method": "fedavg"}, "fedavg of mlp as described"),
        ({"method": 3}, "method of the description of"),
        ({"options": {"gama": 1.0}}, "gama"),
        ({"train": "heads"}, "unknown train 'heads'"),
        ({"predictor": "other"}, "has no predictor 'other'"),
        ({"holds": "network"}, "holds one network: load_model reads it"),
        ({"std": "x"}, "std of the description of"),
        ({"model": 3}, "model of the description of"),
        ({"class_names": "abc"}, "class_names of the description of"),
        ({"input_shape": "x"}, "input_shape of the description of"),
    ],
)
def test_files_that_say_something_else(tmp_path, change, said):
    path = tmp_path / "m"
    export_predictor.save_predictor(path, view("fedrod"), "personal", X, described("fedrod"), experiment.method_builder)
    arrays, metadata = read_tensors(path)
    told = json.loads(metadata["description"]) | change
    write_tensors(tmp_path / "n", {name: np.array(array) for name, array in arrays.items()}, {"description": json.dumps(told)})
    with pytest.raises((ValueError, TypeError), match=re.escape(said)) as caught:
        export_predictor.load_predictor(tmp_path / "n", experiment.method_builder)
    assert "\n" not in str(caught.value)
