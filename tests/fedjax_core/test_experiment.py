"""From a config to a simulation: what is wrong is named, and what is asked for is built."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import weakref
from unittest import mock

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized

from configs import base, fedavg, fedavg_regression
from fedjax_core import experiment, registry
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, row_readers, sources
from fedjax_core.engine import client_loop
from fedjax_core.experiment import build_simulator, build_task, input_normalization, lookup, run_experiment, run_facts
from fedjax_core.experiment import resolve_config as asked
from tests import toy


def config(method=None, **changes):
    """The base config for the toy data; `changes` by dotted path, with two underscores for the dot."""
    settings = base.get_config("smoke")
    settings.method = dict(name="fedavg", epochs=1, batch=4) if method is None else method
    settings.models = ("mlp(widths=(6,))",)
    settings.plan.devices = 1
    for path, value in changes.items():
        *above, last = path.split("__")
        place = settings
        for name in above:
            place = place[name]
        place[last] = value
    return settings


def build(*arguments, **changes):
    return experiment.build(config(*arguments, **changes), toy.data())


class Silent:
    """A callback that does nothing."""

    def end(self, ended):
        pass


def rows(path: str):
    """A data set of somebody's own."""


def three(lr: float = 0.1):
    """What is no optimiser, attack or compressor."""
    return 3


def halves(rows, clients):
    """A partition that calls the labels as no scheme does."""


