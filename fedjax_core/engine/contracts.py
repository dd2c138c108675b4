"""What a simulation's settings may be, and what the functions of a method must return.

Settings and token ids are checked before training. What functions return is checked by its shapes, before training and
while a program is traced. Only `check_score` adds to a program: it widens sums to 32 bits.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import (
    COMBINATIONS,
    PAYLOADS,
    PER_ROW,
    TARGETS,
    Algorithm,
    Array,
    ClientOutput,
    Examples,
    PyTree,
    Reduce,
    builder_name,
    is_reduce,
    targets_of,
)
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding.data_placement import PLACES
from fedjax_core.engine.simulation_spec import SCOPES, Evaluation, Group, GroupShapes, Shapes, SimulationSpec
from fedjax_core.task import check_tokens
from fedjax_core.training.few_shot import EpisodeSampler
from fedjax_core.training.metrics import finalizer
from fedjax_core.training.param_partition import hint_head


def validate_settings(
    groups: Sequence[Group],
    population: int,
    *,
    dropout: float,
    hold: str,
    evaluation: Evaluation,
    rounds_per_dispatch: int,
    episodes: EpisodeSampler | None,
) -> None:
    """Raises ValueError for a setting that is out of range."""
    everyone = np.sort(np.concatenate([np.asarray(g.clients) for g in groups]))
    if not np.array_equal(everyone, np.arange(population)):
        raise ValueError(f"the groups' clients must be each of 0 ... {population - 1} once, not {everyone.tolist()[:20]}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} is not in [0, 1)")
    if hold not in PLACES:
        raise ValueError(f"hold={hold!r} is not one of {', '.join(PLACES)}")
    for scope in evaluation.scopes:
        if scope not in SCOPES:
            raise ValueError(f"evaluation.scopes has {scope!r}, which is not one of {', '.join(SCOPES)}")
    counts = {
        "evaluation.batch": evaluation.batch,
        "evaluation.clients": evaluation.clients,
        "rounds_per_dispatch": rounds_per_dispatch,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count} must be at least 1")
    if episodes is not None and (without := {"own", "post_local"} & set(evaluation.scopes)):
        raise ValueError(
            f"evaluation.scopes has {', '.join(map(repr, sorted(without)))}, but clients have no test episodes of their own; "
            "with episodes it may have 'global', 'all'"
        )


def validate_targets(groups: Sequence[Group], examples: Examples) -> None:
    """Raises ValueError if a group's method cannot train on the data's targets, or its network's output does not fit them."""
    kind = targets_of(examples.y)
    for group in groups:
        if kind == "classes":
            _check_output_of_classes(group, examples)
        elif kind in (may := group.build(group.task).targets):
            _check_output_shape(group, kind, examples)
        else:
            needs = f"{builder_name(group.build)} needs {' or '.join(may)}, the data have {kind}: {TARGETS[kind]}"
            raise ValueError(f"{needs}; fedavg, fedprox, scaffold, fedopt, fedper, ditto and others that read no class can")


def validate_tokens(groups: Sequence[Group], data: FederatedData) -> None:
    """Raises ValueError if examples have a token id that a group's network does not embed."""
    if not jnp.issubdtype(getattr(_find_tokens(data.train.x)[0], "dtype", jnp.float32), jnp.signedinteger):
        return
    for group in groups:
        model, public = group.task.model, group.task.public
        if model.vocabulary is None:
            continue
        parts = {"train": data.train, "test": data.test}
        parts |= {"public": public} if isinstance(public, Examples) else {}
        for part, examples in parts.items():
            ids, mask = _find_tokens(examples.x)
            check_tokens(ids, model.vocabulary, f"network {model.name!r}", mask, f"{part}: ")


def _find_tokens(x: PyTree) -> tuple[Any, Any]:
    """Returns the token ids of texts, and the mask of the real ones; inputs that are no texts, and None."""
    return (x.get("tokens"), x.get("mask")) if isinstance(x, Mapping) else (x, None)


def _check_output_of_classes(group: Group, examples: Examples) -> None:
    """Raises ValueError if examples are token ids, targets classes, and a group's network predicts the next tokens."""
    if getattr(examples.x, "ndim", 0) != 2 or not jnp.issubdtype(examples.x.dtype, jnp.signedinteger):
        return
    if len(shape := _logits_shape(group, examples)) > 1:
        raise ValueError(
            f"network {group.task.model.name!r} gives {list(shape)} for a row, the next token of each place; classes "
            f"need {[group.task.classes]}; texts are classified by language tasks with an encoder"
        )


