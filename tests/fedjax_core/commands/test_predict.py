"""From a run to a saved model to a table of predictions, and what each mistake gets to read."""

import csv
import functools
import json
import os
import re
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from configs import fedavg as fedavg_config
from fedjax_core import experiment, nn
from fedjax_core.commands import export, predict
from fedjax_core.storage import export_model as files
from fedjax_core.storage import pretrained_weights
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors

LOAD = functools.cache(experiment.load)


@pytest.fixture(autouse=True)
def _lighter(monkeypatch):
    """Commands here keep no compiled programs, and load a run once."""
    monkeypatch.setattr(experiment, "COMPILATION_CACHE", "")
    monkeypatch.setattr(experiment, "load", LOAD)


def run(directory, models=("mlp(widths=(8,))",), scopes=("global",), adversary=None, **method):
    config = fedavg_config.get_config("smoke")
    config.rounds = config.evaluation.every = 1
    config.data.clients = 4
    config.plan.devices = 1
    config.cohort.size = 2
    config.evaluation.scopes = scopes
    config.adversary.update(attack=adversary, fraction=0.5 if adversary else None)
    config.models = models
    config.method = dict(name="fedavg", epochs=1, batch=64) | method
    if config.method.name == "centralized":
        config.cohort.size = None
    if config.method.name == "local":
        config.models = ("mlp(widths=(8,))", "mlp(widths=(9,))")
        config.plan.hold = "host"
        config.cohort.size = 4
        config.evaluation.scopes = ("post_local",)
    experiment.execute(config, str(directory), progress=False)
    return directory


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    return run(tmp_path_factory.mktemp("fedavg") / "run")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two architectures, client states on the host."""
    return run(tmp_path_factory.mktemp("local") / "run", name="local")


@pytest.fixture(scope="module")
def saved(fedavg, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    export.export(str(fedavg), path)
    return path


@pytest.fixture(scope="module")
def digits():
    return experiment.dataset(fedavg_config.get_config("smoke")).test


def rows(path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def accuracy(table, y) -> float:
    return float(np.mean([row["class"] == str(label) for row, label in zip(table, y, strict=True)]))


# ------------------------------------------------------------------------------------------------ from a run


def test_the_global_model_of_a_run_predicts_as_it_scored(fedavg, digits, tmp_path, capfd):
    out, npy, table = tmp_path / "model.safetensors", tmp_path / "x.npy", tmp_path / "predictions.csv"
    assert export.main([str(fedavg), f"--out={out}"]) == 0
    np.save(npy, digits.x)
    assert predict.main([str(out), str(npy), f"--out={table}", "--batch=100"]) == 0
    said = capfd.readouterr().err.splitlines()
    assert said[-2:] == [
        f"{out}: the global model of fedavg, mlp(widths=(8,)), after round 1",
        f"{table}: {len(digits.y)} predictions",
    ]
    found = rows(table)
    assert list(found[0]) == ["file", "class", "probability"]
    assert [row["file"] for row in found] == [f"x.npy[{i}]" for i in range(len(digits.y))]
    assert all(0.1 <= float(row["probability"]) <= 1 for row in found)
    score = read_json(fedavg / "summary.json")["metrics"]["test/global/accuracy"]["last"]
    assert accuracy(found, digits.y) == pytest.approx(score, abs=1e-6)
    _, _, description = files.load_model(out)
    assert description["config"] == read_json(fedavg / "config.json")
    said, x = description["preprocessing"], digits.x[:3]
    scaled = (x / said["divide"] - np.array(said["mean"])) / np.array(said["std"])
    wanted = nn.normalize_inputs(x, description["mean"], description["std"], None)
    np.testing.assert_allclose(scaled, wanted, rtol=1e-5, atol=1e-6)
    assert (said["divide"], said["axes"]) == (255.0, ["height", "width", "channels"])
    assert description["final_activation"] == "softmax"
    assert (description["method"], description["predictor"], description["client"], description["round"]) == (
        "fedavg",
        "global",
        None,
        1,
    )


def test_clients_models_are_their_own(local, tmp_path, digits):
    _, simulation, state = experiment.load(str(local), None)
    for client in (2, 3):
        said = export.export(str(local), tmp_path / "m", client=client)
        model, net, description = files.load_model(tmp_path / "m")
        assert said["model"] == description["model"] == f"mlp(widths=({8 + client % 2},))"
        assert (description["predictor"], description["client"]) == ("personal", client)
        view = simulation.client_view(state, client)
        wanted = view.predict("personal", view.holds["personal"], digits.x[:5])["logits"]
        np.testing.assert_allclose(model.apply(net, digits.x[:5])[0]["logits"], wanted, atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, net, view.holds["personal"][1])


def test_a_model_that_is_more_than_one_network(tmp_path, digits, capfd):
    """FedAvg+Linear: the server's body and classifier, and a map of the client's own between them."""
    place, out, npy = tmp_path / "run", tmp_path / "model", tmp_path / "x.npy"
    run(place, name="fedavg_linear(weights='uniform')", scopes=("own",))  # options are in the name, or beside it
    assert export.main([str(place), f"--out={out}", "--client=1"]) == 0
    assert "the personal model of fedavg_linear" in capfd.readouterr().err
    np.save(npy, digits.x[:50])
    found = predict.predict(out, npy, batch=20)
    _, simulation, state = experiment.load(str(place), None)
    view = simulation.client_view(state, 1)
    logits = np.asarray(view.predict("personal", view.holds["personal"], digits.x[:50])["logits"])
    assert [row["class"] for row in found] == [str(label) for label in logits.argmax(1)]
    assert export.main([str(place), f"--out={out}", "--client=1", "--layout=timm"]) == 1
    assert "no one network to export" in capfd.readouterr().err


def test_what_is_not_finite_is_refused(saved, digits, tmp_path):
    np.save(tmp_path / "x.npy", digits.x[:2])
    arrays, metadata = read_tensors(saved)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    description = json.loads(metadata["description"])
    head = "params.head.kernel"

    def refused(said, weight=None, **change):
        changed = arrays if weight is None else arrays | {head: np.where(np.arange(arrays[head].size) == 3, weight, 0.1)}
        with np.errstate(over="ignore"):
            changed = changed | {head: changed[head].reshape(arrays[head].shape).astype(np.float32)}
        write_tensors(tmp_path / "m", changed, {"description": json.dumps(description | change)})
        with pytest.raises(ValueError, match=re.escape(said)):
            predict.predict(tmp_path / "m", tmp_path / "x.npy")

    refused(f"{head} is not finite; a network needs finite weights (as float32)", np.nan)
    refused(f"{head} is not finite", -np.inf)
    refused("std=0.0 must be finite and positive: inputs are normalised by it", std=0.0)
    refused("std=[Infinity] must be finite and positive".replace("Infinity", "inf"), std=[float("inf")])
    refused("mean=nan must be finite: inputs are normalised by it", mean=float("nan"))
    refused("std=-1.0 must be finite and positive", std=-1.0)
    refused("std=1e+308 must be finite and positive", std=1e308)
    refused("std=1e-40 must be finite and positive", std=1e-40)  # of which float32 makes 0 on most devices
    refused("mean=1e+308 must be finite", mean=1e308)
    refused(f"{head} has 1e+38; a weight must lie between -1.8e+19 and 1.8e+19", 1e38)
    large = {name: np.float32(1.8e19) * np.sign(array) for name, array in arrays.items()}
    write_tensors(tmp_path / "m", large, {"description": json.dumps(description)})
    with pytest.raises(ValueError, match=r"m gives x.npy\[0\] no finite probabilities: its weights are too large to compute with"):
        predict.predict(tmp_path / "m", tmp_path / "x.npy")


def test_the_inputs_of_a_poisoned_run_are_scaled_as_they_were(tmp_path, digits):
    """By rows that nobody changed."""
    place = run(tmp_path / "run", adversary="backdoor(size=3)")
    export.export(place, tmp_path / "model")
    model, net, description = files.load_model(tmp_path / "model")
    _, simulation, state = experiment.load(str(place), None)
    view = simulation.client_view(state, 0)
    wanted = view.predict("global", view.holds["global"], digits.x[:5])["logits"]
    np.testing.assert_allclose(model.apply(net, digits.x[:5])[0]["logits"], wanted, atol=1e-5)
    own = experiment.dataset(fedavg_config.get_config("smoke")).train
    np.testing.assert_allclose((description["mean"], description["std"]), experiment.compute_mean_and_std(own), rtol=1e-6)


def test_other_layouts(fedavg, tmp_path, capfd):
    """Of a ViT, as other programs read it (their reading is in `test_weights.py`); not of what they do not know."""
    vit = run(tmp_path / "vit", models=("vit(patch=4, width=8, depth=1, heads=2, epsilon=1e-5)",))
    assert export.main([str(vit), f"--out={tmp_path / 'own'}"]) == 0
    _, net, _ = files.load_model(tmp_path / "own")
    for layout in ("timm", "transformers"):
        out = tmp_path / layout / "model.safetensors"
        assert export.main([str(vit), f"--out={out}", f"--layout={layout}"]) == 0
        again = pretrained_weights.read_backbone(out, "vit", net)
        jax.tree.map(np.testing.assert_array_equal, again, net)
        assert pretrained_weights.read_scaling(out) == pretrained_weights.read_scaling(tmp_path / "own")
    assert not (tmp_path / "timm" / "config.json").exists()
    config = read_json(tmp_path / "transformers" / "config.json")
    assert (config["hidden_size"], config["image_size"], config["layer_norm_eps"]) == (8, [8, 8], 1e-5)
    capfd.readouterr()
    for place, layout, said in (
        (fedavg, "timm", "layout timm has no place for params.dense1.bias"),
        (vit, "torch", "unknown layout 'torch'; allowed: own, timm, transformers"),
        (vit, "transformers", "config.json is where transformers looks for a model's configuration; choose another folder"),
    ):
        assert export.main([str(place), f"--out={vit / 'm'}", f"--layout={layout}"]) == 1
        assert said in capfd.readouterr().err
    assert not (vit / "m").exists()


@pytest.mark.parametrize(
    ("which", "flags", "said"),
    [
        ("fedavg", ["--client=1"], "method fedavg has no models of single clients, only a global one; leave --client=1 out"),
        ("fedavg", ["--model=personal"], "model=personal is one of a client; say whose with --client"),
        ("fedavg", ["--round=7"], "has no checkpoint of round 7; it has: 1"),
        ("local", [], "method local has no global model; say whose model with --client"),
        ("local", ["--client=9"], "client 9 is not one of 0 ... 3"),
        ("local", ["--client=1", "--model=global"], "unknown model of this method 'global'; allowed: personal"),
        ("nothing", [], "cannot read"),
    ],
)
def test_what_cannot_be_exported(which, flags, said, request, tmp_path, capfd):
    place = tmp_path if which == "nothing" else request.getfixturevalue(which)
    out = tmp_path / "model.safetensors"
    capfd.readouterr()  # what the run said while it was made
    assert export.main([str(place), f"--out={out}", *flags]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(("client", "found"), [(None, None), (1, 1), ("1", 1), ("-1", -1), ("ward", 1), ("2b", 2)], ids=repr)
def test_clients_are_named_by_number_or_name(client, found):
    assert export.find_client(client, ("0", "ward", "2b")) == found


@pytest.mark.parametrize(
    ("names", "said"),
    [(("north", "ward"), "clients.csv has names. Did you mean 'ward'?"), ((), "clients.csv has numbers.")],
)
def test_a_client_of_no_such_name_is_told(names, said):
    with pytest.raises(ValueError, match=re.escape(f"client='wards' is not the name of a client; {said}")):
        export.find_client("wards", names)


def test_a_client_of_pooled_data_has_no_model(tmp_path):
    run(tmp_path / "run", ("mlp(widths=(8,))",), name="centralized", epochs=1)
    with pytest.raises(ValueError, match="method centralized has no models of single clients, only a global one; leave --client=3"):
        export.export(tmp_path / "run", tmp_path / "m.safetensors", client=3)


def test_a_model_of_inputs_that_are_taken_as_they_are_is_not_exported(fedavg, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "scaling_of", lambda *given: None)  # as for token ids
    with pytest.raises(ValueError, match=r"inputs, which are not normalised; a saved model needs normalised inputs"):
        export.export(fedavg, tmp_path / "model.safetensors")


# ------------------------------------------------------------------------------------------------ what is classified


@pytest.fixture
def photos(tmp_path, digits):
    """Digits as files: in folders, in colour and of another size, beside what is no image."""
    folder = tmp_path / "photos"
    (folder / "b" / "deeper").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    first, second, third = (Image.fromarray(x[..., 0]) for x in digits.x[:3])
    first.save(folder / "z.png")
    second.convert("RGB").save(folder / "b" / "a.PNG")
    third.resize((32, 32), Image.Resampling.BILINEAR).save(folder / "b" / "deeper" / "c.bmp")
    first.save(folder / ".hidden" / "x.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_folders_and_arrays_agree(saved, photos, digits, tmp_path):
    found = predict.predict(saved, photos, batch=2)
    assert [row["file"] for row in found] == ["b/a.PNG", "b/deeper/c.bmp", "z.png"]
    np.savez(tmp_path / "x.npz", x=digits.x[:2], y=digits.y[:2])
    of_array = predict.predict(saved, tmp_path / "x.npz")
    assert [row["file"] for row in of_array] == ["x.npz[0]", "x.npz[1]"]
    for file, row in ((found[2], of_array[0]), (found[0], of_array[1])):
        assert file["class"] == row["class"]
        assert file["probability"] == pytest.approx(row["probability"], abs=2e-6)
    assert predict.predict(saved, photos / "z.png")[0] == found[2]


def test_arrays_in_every_form(saved, digits, tmp_path):
    x = digits.x[:7]
    forms = {"bytes": x, "flat": x[..., 0], "parts": (x / 255).astype(np.float32), "wide": x / 255, "order": np.asfortranarray(x)}
    np.savez(tmp_path / "x.npz", **forms)
    tables = [predict.predict(saved, tmp_path / "x.npz", array=name, batch=3) for name in forms]
    for table in tables:
        assert [row["class"] for row in table] == [row["class"] for row in tables[0]]
        for row, other in zip(table, tables[0], strict=True):
            assert row["probability"] == pytest.approx(other["probability"], abs=2e-6)


@pytest.mark.parametrize("name", ["x.npy", "photos"])
def test_the_name_of_an_array_is_refused_where_arrays_have_none(name, saved, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 1), np.uint8))
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match=f"array='q' names one of the arrays in a .npz file, and .*{name} is none"):
        predict.predict(saved, tmp_path / name, array="q")


def floats_model(path, shape, **more):
    """An untrained model that was, as it says, trained on floats."""
    description = {"model": "mlp(widths=(4,))", "classes": 2, "class_names": ["no", "yes"], "input_shape": shape}
    description |= {"input_dtype": "float32", "mean": 0.0, "std": 1.0, "statistics": "average"} | more
    model = nn.build("mlp", 2, shape, widths=(4,))
    files.save_model(path, model.init(jax.random.key(0)), description)
    return path


def test_features_that_are_no_images(tmp_path):
    model = floats_model(tmp_path / "m", (3,))
    np.save(tmp_path / "x.npy", np.array([[-5.0, 2.0, 3.0]]))
    (row,) = predict.predict(model, tmp_path / "x.npy")
    assert row["class"] in ("no", "yes")


def test_integers_are_numbers_and_bytes_are_pixels(tmp_path):
    model = floats_model(tmp_path / "m", (3,))
    x = np.array([[-5, 2, 3], [1, 2, 300]])
    np.savez(tmp_path / "x.npz", whole=x, floats=x.astype(np.float32), bytes=x.astype(np.uint8))
    whole, floats = (predict.predict(model, tmp_path / "x.npz", array=name) for name in ("whole", "floats"))
    assert [row["probability"] for row in whole] == [row["probability"] for row in floats]
    with pytest.raises(ValueError, match="is of uint8; the model takes floats, or integers of more than 8 bits"):
        predict.predict(model, tmp_path / "x.npz", array="bytes")


def test_inputs_far_from_zero_lose_the_offset_before_they_are_rounded(tmp_path):
    model = floats_model(tmp_path / "m", (3,), offset=[1.7e9, 0.0, 0.0])
    near = np.array([[float(i), 2.0, 3.0] for i in range(-3, 3)])
    np.save(tmp_path / "near.npy", near)
    np.save(tmp_path / "far.npy", near + [1.7e9, 0, 0])
    wanted = predict.predict(floats_model(tmp_path / "plain", (3,)), tmp_path / "near.npy")
    found = predict.predict(model, tmp_path / "far.npy")
    assert [row["probability"] for row in found] == [row["probability"] for row in wanted]
    assert len({row["probability"] for row in found}) == 6
    with pytest.raises(ValueError, match=r"offset=.*Infinity.* must be finite"):
        predict.predict(floats_model(tmp_path / "bad", (3,), offset=[float("inf")]), tmp_path / "near.npy")


def test_inputs_beyond_the_limit_are_cut(tmp_path):
    model = floats_model(tmp_path / "m", (3,), limit=4.0)
    np.save(tmp_path / "x.npy", np.array([[1e30, 0, 0], [4.0, 0, 0]]))
    wild, largest = predict.predict(model, tmp_path / "x.npy")
    assert wild["probability"] == largest["probability"]


def test_inputs_on_another_scale_are_warned_of(tmp_path, caplog):
    model = floats_model(tmp_path / "m", (3,))
    x = np.random.default_rng(0).normal(size=(20, 3))
    for scale, said in ((1, False), (255, True)):
        np.save(tmp_path / "x.npy", x * scale)
        predict.predict(model, tmp_path / "x.npy")
        assert ("must be on one scale" in caplog.text) == said
    caplog.clear()
    model = floats_model(tmp_path / "images", (4, 4, 3))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 4, 4, 3)) / 255)
    predict.predict(model, tmp_path / "x.npy")
    assert "must be on one scale" in caplog.text


def test_photos_of_16_bits_are_scaled_by_their_depth(saved, photos, digits, tmp_path):
    pixels = digits.x[0, ..., 0]
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    (deep,), (plain,) = predict.predict(saved, tmp_path / "deep.png"), predict.predict(saved, photos / "z.png")
    assert (deep["class"], deep["probability"]) == (plain["class"], plain["probability"])
    Image.fromarray(pixels.astype(np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(ValueError, match=r"float\.tiff is an image of mode 'F'"):
        predict.predict(saved, tmp_path / "float.tiff")


HEADERS = {
    "huge.npy": b"{'descr': '|u1', 'fortran_order': False, 'shape': (70368744177664,)}\n",
    "vast.npy": b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}\n" % 10**30,
    "open.npy": b"{'descr': '|u1', 'shape': (8,\n",
}


def write(path, kind):
    good = np.zeros((2, 8, 8, 1), np.uint8)
    if kind == "none.npz":
        np.savez(path, a=good, b=good)
    elif kind == "cut.npz":
        np.savez(path, x=np.random.default_rng(0).integers(0, 256, good.shape).astype(np.uint8))
        path.write_bytes(path.read_bytes()[:-60])
    elif kind == "pickle.npy":
        np.save(path, np.array([{"a": 1}], object))
    elif kind == "broken.png":
        path.write_bytes(b"\x89PNG\r\n\x1a\n then nothing")
    elif kind == "folder":
        path.mkdir()
    elif kind.startswith("pipe"):
        os.mkfifo(path)
    elif kind == "folder of pipes":
        path.mkdir()
        os.mkfifo(path / "x.png")
    elif kind in HEADERS:
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(HEADERS[kind]).to_bytes(2, "little") + HEADERS[kind])
    elif kind != "nothing.png":
        np.save(path, {"size.npy": np.zeros((2, 9, 8, 1), np.uint8), "int.npy": good.astype(np.int64), "empty.npy": good[:0],
                       "range.npy": good + 2.0, "nan.npy": good * np.nan, "one.npy": good[0]}[kind])  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("size.npy", "has shape [2, 9, 8, 1]; the model takes [n, 8, 8, 1] with n at least 1"),
        ("one.npy", "has shape [8, 8, 1]; the model takes [n, 8, 8, 1]"),
        ("empty.npy", "has shape [0, 8, 8, 1]; the model takes"),
        ("int.npy", "is of int64; the model takes uint8, or floats in [0, 1]"),
        ("range.npy", "has floats from 2 to 2; the model takes them in [0, 1]"),
        ("nan.npy", "has floats from nan to nan"),
        ("pickle.npy", "cannot be used"),
        ("none.npz", "cannot be used: unknown array 'x'; allowed: a, b"),
        ("cut.npz", "cannot be used"),
        (
            "huge.npy",
            "huge.npy cannot be used: it has shape [70368744177664] of uint8 in its header, which takes 64.0 TiB; must be at",
        ),
        ("vast.npy", "it has shape [1%s] of uint8 in its header" % ("0" * 30)),
        ("open.npy", "it is no .npy array, or is damaged (it is too short, or its header cannot be read)"),
        ("pipe.npy", "is no regular file"),
        ("pipe.png", "is no regular file"),
        ("folder of pipes", "x.png: is no regular file"),
        ("broken.png", "is not an image that can be read"),
        ("folder", "no images; looked for files ending in .png"),
        ("nothing.png", "there is no "),
        ("nothing.npy", "cannot read"),
    ],
)
def test_what_cannot_be_classified(saved, kind, said, tmp_path, capfd):
    path = tmp_path / kind
    if kind != "nothing.npy":
        write(path, kind)
    table = tmp_path / "predictions.csv"
    assert predict.main([str(saved), str(path), f"--out={table}"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert str(path) in line
    assert said in line
    assert not table.exists()


def test_mistakes_about_the_model(saved, photos, tmp_path, capfd):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(saved.read_bytes()[:-1])
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.uint8))
    floats = floats_model(tmp_path / "m", (3,))
    for arguments, status, said in [
        ([broken, photos], 1, "is not a safetensors file, or is damaged"),
        ([tmp_path / "none", photos], 1, "cannot read"),
        ([floats, photos], 1, "the model was trained on float examples of shape [3], not on files of images or tables"),
        ([floats, tmp_path / "x.npy"], 1, "is of uint8; the model takes floats"),
        ([saved, photos, "--batch=0"], 1, "batch=0 must be at least 1"),
        ([saved], 2, "examples"),
        ([saved, photos, "--wrong"], 2, "--wrong"),
    ]:
        assert predict.main([str(a) for a in arguments]) == status
        (line,) = capfd.readouterr().err.splitlines()
        assert re.match("error: .*" + re.escape(said), line), line
    assert export.main(["run"]) == 2
    assert "--out" in capfd.readouterr().err


def test_a_table_that_cannot_be_written(saved, photos, tmp_path, capfd):
    (tmp_path / "file").touch()
    assert predict.main([str(saved), str(photos), f"--out={tmp_path / 'file' / 'x.csv'}"]) == 1
    assert "cannot write" in capfd.readouterr().err
    assert predict.main([str(saved), str(photos), f"--out={tmp_path / 'new' / 'x.csv'}"]) == 0
    assert (tmp_path / "new" / "x.csv").exists()
    shutil.rmtree(photos)


def test_networks_of_several_widths(tmp_path):
    """The global model is the widest network, whoever has it; a narrower client's is refused in words."""
    run(tmp_path / "run", ("mlp(widths=(8,))", "mlp(widths=(16,))"), name="heterofl", epochs=1)
    export.export(tmp_path / "run", tmp_path / "whole.safetensors")
    export.export(tmp_path / "run", tmp_path / "wide.safetensors", client=1)
    arrays, _ = read_tensors(tmp_path / "whole.safetensors")
    assert {16} <= {size for array in arrays.values() for size in array.shape}
    with pytest.raises(ValueError, match="model 'personal' of client 0 is computed with the networks of others, and cannot be"):
        export.export(tmp_path / "run", tmp_path / "narrow.safetensors", client=0, model="personal")


@pytest.mark.parametrize("out", ["", "sub/"])
def test_an_export_is_a_file(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    assert export.main(["no_run", f"--out={out}"]) == 1
    assert f"out={out!r} must be a file, such as model.safetensors" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