class ErrorsTest(chex.TestCase):
    @parameterized.parameters(
        (ValueError, dict(method=dict(name="fedavgg")), r"unknown method 'fedavgg'; allowed: .*scaffold.* Did you mean 'fedavg'\?"),
        (ValueError, dict(method=dict(name="main")), "unknown method 'main'"),
        (ValueError, dict(method=dict(name="fedavx2")), r"unknown method 'fedavx2'; allowed: [\w, ]*\. Looked"),  # no hint
        (
            TypeError,
            dict(method=dict(name="fedavg", epoch=3)),
            r"method 'fedavg' has no option 'epoch'; .* Did you mean 'epochs'\?",
        ),
        (TypeError, dict(method=dict(name="fedavg", task=3)), "method 'fedavg' has no option 'task'"),
        (
            ValueError,
            dict(method=dict(name="fedavg", weights="sample")),
            "weights='sample' (is not|must be) one of 'samples', 'uniform'",
        ),
        (ValueError, dict(optimizer__name="sgdd"), r"unknown optimizer 'sgdd'; allowed: sgd, adam\. Did you mean 'sgd'\?"),
        (
            TypeError,
            dict(optimizer__name="adam", optimizer__momentum=0.9),
            "optimizer 'adam' has no option 'momentum'; it takes: lr",
        ),
        (ValueError, dict(optimizer__lr=-1.0), "optimizer.lr=-1.0 must be positive"),
        (
            ValueError,
            dict(optimizer__name="optax:adam", optimizer__learning_rate=0.5),
            r"optimizer.learning_rate=0.5: the rate is optimizer.lr, which is 0\.",
        ),
        (TypeError, dict(optimizer__name=f"{__name__}:three"), "three' must return an optax.GradientTransformation.*returned 3$"),
        (
            TypeError,
            dict(adversary__attack=f"{__name__}:three", adversary__fraction=0.25),
            "three' must return a function .*returned 3$",
        ),
        (TypeError, dict(compression__uplink=f"{__name__}:three"), "three' must return a .*Compressor, it returned 3$"),
        (
            TypeError,
            dict(data__partition=f"{__name__}:halves"),
            "halves' needs the option 'rows'; it takes: rows. It is given those that it names of: labels,.* clients",
        ),
        (
            TypeError,
            dict(models=(f"{__name__}:halves",)),
            "halves' needs the option 'rows'; it takes: rows, clients. It is given those that it names of: .*classes",
        ),
        (ValueError, dict(models=("mpl",)), r"unknown model 'mpl'.*Did you mean 'mlp'\?"),
        (TypeError, dict(models=("mlp(width=(6,))",)), r"model 'mlp' has no option 'width'.*Did you mean 'widths'\?"),
        (ValueError, dict(models=("mlp(6)",)), r"'mlp\(6\)' is not of the form name\(key=value, ...\)"),
        (ValueError, dict(models=()), r"models=\(\) must be at least one, and no more than the 8 clients"),
        (ValueError, dict(models=("mlp",) * 9), "must be at least one, and no more than the 8 clients"),
        (
            ValueError,
            dict(statistics="locl"),
            r"unknown statistics 'locl'; allowed: average, local, freeze\. Did you mean 'local'\?",
        ),
        (ValueError, dict(train="prompt"), r"unknown train 'prompt'; allowed: all, prompts, head\. Did you mean 'prompts'\?"),
        (ValueError, dict(train="prompts"), "train='prompts': mlp has no entry 'prompts', only dense1, head"),
        (ValueError, dict(normalise="imagenets"), r"unknown normalise 'imagenets'; .*Did you mean 'imagenet'\?"),
        (ValueError, dict(normalise="imagenet"), "normalise='imagenet' is for images of 3 channels, these have 5"),
        (
            ValueError,
            dict(weights=("a", "b")),
            r"weights=\('a', 'b'\) must be one file, or one .* for each of the 1 models",
        ),
        (ValueError, dict(augment="flipp"), r"unknown augmentation 'flipp'; allowed: .*Did you mean 'flip'\?"),
        (TypeError, dict(augment="crop(pad=4)"), "augmentation 'crop' has no option 'pad'; it takes: padding"),
        (ValueError, dict(augment="flip"), r"augmentation is for images \[H, W, C\], these examples are \[5\]"),
        (ValueError, dict(cohort__size=9), "cohort.size=9 must be at most the number of clients that train, 8"),
        (ValueError, dict(cohort__fraction=1.5), r"cohort.fraction=1.5 must be in \(0, 1\]"),
        (ValueError, dict(plan__devices=9), "plan.devices=9 is not between 1 and 8"),
        (ValueError, dict(evaluation__scopes=("owm",)), r"evaluation.scopes=\('owm',\) must be a tuple, each one of 'global'"),
        (ValueError, dict(models=("mlp(widths=(6,))", "mlp(widths=(7,))")), "'0: mlp.*' and '1: mlp.*' .* needs one architecture"),
    )
    def test_of_one_line(self, kind, changes, message):
        with self.assertRaisesRegex(kind, message) as caught:
            build(**changes)
        self.assertNotIn("\n", str(caught.exception))

    @parameterized.parameters(
        ("round", 3, r"the config sets 'round', .* Did you mean 'rounds'\?"),
        ("optimiser", dict(lr=1.0), r"the config sets 'optimiser', .* Did you mean 'optimizer'\?"),
        ("cohort", dict(fracton=0.1), r"the config sets 'cohort.fracton', .* Did you mean 'cohort.fraction'\?"),
    )
    def test_of_a_field_that_is_not_one(self, field, value, message):
        settings = config()
        settings.update({field: value})
        with self.assertRaisesRegex(ValueError, message):
            experiment.resolve(settings)

    @parameterized.parameters(
        ("dirichlt(alpha=0.5)", r"dirichlt.*[Dd]id you mean 'dirichlet'\?"),
        ("dirichlet(alfa=0.5)", r"'alfa'.*[Dd]id you mean 'alpha'\?"),
        ("dirichlet", "'dirichlet' needs the option 'alpha'"),
        ("dirichlet(0.5)", "is not of the form name"),
    )
    def test_of_the_partition(self, partition, message):
        with self.assertRaisesRegex((ValueError, TypeError), message):
            experiment.build(config(data__partition=partition))

    def test_of_the_source(self):
        with self.assertRaisesRegex((ValueError, TypeError), r"digit.*[Dd]id you mean 'digits'\?"):
            experiment.build(config(data__source="digit"))

    def test_of_what_a_source_is_made_of(self):
        with self.assertRaisesRegex(ValueError, r"data set 'digit'.*[Dd]id you mean 'digits'\?"):
            experiment.resolve(config(data__source="resplit(of='digit', test_fraction=0.2)"))
        with registry.record_lookups() as found:
            experiment.resolve(config(data__source=f"""resplit(of='{__file__}:rows(path="a")', test_fraction=0.2)"""))
        self.assertEqual([(function.__name__, origin) for function, origin in found], [("rows", __file__)])

    def test_only_a_path_that_its_name_says_is_no_option(self):
        mine = f"{__file__}:rows"
        self.assertEqual(experiment.resolve(config(data__source=f"{mine}(path='a.csv')")).data.source.options, dict(path="a.csv"))
        self.assertEqual(experiment.resolve(config(data__source="npz:a.npz")).data.source.options, dict(path="a.npz"))
        self.assertEqual(experiment.resolve(config(data__source="npz(path='a.npz')")).data.source.options, dict(path="a.npz"))