def _logits_shape(group: Group, examples: Examples) -> tuple[int, ...]:
    """Returns the shape of one example's logits; () if the network has none."""
    model = group.task.model
    x = jax.ShapeDtypeStruct((1, *examples.x.shape[1:]), examples.x.dtype)
    outputs = jax.eval_shape(lambda key, x: model.apply(model.init(key), x)[0], jax.random.key(0), x)
    return outputs["logits"].shape[1:] if "logits" in outputs else ()


def _check_output_shape(group: Group, kind: str, examples: Examples) -> None:
    """Raises ValueError unless a group's network gives one number for each target, or for each possible token."""
    shape, target = _logits_shape(group, examples), examples.y.shape[1:]
    wanted = (*target, group.task.classes) if kind == "tokens" else target
    if shape != wanted:
        what = f"network {group.task.model.name!r} gives {list(shape)} for a row, {kind} need {list(wanted)}"
        raise ValueError(what + ("; 'lstm' and 'causal' read token ids" if kind == "tokens" else ""))


def trace_shapes(spec: SimulationSpec) -> Shapes:
    """Traces every group's functions once, abstractly, and checks what they return.

    Raises:
      TypeError, ValueError: a function of a method returns something that it must not.
      ValueError: the groups disagree about the server's state; a client update does not keep its state's structure,
        shapes and dtypes; a method cannot work with episodes.
    """
    shapes: list[GroupShapes] = []
    for g, group in enumerate(spec.groups):
        with _explain_missing_logits(spec, group):
            trace = functools.partial(_trace_group, spec, g, jax.random.key(0))
            traced = jax.eval_shape(trace, spec.abstract_arrays, jax.ShapeDtypeStruct((), jnp.int32))
        what = f"group {group.name!r}: client_update must return the client's state as client_init made it"
        assert_same_structure(traced.client, traced.out.state, what)
        if shapes:
            assert_same_structure(
                shapes[0].server,
                traced.server,
                f"groups {spec.groups[0].name!r} and {group.name!r} would give the server different states; a method that "
                "averages parameters needs one architecture for all clients (for mixed ones use fedhe, for example)",
            )
        shapes.append(traced)
    each = [[spec.count_bytes(g, tree) for tree in shape.wire] for g, shape in enumerate(shapes)]
    down, up = (float(np.mean(np.concatenate(of_groups))) for of_groups in zip(*each, strict=True))
    return Shapes(tuple(shapes), down, up)


def _trace_group(spec: SimulationSpec, g: int, key: Array, arrays: DeviceArrays, i: Array) -> GroupShapes:
    """Returns what group g's functions make of client i, after checking it."""
    algorithm = spec.algorithm(g, arrays, i)
    server = algorithm.server_init(key)
    sent = algorithm.broadcast(server, i)
    client = algorithm.client_init(key, server, i)
    out = algorithm.client_update(sent, client, spec.client_data(arrays, 0, arrays.size[0], in_round=True), key)
    out = check_client_output(out, algorithm.collect)
    if algorithm.pooled:
        out = out._replace(wire=((), ()))  # nothing is sent
    group, few = spec.groups[g], jax.tree.map(lambda x: x[:2], arrays.train)
    if spec.episodes is None:
        local = out.after_training(sent)
        _check_predictors(group, algorithm.predict, local, few)
        if "global" in algorithm.predict and g == 0:
            _check_reads_no_client(lambda client: algorithm.predict["global"](sent, client, few.x), group.name)
        if algorithm.personalise is not None:
            data = spec.client_data(arrays, i, arrays.size[i])
            result = algorithm.personalise(sent, client, data, key)
            personal = _check_pair(result, "personalise must return (sent, client), both as predictors read them")
            others = {name: predict for name, predict in algorithm.predict.items() if name != "global"}
            _check_predictors(group, others, personal, few)
    else:
        for name, predict in algorithm.predict.items():
            _check_no_own_head(lambda predict=predict: predict(*out.after_training(sent), few.x), name, group.name)
    return GroupShapes(server, sent, client, out)


def _check_predictors(
    group: Group, predictors: Mapping[str, Callable[..., Any]], holds: tuple[PyTree, PyTree], examples: Examples
) -> None:
    """Checks what predictors give for a client that holds (sent, client)."""
    for name, predict in predictors.items():
        check_predictions(predict(*holds, examples.x), name, group, examples.y)


def _check_reads_no_client(predict: Callable[[PyTree], Any], group: str) -> None:
    """Raises ValueError if the predictor "global", which has just worked with a client's state, fails without one."""
    try:
        predict(())
    except Exception as error:  # somebody else's code
        raise ValueError(
            f"group {group!r}: predict['global'] must not read `client`: it is scored once, with the state of no client in "
            f"particular, as (); give a model that reads it another name ({type(error).__name__}: {' '.join(str(error).split())})"
        ) from error


