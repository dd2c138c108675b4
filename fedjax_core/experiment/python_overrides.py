"""Changes what a config names: to another method, or to Python objects (a method, models, a loss,
scores).

Objects are written into the config by name, so that such a run resumes, is analysed and is exported
like any other: a function or class of a module as "module:name(option=...)", which a later process
finds again; anything else, such as a lambda, as "given:name", which a later process must be given
again.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import linen, nnx

from fedjax_core import option_types, registry
from fedjax_core.experiment.lookup import method_builder
from fedjax_core.experiment.schema import Config, without_none
from fedjax_core.task import Model

log = logging.getLogger("fedjax_core")
Scores = Callable | Sequence[Callable] | Mapping[str, Callable]
PROTOCOL = ("epochs", "batch", "weights")  # options of any method's training, which a config keeps with another method
_FIELDS = {"method": "method.name", "model": "models", "loss": "loss", "score": "evaluation.scores"}  # that hold names


def switch_method(config: Config, method_fields: Mapping[str, Any]) -> str:
    """Changes the method of a config, in place.

    Of the old method's options, those of `PROTOCOL` that the new one has are kept and all others
    are dropped: a coefficient of one method says nothing about another's of the same name.

    Args:
      method_fields: "name" of the new method, and options of it. If it is the config's own method, or
        there is no name, these change its options.

    Returns:
      A line that says what was kept and what was dropped; empty where it is the config's own
      method.

    Raises:
      ValueError: an option is None, which unsets it, and neither the method nor the config has it.
    """
    method_fields = {"name": config.method.name, **method_fields}
    name, own = registry.parse_spec(method_fields["name"], "method.name")
    function, before = method_builder(name), config.method.to_dict()
    old = before.pop("name")
    takes, takes_any = registry.read_parameters(function)
    for key, value in method_fields.items():
        if value is None and not takes_any and key not in takes and key not in before:
            raise ValueError(f"method.{key}=None: method {name!r} has no option {key!r}.{option_types.did_you_mean(key, takes)}")
    if is_same := _is_method(old, function):
        kept = {key: value for key, value in before.items() if key not in own}
    else:
        kept = {key: before[key] for key in before if key in PROTOCOL and key not in own and (key in takes or takes_any)}
    with config.unlocked():
        config.method = _merge(kept, method_fields)
    if is_same:
        return ""
    settings = {key: value for key, value in kept.items() if key not in method_fields}
    given = {**own, **{key: value for key, value in method_fields.items() if key != "name"}}
    dropped = {key: value for key, value in before.items() if key not in {*kept, *own, *method_fields}}
    parts = [
        f"{word} {', '.join(f'{key}={value!r}' for key, value in options.items())}"
        for word, options in (("kept", without_none(settings)), ("dropped", without_none(dropped)), ("set", given))
        if options
    ]
    return f"method {name} in place of {old}: {'; '.join([*parts, 'other options are defaults'])}"


def _is_method(name: str, function: Callable) -> bool:
    """Returns whether a name stands for this builder."""
    try:
        return method_builder(registry.parse_spec(name)[0]) is function
    except ValueError:  # such as one that an earlier process was given
        return False


def _merge(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options updated with others; options that are mappings are merged."""
    both = {key for key in before if isinstance(before[key], Mapping) and isinstance(more.get(key), Mapping)}
    return {**before, **more, **{key: _merge(before[key], more[key]) for key in both}}