class SwitchTest(chex.TestCase):
    def test_another_method_keeps_how_it_trains(self):
        settings = config(dict(name="fedprox", epochs=3, batch=4, mu=0.5)).lock()
        said = experiment.switch_method(settings, {"name": "moon", "tau": 0.1})
        self.assertEqual(
            said, "method moon in place of fedprox: kept batch=4, epochs=3; dropped mu=0.5; set tau=0.1; other options are defaults"
        )
        self.assertEqual(settings.method.to_dict(), dict(name="moon", epochs=3, batch=4, tau=0.1))  # no mu of another method
        self.assertIn("kept batch=4; dropped tau=0.1;", experiment.switch_method(settings, {"name": "scaffold", "epochs": 2}))
        self.assertEqual(experiment.resolve(settings).method.options, dict(epochs=2, batch=4))
        self.assertTrue(settings.is_locked)
        experiment.switch_method(settings, {"name": "fedavg", "mu": 0.1})
        with self.assertRaisesRegex(TypeError, "method 'fedavg' has no option 'mu'"):
            experiment.resolve(settings)

    def test_the_same_method_keeps_all(self):
        settings = config(dict(name="fedpft", batch=4, heads=2, contrast=dict(on=False, queue=8)))
        self.assertEqual(experiment.switch_method(settings, {"name": "fedpft", "contrast": {"on": True}}), "")
        self.assertEqual(settings.method.to_dict(), dict(name="fedpft", batch=4, heads=2, contrast=dict(on=True, queue=8)))
        experiment.switch_method(settings, {"prompts": 3})  # of the config's own
        self.assertEqual((settings.method.name, settings.method.prompts), ("fedpft", 3))
        del settings.method.prompts
        experiment.switch_method(settings, {"name": "methods.fedpft:fedpft(heads=1)"})
        self.assertEqual(experiment.resolve(settings).method.options, dict(batch=4, heads=1, contrast=dict(on=True, queue=8)))


