"""How often models fall for a backdoor: they predict each batch once more, with the attackers' trigger on it."""

import functools
from collections.abc import Callable
from typing import Protocol

import jax.numpy as jnp

from fedjax_core.algorithm import Algorithm, Array, PyTree
from fedjax_core.task import Task
from fedjax_core.training import metrics

OUTPUT = "triggered"  # logits of the examples with the trigger, beside a predictor's own outputs


class Triggers(Protocol):
    """What puts a pattern on examples, and the class that it stands for: `data.poisoning.Trigger`."""

    @property
    def target(self) -> int: ...

    def on(self, x: PyTree) -> PyTree: ...


def watched(build: Callable[[Task], Algorithm], trigger: Triggers) -> Callable[[Task], Algorithm]:
    """The method whose predictors also give the logits of the examples with the trigger."""

    def reading(predict):
        def both(sent, client, x):
            return predict(sent, client, x) | {OUTPUT: predict(sent, client, trigger.on(x))["logits"]}

        return both

    def built(task: Task) -> Algorithm:
        inner = build(task)
        return inner._replace(predict={name: reading(predict) for name, predict in inner.predict.items()})

    return functools.update_wrapper(built, build)


def score(trigger: Triggers) -> Callable[..., metrics.Pair]:
    """The share of examples of other classes that get the trigger's class with it on; a score as tasks have it."""

    def backdoor(outputs: dict[str, Array], x: PyTree, y: Array, mask: Array) -> metrics.Pair:
        del x
        fell = jnp.argmax(outputs[OUTPUT], -1) == trigger.target
        return metrics.mean_of(fell, mask & (y != trigger.target))

    return backdoor