def apply_overrides(
    config: Config,
    method: Callable | None = None,
    model: Any = None,
    loss: Callable | None = None,
    scores: Scores | None = None,
) -> Config:
    """Returns a copy of a config that names the objects given; the config itself if none is given.

    Args:
      config: see `configs/base.py`.
      method: (task, optimizer=..., ...) -> Algorithm. It has those of `config.method`'s options
        that `switch_method` keeps, and of its own those that `functools.partial` binds.
      model: a network, or a sequence of them for client i mod their number: a function or class
        that makes a module of Flax NNX or Linen (`nn/flax_adapter.py`), a Linen module, or a
        `Model`.
      loss: of labels, (logits [B, K], y [B], mask [B]) -> the mean over the examples in `mask`.
      scores: (outputs, x, y, mask [B]) -> (sum, weight), or objects with `finalize`
        (`training/scores.py`); one, a sequence, or by name.

    Raises:
      TypeError: a method, loss or score is no function, such as a name, which belongs in the
        config; a model is an NNX module: its initial values could not be drawn by the run's seed.
      ValueError: two different networks, or scores, would have one name.
    """
    if method is None and model is None and loss is None and scores is None:
        return config
    config = config.copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        if method is not None:
            bound = method.keywords if isinstance(method, functools.partial) else {}
            for option in set(bound) & set(config.method):
                del config.method[option]
            if message := switch_method(config, {"name": spec_of("method", method)}):
                log.warning("%s", message)
        if model is not None:
            models = model if isinstance(model, list | tuple) and not isinstance(model, Model) else (model,)
            config.models = _specs_of("model", [(None, each, _model_builder(each)) for each in models])
        if loss is not None:
            config.loss = spec_of("loss", loss)
        if scores is not None:
            several: Any = (scores,) if callable(scores) or isinstance(scores, str) else scores
            pairs = several.items() if isinstance(several, Mapping) else ((None, score) for score in several)
            config.evaluation.scores = _specs_of("score", [(name, score, score) for name, score in pairs])
    return config


def _specs_of(what: str, given: Sequence[tuple[str | None, Any, Callable]]) -> tuple[str, ...]:
    """Returns the specs of several objects of a kind.

    Args:
      given: for each the name that it must have or None, the object, and the function that stands
        for it.
    """
    objects: dict[str, Any] = {}
    specs = []
    for name, each, function in given:
        spec = spec_of(what, function, name)
        if spec.startswith("given:") and objects.setdefault(spec, each) is not each:
            raise ValueError(
                f"two different {what}s are given that are both called {spec.removeprefix('given:')!r}; give one of them another "
                "name, such as by `def` in place of lambda"
            )
        specs.append(spec)
    return tuple(specs)


def spec_of(what: str, given: Callable, name: str | None = None) -> str:
    """Returns the spec that finds a function or class again: by its module, or as one that is
    registered in this process.

    Args:
      what: its kind, one of `registry.ENTRY_POINT_GROUPS`.
      given: the function, or a `functools.partial` of it with named options.
      name: that it must have; None: its own.
    """
    if not callable(given):
        called = "" if name is None else f" {name!r}"
        hint = f"; names belong in config.{_FIELDS[what]}" if isinstance(given, str) else ""
        raise TypeError(f"{what}{called}={option_types.shorten(given)} must be a function or a class{hint}")
    function, options = given, {}
    while isinstance(function, functools.partial) and not function.args:
        function, options = function.func, function.keywords | options
    own = getattr(function, "__qualname__", type(function).__name__)
    spec = registry.spell(f"{getattr(function, '__module__', '')}:{own}", options)
    if name in (None, own) and _is_resolved_by(what, spec, function, options):
        return spec
    return registry.register_in_process(what, name or own.rpartition(".")[2].strip("<>"), given)


def _is_resolved_by(what: str, spec: str, function: Callable, options: dict[str, Any]) -> bool:
    """Returns whether a spec, read from a file, stands for this function with these options."""
    try:
        place, parsed = registry.parse_spec(spec)
        return registry.find_builder(what, place, {})[0] is function and parsed == options
    except ValueError:
        return False


def _model_builder(model: Any) -> Callable:
    """Returns a function that makes a network; of a network that is an object already, one that
    returns it."""
    if isinstance(model, nnx.Module):
        problem = f"the model {type(model).__name__} is made already, with values that no seed of a run drew"
        raise TypeError(f"{problem}; give its class, or a function (classes, input_shape, rngs) -> module")
    if not isinstance(model, Model | linen.Module):
        return model
    build = functools.partial(_return, model)
    build.__qualname__ = model.name if isinstance(model, Model) else type(model).__name__  # pyright: ignore[reportAttributeAccessIssue]
    return build


def _return(value: Any) -> Any:
    return value
