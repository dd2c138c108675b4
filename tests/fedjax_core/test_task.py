"""A task rebinds its arrays and its round, and leaves itself alone."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import nn
from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data
from fedjax_core.data.sources import Dataset
from fedjax_core.engine.simulator import Simulator, build_spec, one_group
from fedjax_core.language.models import bert, decoder
from fedjax_core.task import PeerGroup, Task, feature_size, make_partial_task, make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from tests import toy
from tests.fedjax_core.language.models import test_bert, test_decoder


def test_a_bound_task_reads_the_given_arrays():
    task = Task(lambda frozen: ("model over", frozen), 3, 8, frozen="weights", public="images")
    assert task.bound_arrays == ("weights", "images")
    bound = task.bind(("traced weights", "traced images"), 7)
    assert bound.model == ("model over", "traced weights")
    assert (bound.public, bound.round_num, bound.classes, bound.population) == ("traced images", 7, 3, 8)
    assert (task.model, task.public, task.round_num) == (("model over", "weights"), "images", 0)


def test_of_model_freezes_nothing():
    model, public = toy.model(), Examples(np.zeros(2), np.zeros(2))
    task = make_task(model, classes=3, population=8, public=public)
    assert task.model is model
    assert task.bound_arrays == ((), public)
    assert task.bind(task.bound_arrays, 1).model is model


LETTERS = [nn.build(name, 5, (4,), None, None) for name in ("lstm", "causal")]


@pytest.mark.parametrize("model", LETTERS, ids=lambda model: model.name)
def test_ids_that_a_network_of_letters_does_not_embed_are_refused(model):
    net = jax.jit(model.init)(jax.random.key(0))
    for wrong in (5, -1):
        for call in (model.apply, model.features):
            with pytest.raises(ValueError, match=f"token id {wrong}: {model.name} embeds 5 tokens"):
                call(net, np.array([[0, 1, 2, wrong]]))


@pytest.mark.parametrize("model", LETTERS, ids=lambda model: model.name)
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_simulation_is_refused_ids_that_its_network_does_not_embed(model, part):
    x = {name: np.array([[0, 1, 2, 4]] * 2, np.int32) for name in ("train", "test")}
    x[part][1, 2] = 7
    examples = [Examples(x[name], np.array([[1, 2, 3, 4]] * 2, np.int32)) for name in x]
    data = federated_data.from_index(Dataset("letters", *examples, tuple("abcde")), [[0], [1]])
    settings = {"classes": 5, "population": 2, "shape": (4,)}
    whole = make_task(model, **settings)
    arrays = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
    for task in (whole, make_partial_task(model, arrays, "head", **settings)):
        groups = one_group(functools.partial(fedavg, optimizer=local_training.sgd(0.1)), task, 2)
        with pytest.raises(ValueError, match=f"{part}: token id 7: network '{model.name}' embeds 5"):
            Simulator(build_spec(groups, data))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_ids_that_a_language_model_does_not_embed_are_refused(name):
    family, config = {"bert": (bert, test_bert.CONFIG), "llama": (decoder, test_decoder.PLAIN)}[name]
    model, size = family.build(config), config["vocab_size"]
    params = jax.jit(model.init)(jax.random.key(0))
    tokens, mask = np.array([[1, size - 1, size]]), np.array([[True, True, False]])
    assert np.isfinite(model.hidden(params, tokens, mask)).all(), "padding may be any number"
    with pytest.raises(ValueError, match=f"token id {size}: {name} of width .* embeds {size} tokens"):
        model.hidden(params, tokens, mask | True)
    if name == "llama":
        with pytest.raises(ValueError, match=f"token id {size}: llama"):
            model.generate(params, tokens, mask | True, limit=2)


def test_width_is_the_number_of_features():
    assert [feature_size(toy.model(hidden)) for hidden in (6, 7)] == [6, 7]


WHOLE = toy.prompted(6)
SETTINGS = {"classes": 3, "population": 8}
X = toy.data().train.x[:5]


def begun():
    """Arrays of the whole network, its head among them."""
    net = WHOLE.init(jax.random.key(4))
    return net._replace(stats=jax.tree.map(lambda x: x + 0.3, net.stats))


def test_a_part_is_the_whole_with_the_rest_in_evaluation_mode():
    arrays = begun()
    task = make_partial_task(WHOLE, arrays, "prompts", **SETTINGS)
    net = task.model.init(jax.random.key(0))
    chex.assert_trees_all_equal(net, Net({name: arrays.params[name] for name in ("prompts", "head")}, {}))
    moved = jax.tree.map(lambda x: x + 0.1, net)
    whole = task.model.full_net(moved)
    chex.assert_trees_all_equal(whole, Net(arrays.params | moved.params, arrays.stats))
    for train in (False, True):
        outputs, stats = task.model.apply(moved, X, jax.random.key(1), train=train)
        chex.assert_trees_all_close(outputs, WHOLE.apply(whole, X)[0], atol=1e-6)
        features, same = task.model.features(moved, X, train=train)
        chex.assert_trees_all_close(features, outputs["features"], atol=1e-6)
        assert stats == same == {}
    chex.assert_trees_all_close(task.model.head(moved, outputs["features"]), outputs["logits"], atol=1e-6)


def test_what_the_arrays_lack_is_drawn():
    arrays = begun()
    body = arrays._replace(params={"body": arrays.params["body"]})
    fresh = WHOLE.init(jax.random.key(7)).params
    net = make_partial_task(WHOLE, body, ("head", "prompts"), **SETTINGS).model.init(jax.random.key(7))
    chex.assert_trees_all_equal(net.params, {name: fresh[name] for name in ("head", "prompts")})


def test_all_of_a_network_may_begin_from_arrays():
    arrays = begun()
    task = make_partial_task(WHOLE, arrays, "all", **SETTINGS)
    net = task.model.init(jax.random.key(0))
    chex.assert_trees_all_equal(net, arrays)
    assert task.model.full_net(net) is net
    trained, plain = (model.apply(net, X, train=True) for model in (task.model, WHOLE))
    chex.assert_trees_all_close(trained, plain, atol=1e-6)
    assert np.abs(trained[1]["mean"] - net.stats["mean"]).max() > 1e-3
    chex.assert_trees_all_equal(
        make_partial_task(WHOLE, Net({}), "all", **SETTINGS).model.init(jax.random.key(0)), WHOLE.init(jax.random.key(0))
    )


def test_frozen_arrays_are_those_that_are_bound():
    task = make_partial_task(WHOLE, begun(), "head", **SETTINGS)
    other = task.bind((jax.tree.map(lambda x: x * 2, task.frozen), ()), 0)
    net = task.model.init(jax.random.key(0))
    assert np.abs(other.model.apply(net, X)[0]["logits"] - task.model.apply(net, X)[0]["logits"]).max() > 1e-3
    wrapped = task.wrap_model(lambda model: model._replace(name="other"))
    assert (wrapped.model.name, task.model.name) == ("other", WHOLE.name)
    assert wrapped.bind((other.frozen, ()), 0).frozen is other.frozen


@pytest.mark.parametrize(
    ("trained", "params", "message"),
    [
        ("some", None, "train='some' is not one of 'all', 'prompts', 'head'"),
        (("tail",), None, r"train=\('tail',\): prompted6 has no entry 'tail', only body, head, prompts"),
        ("head", ("body",), "train='head': prompted6 needs frozen arrays for prompts"),
    ],
)
def test_refused(trained, params, message):
    arrays = begun()
    arrays = arrays if params is None else arrays._replace(params={name: arrays.params[name] for name in params})
    with pytest.raises(ValueError, match=message):
        make_partial_task(WHOLE, arrays, trained, **SETTINGS)
    with pytest.raises(ValueError, match="train='head': prompted6 needs frozen statistics"):
        make_partial_task(WHOLE, Net(begun().params), "head", **SETTINGS)
    plain = toy.model(6)
    with pytest.raises(ValueError, match="train='prompts': toy6 has no entry 'prompts'"):
        make_partial_task(plain, plain.init(jax.random.key(0)), "prompts", **SETTINGS)


def test_peers_are_everybody_or_those_who_are_told():
    task = make_task(toy.model(6), **SETTINGS)
    assert task.feature_sizes.tolist() == [6] * 8
    narrow, wide = PeerGroup(lambda: toy.model(6), (0, 2, 3, 4, 5, 6)), PeerGroup(lambda: toy.model(7), (1, 7))
    told = dataclasses.replace(task, groups=(narrow, wide))
    assert told.feature_sizes.tolist() == [6, 7, 6, 6, 6, 6, 6, 7]
    assert wide.shapes.params["head"]["kernel"].shape == (7, 3)
    groups = [group.task for group in toy.simulate("local").spec.bound_groups]
    assert [task.group for task in groups] == [0, 1]
    assert [task.feature_sizes.tolist() for task in groups] == [[6, 7] * 4] * 2
    assert jnp.issubdtype(groups[0].feature_sizes.dtype, jnp.integer)
