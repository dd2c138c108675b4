"""What is given in Python in place of what a config names: a method, networks, a loss, scores.

It is written into the config by its name, so that such a run resumes, is analysed and is exported like any other: a function or
class of a module as "module:name(option=...)", which a later process finds again; anything else, such as a lambda, as
"given:name", which a later process must be given again.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import linen, nnx

from fedjax_core import option_types, outside, registry
from fedjax_core.experiment.method_registry import Config, switch
from fedjax_core.task import Model

log = logging.getLogger("fedjax_core")
Scores = Callable | Sequence[Callable] | Mapping[str, Callable]
_FIELDS = {
    "method": "method.name",
    "model": "models",
    "loss": "loss",
    "score": "evaluation.scores",
}  # where names stand in a config


def into(
    config: Config,
    method: Callable | None = None,
    model: Any = None,
    loss: Callable | None = None,
    scores: Scores | None = None,
) -> Config:
    """A copy of a config with what is given in place of what it names; the config itself if nothing is.

    Args:
      config: see `configs/base.py`.
      method: (task, optimizer=..., ...) -> Algorithm. Of `config.method`'s options it has those that `method_registry.switch`
        keeps, of its
        own those that are bound by `functools.partial`.
      model: a network, or a sequence of them for client i mod their number: what builds a module of Flax NNX or Linen
        (`nn/flax_adapter.py`), a Linen module, or a `Model`.
      loss: of labels, (logits [B, K], y [B], mask [B]) -> the mean over the rows in `mask`.
      scores: (outputs, x, y, mask [B]) -> (sum, weight), or objects with `finalize` (`training/scores.py`); one, a sequence, or by
        name.

    Raises:
      TypeError: a method, loss or score is no function, such as a name, which stands in the config; a network is a module of NNX
        that is made already: its initial values could not be drawn by the run's seed.
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
            if said := switch(config, {"name": named("method", method)}):
                log.warning("%s", said)
        if model is not None:
            several = model if isinstance(model, list | tuple) and not isinstance(model, Model) else (model,)
            config.models = _several("model", [(None, one, _builder(one)) for one in several])
        if loss is not None:
            config.loss = named("loss", loss)
        if scores is not None:
            several = (scores,) if callable(scores) or isinstance(scores, str) else scores
            several = several.items() if isinstance(several, Mapping) else ((None, score) for score in several)
            config.evaluation.scores = _several("score", [(name, score, score) for name, score in several])
    return config


def _several(what: str, given: Sequence[tuple[str | None, Any, Callable]]) -> tuple[str, ...]:
    """The specs of several things of a kind.

    Args:
      what: they are.
      given: of each the name that it must have or None, what was given, and what it is called as.

    Raises:
      ValueError: two different ones would have one name.
    """
    found: dict[str, Any] = {}
    specs = []
    for name, one, function in given:
        spec = named(what, function, name)
        if spec.startswith("given:") and found.setdefault(spec, one) is not one:
            own = spec.removeprefix("given:")
            raise ValueError(
                f"two different {what}s are given that are both called {own!r}; give one of them another name, such as by `def` in "
                "place of lambda"
            )
        specs.append(spec)
    return tuple(specs)


def named(what: str, given: Callable, name: str | None = None) -> str:
    """The spec that finds a function or class again: by its module, or else as one that was given (`outside.give`).

    Args:
      what: it is, one of `outside.GROUPS`.
      given: it, or a `functools.partial` of it with named options.
      name: that it must have; None: its own.

    Raises:
      TypeError: it cannot be called.
    """
    if not callable(given):
        where = f"; names stand in config.{_FIELDS[what]}" if isinstance(given, str) else ""
        raise TypeError(
            f"{what}{'' if name is None else f' {name!r}'}={option_types.short(given)} must be a function or a class{where}"
        )
    function, options = given, {}
    while isinstance(function, functools.partial) and not function.args:
        function, options = function.func, function.keywords | options
    own = getattr(function, "__qualname__", type(function).__name__)
    spec = f"{getattr(function, '__module__', '')}:{own}"
    if options:
        spec += f"({', '.join(f'{key}={value!r}' for key, value in options.items())})"
    if name in (None, own) and _finds(what, spec, function, options):
        return spec
    return outside.give(what, name or own.rpartition(".")[2].strip("<>"), given)


def _finds(what: str, spec: str, function: Callable, options: dict[str, Any]) -> bool:
    """Whether a spec, read from a file, stands for this function with these options."""
    try:
        place, read = registry.parse(spec)
        return registry.lookup(what, place, {})[0] is function and read == options
    except ValueError:
        return False


def _builder(network: Any) -> Callable:
    """What makes a network, of a network that is made already."""
    if isinstance(network, nnx.Module):
        what = f"the model {type(network).__name__} is made already, with values that no seed of a run drew"
        raise TypeError(f"{what}; give its class, or a function (classes, input_shape, rngs) -> module")
    if not isinstance(network, Model | linen.Module):
        return network
    made = functools.partial(_itself, network)
    made.__qualname__ = network.name if isinstance(network, Model) else type(network).__name__  # pyright: ignore[reportAttributeAccessIssue]
    return made


def _itself(network: Any) -> Any:
    return network