def _check_pair(result: Any, wants: str) -> tuple[Any, Any]:
    """Returns the result of a method's function; raises TypeError, beginning with `wants`, unless it is a plain pair."""
    if not isinstance(result, tuple) or len(result) != 2 or hasattr(result, "_fields"):
        actual = f"a tuple of {len(result)}" if type(result) is tuple else _describe(result)
        raise TypeError(f"{wants}; it returned {actual}")
    return result


def _check_no_own_head(predict: Callable[[], Any], name: str, group: str) -> None:
    """Raises ValueError if a predictor classifies plain examples by a head of its own: the test has other classes."""
    try:
        outputs = predict()
    except (KeyError, ValueError):  # it reads logits, which a prototypical network has of episodes only
        return
    if "logits" in outputs:
        raise ValueError(
            f"group {group!r}: predictor {name!r} classifies with a head of the method's own, which knows the training set's "
            "classes alone; with episodes choose a method, or an option of it, that leaves the network's head as it is"
        )


@contextlib.contextmanager
def _explain_missing_logits(spec: SimulationSpec, group: Group) -> Iterator[None]:
    """Replaces the KeyError of a method that needs logits, where there are episodes, by a ValueError that says what to choose."""
    try:
        yield
    except KeyError as error:
        if spec.episodes is None or error.args != ("logits",):
            raise
        raise ValueError(
            f"group {group.name!r}: the method reads logits of plain examples, which a prototypical network does not have; "
            "with episodes choose a method, or an option of it, that reads features"
        ) from None


@contextlib.contextmanager
def explain_missing_head(groups: Sequence[Group]) -> Iterator[None]:
    """Replaces the KeyError of a method that needs features or a linear head by a ValueError that says what to add."""
    try:
        yield
    except KeyError as error:
        if error.args[:1] not in (("head",), ("kernel",), ("features",)):
            raise
        models = {group.task.model.name: group.task.model for group in groups}
        nets = {name: jax.eval_shape(model.init, jax.random.key(0)).params for name, model in models.items()}
        heads = {name: net.get("head") if isinstance(net, dict) else None for name, net in nets.items()}
        without = [name for name, head in heads.items() if not (isinstance(head, dict) and "kernel" in head)]
        if not without:
            raise
        name = without[0]
        packed = " (with pack=True, texts have no features of their own; set pack=False)" if error.args[0] == "features" else ""
        raise ValueError(
            f"the method needs features or the head of network {name!r}, which has no such parts{packed}: {hint_head(nets[name])}"
        ) from None


def check_algorithm(algorithm: Any, build: Any) -> Algorithm:
    """Returns what a method's builder returned, or raises TypeError unless it is an Algorithm."""
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"{builder_name(build)} must return a fedjax_core.algorithm.Algorithm, it returned {_describe(algorithm)}")
    return algorithm


def check_client_output(out: Any, collect: PyTree) -> ClientOutput:
    """Returns the result of `client_update`; raises unless it is a ClientOutput for `collect`."""
    if not isinstance(out, ClientOutput):
        raise TypeError(f"client_update must return a fedjax_core.algorithm.ClientOutput, it returned {_describe(out)}")
    check_pairs(out.metrics, "client_update: the metrics of a ClientOutput must be {name: (sum, weight)}")
    if "examples" in out.metrics:
        raise ValueError("client_update: a metric cannot be named 'examples': train/examples is the weight of the metric 'loss'")
    _check_has_no_prefix(out.metrics, "client_update", "train/")
    parts, structure = jax.tree.flatten(collect, is_leaf=is_reduce)
    if other := [part for part in parts if not isinstance(part, Reduce)]:
        raise TypeError(
            f"collect must have a fedjax_core.algorithm.Reduce for each part of the uplink, it has {_describe(other[0])}"
        )
    for field, allowed in (("combine", COMBINATIONS), ("payload", PAYLOADS)):
        if other := [value for part in parts if (value := getattr(part, field)) not in allowed]:
            raise ValueError(f"collect: Reduce.{field}={other[0]!r} is not one of {', '.join(map(repr, allowed))}")
    try:
        structure.flatten_up_to(out.uplink)
    except (ValueError, TypeError):
        raise ValueError(
            "collect must have the uplink's structure, with a Reduce for an array or for a whole branch of it: "
            f"{structure} against {jax.tree.structure(out.uplink)}"
        ) from None
    return out


def check_pairs(pairs: Any, wants: str) -> None:
    """Raises TypeError, beginning with `wants`, unless there are pairs of numbers by name."""
    wants += ", each of the two one number"
    if not isinstance(pairs, Mapping):
        raise TypeError(f"{wants}, not {_describe(pairs)}")
    for name, pair in pairs.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(f"{wants}; {name!r} is {_describe(pair)}")
        if shapes := [shape for part in pair if (shape := _shape(part)) != ()]:
            has = "no number" if shapes[0] is None else f"an array of shape {list(shapes[0])}"
            raise TypeError(f"{wants}; {name!r} has {has}")


