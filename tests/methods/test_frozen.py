"""From a network that was trained in the middle to a federation over its prompts, and out again as one file."""

import shutil

import jax
import numpy as np
import pytest

from configs import centralized_pretrain, fedhpl
from fedjax_core import experiment
from fedjax_core.commands import analyze, export, predict
from fedjax_core.experiment import input_normalization
from fedjax_core.storage import export_model as files
from fedjax_core.storage.json_files import read_json, write_json
from fedjax_core.training import metrics

VIT = "vit(patch=4, width=8, depth=2, heads=2)"
PROMPTED = "vit(patch=4, width=8, depth=2, heads=2, prompts=2)"


def settled(config, model):
    config.models, config.rounds, config.evaluation.every, config.plan.devices = (model,), 1, 1, 1
    config.data.clients = 3
    config.evaluation.scopes = ("own",) if "prompts" in model else ("global",)
    return config


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A file with a small transformer that has seen the digits 0 to 4."""
    place = tmp_path_factory.mktemp("pretrain")
    config = settled(centralized_pretrain.get_config("smoke"), VIT)
    experiment.execute(config, str(place / "run"), progress=False, console=lambda text: None)
    export.export(place / "run", place / "backbone.safetensors")
    return place / "backbone.safetensors"


@pytest.fixture(scope="module")
def run(backbone):
    """FedHPL on all digits over it."""
    config = settled(fedhpl.get_config("smoke"), PROMPTED)
    config.weights = str(backbone)
    experiment.execute(config, str(backbone.parent / "fedhpl"), progress=False, console=lambda text: None)
    return backbone.parent / "fedhpl"


def test_the_backbone_is_the_files_and_the_head_is_new(backbone, run):
    _, net, description = files.load_model(backbone)
    config, simulation, state = experiment.load(run)
    (group,) = simulation.spec.bound_groups
    frozen = group.task.frozen
    assert set(frozen.params) == set(net.params) - {"head"}  # for five classes
    for name, entry in frozen.params.items():
        jax.tree.map(np.testing.assert_array_equal, entry, net.params[name])
    assert set(state.clients[0].params) == {"prompts", "head"}
    assert metrics.nbytes(simulation.compiled.device_arrays.tasks) == metrics.nbytes(frozen)
    mean, std, _ = input_normalization.find_scaling(config.normalise, simulation.spec.data.train, str(backbone))
    assert (list(mean), list(std)) == (description["mean"], description["std"])
    assert list(mean) != list(experiment.compute_mean_and_std(simulation.spec.data.train)[0])


def test_a_client_is_exported_whole(run, tmp_path):
    said = export.export(run, tmp_path / "client", client=1)
    assert said["model"] == PROMPTED
    model, net, _ = files.load_model(tmp_path / "client")
    _, simulation, state = experiment.load(run)
    view = simulation.client_view(state, 1)
    x = np.asarray(simulation.spec.data.test.x[:9])
    wanted = view.predict("personal", view.holds["personal"], x)["logits"]
    np.testing.assert_allclose(model.apply(net, x)[0]["logits"], wanted, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, net.params["blocks"], simulation.spec.bound_groups[0].task.frozen.params["blocks"])
    np.save(tmp_path / "x.npy", x)
    table = predict.predict(tmp_path / "client", tmp_path / "x.npy")
    assert [row["class"] for row in table] == [str(c) for c in np.argmax(wanted, 1)]


def test_it_is_analysed(run, tmp_path, capsys):
    assert analyze.main([str(run), "--what=clients,tsne", f"--out={tmp_path}", "--compilation_cache="]) == 0
    assert {"clients", "tsne"} <= {file.stem.split("-")[-1].split("_")[0] for file in tmp_path.glob("*.png")}, capsys.readouterr()


def test_all_of_a_network_goes_on_from_the_file(backbone):
    _, net, _ = files.load_model(backbone)
    config = settled(fedhpl.get_config("smoke"), PROMPTED)
    config.update(weights=str(backbone), train="all")
    simulation = experiment.build(config)
    begun = (
        simulation.spec.bound_groups[0]
        .task.bind(simulation.spec.bound_groups[0].task.bound_arrays, 0)
        .model.init(jax.random.key(3))
    )
    assert set(begun.params) == set(net.params) | {"prompts"}
    jax.tree.map(np.testing.assert_array_equal, begun.params["blocks"], net.params["blocks"])


def test_a_run_does_not_go_on_and_is_not_read_over_another_backbone(backbone, run, tmp_path):
    """Of the same form under the same name: the pre-training was run again."""
    place = tmp_path / "run"
    shutil.copytree(run, place)
    record = read_json(place / "run.json")
    write_json(place / "run.json", record | {"weights": {str(backbone): "0" * 16}})
    config = settled(fedhpl.get_config("smoke"), PROMPTED)
    config.weights, config.rounds = str(backbone), 2
    with pytest.raises(ValueError, match=r"holds a run with other weights \(.*backbone.safetensors: \"0{16}\" in the directory"):
        experiment.execute(config, str(place), progress=False, console=lambda text: None)
    with pytest.raises(ValueError, match=r"was run with other contents of .*backbone.safetensors; give the files back"):
        experiment.load(place)
    write_json(place / "run.json", record)
    assert experiment.execute(config, str(place), progress=False, console=lambda text: None).summary["rounds"] == 2