class BuildTest(chex.TestCase):
    def test_models_take_turns(self):
        sim = build(dict(name="fedhe", epochs=1, batch=4), models=("mlp(widths=(6,))", "mlp(widths=(7,))", "mlp(widths=(8,))"))
        self.assertEqual([g.clients.tolist() for g in sim.spec.bound_groups], [[0, 3, 6], [1, 4, 7], [2, 5]])
        widths = [
            jax.eval_shape(g.task.model.init, jax.random.key(0)).params["head"]["kernel"].shape for g in sim.spec.bound_groups
        ]
        self.assertEqual(widths, [(6, 3), (7, 3), (8, 3)])
        self.assertEqual([g.task.population for g in sim.spec.bound_groups], [8] * 3)

    def test_equal_models_are_one_group(self):
        specs = ("mlp(widths=(6,))", "mlp(widths=(7,))", "mlp(widths=(6,))")
        sim = build(dict(name="fedhe", epochs=1, batch=4), models=specs)
        self.assertEqual([g.clients.tolist() for g in sim.spec.bound_groups], [[0, 2, 3, 5, 6], [1, 4, 7]])
        self.assertEqual([g.name for g in sim.spec.bound_groups], [f"0: {specs[0]}", f"1: {specs[1]}"])

    def test_a_part_is_trained_over_one_random_backbone(self):
        first, again, other = (build(dict(name="local", epochs=1, batch=4), train="head", seed=seed) for seed in (3, 3, 4))
        frozen = [sim.spec.bound_groups[0].task.frozen.params for sim in (first, again, other)]
        self.assertEqual(set(frozen[0]), {"dense1"})
        chex.assert_trees_all_equal(frozen[0], frozen[1])
        self.assertGreater(np.abs(frozen[0]["dense1"]["kernel"] - frozen[2]["dense1"]["kernel"]).max(), 0.01)
        self.assertEqual(set(first.spec.shapes.groups[0].client.params), {"head"})

    def test_inputs_are_normalised_as_asked(self):
        images = Examples(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2, np.int32))
        for name, (mean, std) in {"imagenet": (0.485, 0.229), "half": (0.5, 0.5), "unit": (0.0, 1.0), "data": (0.0, 1.0)}.items():
            found = input_normalization.find_scaling(name, images, None)
            self.assertEqual((found[0][0], found[1][0]), (mean, std), name)

    def test_settings_arrive(self):
        sim = build(
            cohort__size=3,
            dropout=0.25,
            plan__chunk=2,
            plan__hold="host",
            evaluation__scopes=("own",),
            evaluation__batch=5,
            evaluation__clients=4,
        )
        self.assertEqual(
            (sim.spec.sampler.size, sim.spec.dropout, sim.spec.plan, sim.spec.hold), (3, 0.25, client_loop.Plan(2, 1), "host")
        )
        self.assertEqual(tuple(sim.spec.evaluation), (("own",), 5, 4, 1))
        self.assertEqual(build(cohort__fraction=0.5).spec.sampler.size, 4)
        self.assertEqual(build(cohort__fraction=None).spec.sampler.size, 8)
        self.assertEqual(build(plan__devices=None).spec.plan, client_loop.choose_plan(3))
        self.assertEqual(build(plan__devices=None, plan__model=2).spec.plan, client_loop.Plan(1, 6, 2))
        with self.assertRaisesRegex(ValueError, "plan.model=3 does not divide the 4 devices"):
            build(plan__devices=4, plan__model=3)

    def test_options_reach_method_and_optimizer(self):
        sim = build(dict(name="fedavg", epochs=2, batch=4, weights="uniform"), optimizer__lr=0.3, optimizer__momentum=0.5)
        (group,) = sim.spec.bound_groups
        options = dict(group.build.keywords)
        optimizer = options.pop("optimizer")(0)
        self.assertEqual(options, dict(epochs=2, batch=4, weights="uniform"))
        updates, state = optimizer.update({"w": np.float32(1.0)}, optimizer.init({"w": np.float32(0.0)}))
        self.assertAlmostEqual(float(updates["w"]), -0.3, places=6)
        updates, _ = optimizer.update({"w": np.float32(1.0)}, state)
        self.assertAlmostEqual(float(updates["w"]), -0.45, places=6)

    def test_local_statistics_are_wrapped(self):
        names = {}
        for statistics in experiment.STATISTICS:
            (group,) = build(statistics=statistics).spec.bound_groups
            names[statistics] = list(group.build(group.task).predict)
        self.assertEqual(names, {"average": ["global"], "local": ["personal"], "freeze": ["global"]})

    def test_augmentation_reaches_training_and_nothing_else(self):
        """A mirror that is certain: as training on mirrored data, and evaluating on the data as they are."""
        data = toy.data()
        as_images = [Examples(part.x[:, None, :, None], part.y) for part in (data.train, data.test)]
        mirrored = Examples(as_images[0].x[:, :, ::-1], data.train.y)
        ends = []
        for train, text in ((as_images[0], "flip(probability=1.0)"), (mirrored, None)):
            images = dataclasses.replace(data, train=train, test=as_images[1])
            sim = experiment.build(config(augment=text, evaluation__scopes=("global",)), images)
            state, _ = sim.run_rounds(sim.init(0), 1)
            ends.append((jax.device_get(state.server), sim.evaluate(state).metrics))
        chex.assert_trees_all_close(*ends, atol=1e-6)

    def test_pooled_methods_are_built(self):
        self.assertEqual(build(dict(name="centralized", epochs=1, batch=4)).spec.population, 1)

    def test_methods_are_listed_with_their_first_lines(self):
        names = experiment.method_summaries()
        self.assertContainsSubset({"fedavg", "scaffold", "local", "centralized", "fedhe"}, names)
        self.assertNotIn("experiment", names)
        for name, text in names.items():
            self.assertRegex(text, r"^\w.+\.$", name)
            self.assertTrue(callable(experiment.method_builder(name)))