def check_score(name: str, score: Callable, result: Any) -> Any:
    """Returns a score's pair in float32, or sums of at least 32 bits for `finalize`; else raises TypeError."""
    if finalizer(score) is None:
        try:
            check_pairs({name: result}, "a score of evaluation.scores must return (sum, weight)")
        except TypeError as error:
            raise TypeError(f"{error}; a score that is no mean of examples needs a function `finalize`") from None
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tuple(result))
    leaves, wants = jax.tree.leaves(result), f"score {name!r} of evaluation.scores must return numbers and arrays of numbers"
    if not leaves:
        raise TypeError(f"{wants}, not {_describe(result)} without any")
    for leaf in leaves:
        is_number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        if not is_number and not any(jnp.issubdtype(getattr(leaf, "dtype", bool), kind) for kind in (jnp.integer, jnp.floating)):
            raise TypeError(f"{wants}, which are added up, not {_describe(leaf)}")
    to_32_bits = lambda leaf: jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), _smallest_dtype(leaf)))
    return jax.tree.map(to_32_bits, result)


def _smallest_dtype(leaf: Any) -> Any:
    """Returns the smallest dtype in which sums of such numbers keep their digits."""
    return jnp.float32 if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.int32


def check_server_output(result: Any) -> tuple[PyTree, dict[str, Any]]:
    """Returns (server, metrics) of `server_update`, None as `{}`; else raises TypeError."""
    wants = "server_update must return (state, metrics), metrics being {name: (sum, weight)}"
    server, metrics_of_server = _check_pair(result, wants)
    metrics_of_server = {} if metrics_of_server is None else metrics_of_server
    check_pairs(metrics_of_server, "server_update: the metrics must be {name: (sum, weight)}")
    _check_has_no_prefix(metrics_of_server, "server_update", "server/")
    return server, metrics_of_server


def _check_has_no_prefix(names: Iterable[str], function: str, prefix: str) -> None:
    """Raises ValueError for a metric whose name has the prefix that records put before it."""
    for name in names:
        if str(name).startswith(prefix):
            raise ValueError(f"{function}: metric {name!r} is recorded as {prefix + name!r}; name it {name.removeprefix(prefix)!r}")


def check_predictions(outputs: Any, name: str, group: Group, y: Array) -> None:
    """Checks that a predictor gives logits that can be scored; more than classes may be where there are public examples.

    Raises:
      TypeError: they are not a mapping that has "logits".
      ValueError: the logits have another shape than [B, K].
    """
    if not isinstance(outputs, Mapping) or "logits" not in outputs:
        actual = f"only {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else _describe(outputs)
        raise TypeError(f'group {group.name!r}: predict[{name!r}] must return {{"logits": [B, K], ...}}, it returned {actual}')
    if "targets" in outputs or (kind := targets_of(y)) not in PER_ROW:
        return
    classes = group.task.classes
    wanted = (*y.shape, classes) if kind == "classes" else y.shape
    shape = _shape(outputs["logits"]) or ()
    is_wider = group.task.public != () and shape[:-1] == wanted[:-1] and shape[-1:] > wanted[-1:]
    if shape != wanted and not is_wider:
        need = f"the data's {classes} classes need" if kind == "classes" else f"{kind} need"
        gives = f"group {group.name!r}: predict[{name!r}] gives logits of shape {list(shape)} for {len(y)} examples"
        raise ValueError(f"{gives}, {need} {list(wanted)}")


def assert_same_structure(expected: PyTree, actual: PyTree, what: str) -> None:
    """Raises ValueError unless two pytrees agree in structure, shapes and dtypes, naming the first leaf that differs."""

    def describe_leaves(tree):
        return {
            jax.tree_util.keystr(path) or "the whole": f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    expected, actual = jax.eval_shape(lambda: (expected, actual))
    a, b = describe_leaves(expected), describe_leaves(actual)
    for path in [*a, *b]:
        if a.get(path) != b.get(path):
            raise ValueError(f"{what}: at {path}, {a.get(path, 'nothing')} against {b.get(path, 'nothing')}")
    if jax.tree.structure(expected) != jax.tree.structure(actual):
        raise ValueError(f"{what}: {jax.tree.structure(expected)} against {jax.tree.structure(actual)}")


def _shape(value: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array or a number; None of anything else."""
    if isinstance(value, bool | int | float | complex):
        return ()
    return getattr(value, "shape", None)


def _describe(value: Any) -> str:
    if hasattr(value, "dtype"):  # the name of a tracer's type tells nothing
        return f"an array {value.dtype}{list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
