"""Numbers that lanes have of their own: what a method's builder gets in place of a float, where several runs are one program.

Such a `Number` computes with plain numbers in Python, lane by lane, so that it is rounded where it would be in a run alone. Beside
an array it is the lane's value. Python may decide by it (`if mu > 0`) as long as all lanes decide alike; `Differs` says which do.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array
from fedjax_core.engine.simulator import Build
from fedjax_core.experiment.lookup import find_optimizer
from fedjax_core.experiment.resolve_config import Asked, Config, algorithm
from fedjax_core.task import Task

Values = Mapping[str, tuple[float, ...]]  # by dotted field, a number for each lane
METHOD, OPTIMIZER = "method.", "optimizer."


class Differs(TypeError):
    """Python was to decide by a number about which lanes differ.

    Attributes:
      found: what each lane would decide, or its value where Python wanted that.
    """

    def __init__(self, found: Iterable[Any]):
        self.found = tuple(found)
        super().__init__(f"lanes differ: {', '.join(map(repr, self.found))}")


def _binary(function: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[["Number", Any], Any]:
    def of(self: "Number", other: Any) -> Any:
        mine = (lambda v, o: function(o, v)) if swapped else function
        if isinstance(other, Number):
            return Number(map(mine, self.values, other.values), self.lane)
        if isinstance(other, int | float):
            return Number((mine(v, other) for v in self.values), self.lane)
        return mine(self.__jax_array__(), other)

    return of


def _compared(function: Callable[[Any, Any], Any]) -> Callable[["Number", Any], Any]:
    def of(self: "Number", other: Any) -> Any:
        if isinstance(other, Number):
            return _agreed(map(function, self.values, other.values))
        if isinstance(other, int | float):
            return _agreed(function(v, other) for v in self.values)
        if not isinstance(other, jax.Array | np.ndarray | np.generic):
            return NotImplemented
        return function(self.__jax_array__(), other)

    return of


def _agreed(found: Iterable[bool]) -> bool:
    found = tuple(map(bool, found))
    if len(set(found)) > 1:
        raise Differs(found)
    return found[0]


class Number:
    """A number of which each lane has its own.

    Attributes:
      values: of all lanes.
      lane: [] which one this is, traced.
    """

    __array_ufunc__ = None  # NumPy's arrays leave the operators to this class

    def __init__(self, values: Iterable[float], lane: Array):
        self.values, self.lane = tuple(values), lane

    def __jax_array__(self) -> Array:
        """The lane's value, as weakly typed as a plain number."""
        pick = lambda rest, at: jnp.where(self.lane == at, self.values[at], rest)
        return jnp.asarray(functools.reduce(pick, range(1, len(self.values)), self.values[0]))

    def _plain(self, *_: Any) -> Any:
        raise Differs(self.values)

    __float__ = __int__ = __array__ = _plain
    __add__, __radd__ = _binary(operator.add), _binary(operator.add, True)
    __sub__, __rsub__ = _binary(operator.sub), _binary(operator.sub, True)
    __mul__, __rmul__ = _binary(operator.mul), _binary(operator.mul, True)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _binary(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _binary(operator.floordiv, True)
    __mod__, __rmod__ = _binary(operator.mod), _binary(operator.mod, True)
    __pow__, __rpow__ = _binary(operator.pow), _binary(operator.pow, True)
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)

    def __neg__(self) -> "Number":
        return Number(map(operator.neg, self.values), self.lane)

    def __pos__(self) -> "Number":
        return self

    def __abs__(self) -> "Number":
        return Number(map(abs, self.values), self.lane)

    def __bool__(self) -> bool:
        return _agreed(map(bool, self.values))

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"


def by_lane(config: Config, values: Values) -> Callable[[Asked], Build]:
    """What builds a config's method, in each lane with the lane's numbers; outside of lanes with the config's own.

    Args:
      config: of the first lane.
      values: of options of the method and the optimiser, "method.mu"; the first is the config's.
    """

    def of(asked: Asked) -> Build:
        alone = algorithm(asked)

        def built(task: Task) -> Algorithm:
            if isinstance(task.lane, tuple):
                return alone(task)
            mine = {field: Number(each, task.lane) for field, each in values.items()}
            options = {field.removeprefix(METHOD): number for field, number in mine.items() if field.startswith(METHOD)}
            rates = {field.removeprefix(OPTIMIZER): number for field, number in mine.items() if field.startswith(OPTIMIZER)}
            chosen = find_optimizer(asked.said, rates) if rates else asked.optimizer
            return asked.method.function(task, optimizer=chosen, **asked.method.options | options)

        return functools.update_wrapper(built, alone.func)  # pyright: ignore[reportFunctionMemberAccess]

    return of