class ScaleTest(chex.TestCase):
    def test_pixels_in_units_of_255_by_channel(self):
        x = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 2)).astype(np.uint8)
        mean, std = experiment.compute_mean_and_std(Examples(x, None))
        for c in range(2):
            pixels = x[..., c].astype(np.float64).ravel() / 255
            self.assertAlmostEqual(mean[c], pixels.sum() / len(pixels))
            self.assertAlmostEqual(std[c], np.sqrt(((pixels - pixels.mean()) ** 2).mean()))

    def test_floats_as_they_are_and_a_constant_channel_undivided(self):
        x = np.stack([np.full((5, 3), 2.5), np.arange(15.0).reshape(5, 3)], -1).astype(np.float32)
        mean, std = experiment.compute_mean_and_std(Examples(x, None))
        np.testing.assert_allclose(mean, [2.5, 7.0])
        np.testing.assert_allclose(std, [1.0, np.arange(15).std()])

    def test_a_constant_channel_of_a_file_is_undivided(self):
        x = np.stack([np.full(5000, 0.1), np.random.default_rng(0).normal(7.0, 2.0, 5000)], -1).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/x.npy", x)
            mean, std = experiment.compute_mean_and_std(Examples(np.load(f"{folder}/x.npy", mmap_mode="r"), None))
        wanted = experiment.compute_mean_and_std(Examples(x, None))
        self.assertEqual(std[0], 1.0)
        np.testing.assert_allclose((mean, std), wanted, rtol=1e-12)

    def test_colours_are_changed_of_pixels_alone(self):
        """In [0, 1]: others would be cut in training alone."""
        images = np.random.default_rng(0).uniform(0, 1, (6, 4, 4, 3)).astype(np.float32)
        jitter = "flip | colour_jitter(hue=0.1)"
        for x, text in (
            (images, jitter),
            (images * 1.0001, jitter),
            ((images * 255).astype(np.uint8), jitter),
            (images * 255, "flip"),
        ):
            input_normalization.check_colours(text, Examples(x, None))
        for x in (images * 255, images - 0.5):
            with self.assertRaisesRegex(
                ValueError, r"colour_jitter is for images of bytes, or of floats in \[0, 1\], these float32"
            ):
                input_normalization.check_colours(jitter, Examples(x, None))

    def test_a_config_that_changes_colours_of_other_images_is_refused(self):
        x, y = np.random.default_rng(0).normal(size=(40, 8, 8, 3)).astype(np.float32), np.arange(40) % 2
        data = federated_data.federate(sources.from_arrays(x, y, x[:4], y[:4]), "iid", clients=4, seed=0)
        config = fedavg.get_config("smoke")
        config.augment = "colour_jitter"
        with self.assertRaisesRegex(ValueError, "augment='colour_jitter': colour_jitter is for images of bytes"):
            experiment.build(config, data)


class ProgramsTest(chex.TestCase):
    def test_small_programs_are_kept_too(self):
        """There are many of them in a start, and each takes longer to compile than to read."""
        names = [f"jax_{name}" for name in ("compilation_cache_dir", "persistent_cache_min_compile_time_secs")]
        before = {name: jax.config.values[name] for name in (*names, "jax_persistent_cache_min_entry_size_bytes")}
        try:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
            experiment.cache_compiled_programs("")
            self.assertEqual([jax.config.values[name] for name in names], [before[names[0]], 1.0])
            with tempfile.TemporaryDirectory() as folder:
                experiment.cache_compiled_programs(folder)
            self.assertEqual(jax.config.values["jax_persistent_cache_min_compile_time_secs"], 0)
            self.assertEqual(jax.config.values["jax_persistent_cache_min_entry_size_bytes"], -1)
        finally:
            for name, value in before.items():
                jax.config.update(name, value)


class ExecuteTest(chex.TestCase):
    def test_a_run_leaves_no_data_on_the_devices(self):
        """Whether it ends or fails, and whoever still has the simulation, such as the next run of a table."""
        made = []

        def run(simulation, *arguments, **options):
            made.append((simulation, weakref.ref(simulation.compiled.device_arrays.train.x)))
            assert made[-1][1]() is not None
            if len(made) > 1:
                raise FloatingPointError

        with mock.patch.object(run_experiment, "run", run):
            experiment.execute(config(), "unused", data=toy.data())
            with self.assertRaises(FloatingPointError):
                experiment.execute(config(), "unused", data=toy.data())
        self.assertLen(made, 2)
        self.assertEqual([on_device() for _, on_device in made], [None, None])


def test_a_config_is_resolved_once_and_what_is_built_reads_no_name_again(tmp_path):
    """Of a run with something in every field that names something: one resolution, and nothing is parsed or found beside it."""
    names = dict(augment="flip", loss="smoothed", aggregation__rule="mixing | median", adversary__attack="sign_flip")
    names |= dict(data__source="resplit(of='digits', test_fraction=0.2)", compression__uplink="float16", rounds=1)
    wanted = config(**names, adversary__fraction=0.2, callbacks=(f"{__name__}:Silent",))
    depth, inside, outside = [0], [], []

    def resolve(given, real=asked.resolve):
        depth[0] += 1
        try:
            return real(given)
        finally:
            depth[0] -= 1

    def noted(function):
        return lambda *given, **more: ((inside if depth[0] else outside).append(given[0]), function(*given, **more))[1]

    modules = (asked, build_simulator, build_task, run_experiment)
    with contextlib.ExitStack() as stack:
        counted = mock.Mock(side_effect=resolve)
        for module in modules:
            stack.enter_context(mock.patch.object(module, "resolve", counted))
        for function in (registry.parse_spec, registry.find_builder):
            stack.enter_context(mock.patch.object(registry, function.__name__, noted(function)))
        experiment.execute(wanted, str(tmp_path), progress=False)
    assert counted.call_count == 1
    assert {"flip", "smoothed", "median", "sign_flip", "float16", "partition"} <= set(inside)
    callback = {f"{__name__}:Silent", "callback"}
    source = {"digits", "data set"}  # of a source that is made of another one, which it reads itself
    sampler = {"fixed", "sampler"}  # which the engine makes from its spec
    assert set(outside) <= source | callback | sampler


def test_what_a_run_would_refuse_is_refused_before_data_are_read():
    for field, value in (("callbacks", ("wand",)), ("augment", "flip | normalise(mean=0.5, std=0.5)")):
        with pytest.raises(ValueError, match=f"unknown callback 'wand'|^{field}="):
            experiment.check_config(config(**{field: value}))


@pytest.mark.parametrize("name", ["fedamp", "FedAMP", "methods.fedamp:fedamp", "methods.fedamp:fedamp(sigma=1.0)"])
def test_a_method_is_the_same_whatever_a_config_calls_it(name):
    settings = config({"name": name}, adapter="lora(rank=4)", clients__rank="uniform(low=1, high=4)")
    with pytest.raises(ValueError, match=r"clients.rank=.* and method 'fedamp', whose clients send models"):
        experiment.resolve(settings)


def test_files_of_one_name_in_two_folders_are_both_known(tmp_path):
    """Runs with two pre-trained networks do not go on over other weights of either."""
    folders = [tmp_path / name for name in ("large", "small")]
    for folder in folders:
        folder.mkdir()
        (folder / "model.safetensors").write_text(folder.name)
    settings = config(models=tuple(f"clip(folder={str(folder)!r})" for folder in folders), normalise="clip", train="prompts")
    resolved = experiment.resolve(settings)
    recorded = run_facts.list_file_digests(resolved)
    for folder in folders:
        (folder / "model.safetensors").write_text("other weights")
        assert run_facts.list_changed(recorded, run_facts.list_file_digests(resolved)) == ["model.safetensors"], folder
        (folder / "model.safetensors").write_text(folder.name)


def test_a_finished_run_is_read_without_its_callbacks(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Silent:\n    def end(self, ended):\n        pass\n")
    experiment.execute(config(rounds=1, callbacks=(f"{file}:Silent",)), str(tmp_path / "run"), progress=False, data=toy.data())
    file.unlink()
    read, _, _ = experiment.load(str(tmp_path / "run"), data=toy.data())
    assert read.callbacks == (f"{file}:Silent",)
    with pytest.raises(ValueError, match="there is no file"):
        experiment.execute(config(callbacks=(f"{file}:Silent",)), str(tmp_path / "other"), data=toy.data())
    assert not (tmp_path / "other").exists()


def test_a_run_is_read_with_a_warning_if_code_of_the_users_has_changed(tmp_path, caplog):
    file = tmp_path / "mine.py"
    code = "from methods.fedavg import fedavg\n\ndef mine(task, optimizer):\n    return fedavg(task, optimizer=optimizer)\n"
    file.write_text(code)
    made = config({"name": f"{file}:mine"}, rounds=1)
    experiment.execute(made, str(tmp_path / "run"), progress=False, data=toy.data())
    experiment.load(str(tmp_path / "run"), data=toy.data())
    assert "another version" not in caplog.text
    file.write_text(code + "# edited\n")
    experiment.load(str(tmp_path / "run"), data=toy.data())
    assert f"{tmp_path / 'run'} was run with another version of mine.py; today's code is used" in caplog.text


@pytest.mark.parametrize("name", experiment.LOSSES)
def test_a_config_may_name_every_loss_that_there_is(name):
    kinds_of = lookup.LOSS_TARGETS[name]
    if "classes" in kinds_of:
        assert build(loss=name).spec.targets == "classes"
        return
    with pytest.raises(ValueError, match=f"loss='{name}' is for {kinds_of[0]}, the data have classes"):
        build(loss=name)
    if "numbers" in kinds_of:
        of_numbers = fedavg_regression.get_config("smoke")
        of_numbers.loss = name
        assert experiment.build(of_numbers).spec.targets == "numbers"


DECOMPOSE = """
import jax
import jax.numpy as jnp

from configs import fedavg as settings
from fedjax_core import experiment
from methods.fedavg import fedavg
from tests import toy

experiment.use_all_cores()


def decompose(task, optimizer):
    method = fedavg(task, optimizer=optimizer)

    def server_update(server, collected, cohort, key):
        server, metrics = method.server_update(server, collected, cohort, key)
        return server, metrics | {"sum": (jnp.linalg.qr(jax.random.normal(key, (4, 64, 64)))[1].sum(), 1.0)}

    return method._replace(server_update=server_update)


config = settings.get_config("smoke")
config.models = ("mlp(widths=(6,))",)
simulation = experiment.build(config, toy.data(), method=decompose)
assert jax.device_count() > 1
simulation.run_rounds(simulation.init(seed=0), 2)
"""


@pytest.mark.skipif(row_readers.machine_cores() < 2, reason="one core is one device, and no other waits")
def test_decompositions_of_several_matrices_end_where_each_core_is_a_device():
    """A pool with a thread per device stood still: each waited there for parts that no thread was left to compute."""
    given = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    subprocess.run([sys.executable, "-c", DECOMPOSE], env=given | {"JAX_PLATFORMS": "cpu"}, check=True, timeout=120)
