"""Checks by traced programs what reaches what: the server's networks the next ones, and examples what clients send.

With privacy of examples they reach it through private training only. A number that is computed from
examples is exact; so is all that is computed from exact numbers. The results of private trainings
(`training/private_gradient.py`) are not, but for their sums. A client's number of examples is
public.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal

from fedjax_core.algorithm import Array, Cohort, PyTree, builder_name, find_nets, is_reduce
from fedjax_core.engine import rounds
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.flop_count import inner_jaxprs
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.training.private_gradient import PrivateFit, find_fit, is_exact

_CLEAN, _EXAMPLES, _EXACT = range(3)  # of a value: no examples in it; the data set itself; computed from it
_INDEX, _SIZE = -2, -1  # the client's own index and number of examples, unchanged; likewise public


def check_adds_differences(spec: SimulationSpec) -> None:
    """Raises ValueError if the server makes its networks of what clients send alone, and these should be differences.

    Transforms of uplinks would spoil weights, and the mean over no clients is 0.
    """
    shapes, slots = spec.shapes.groups[0], spec.sampler.slots
    payloads = {part.payload for part in jax.tree.leaves(spec.abstract_algorithm(0).collect, is_leaf=is_reduce)}
    if "delta" not in payloads or not find_nets(shapes.server):
        return

    def update_nets(server: PyTree, uplink: PyTree, cohort: Cohort, key: Array, arrays: DeviceArrays) -> list[PyTree]:
        algorithm = spec.algorithm(0, arrays, 0)
        collected = rounds.collect_nothing(algorithm, uplink, slots)
        result = algorithm.server_update(server, collected, cohort, key)
        return [net.params for net in find_nets(result[:1] if isinstance(result, tuple) else ())]  # rounds refuse others

    cohort = Cohort(*(jnp.zeros(slots, jnp.int32),) * 2)
    name = builder_name(spec.groups[0].build)
    marked = [_EXACT] * len(jax.tree.leaves(shapes.server))
    inputs = shapes.server, shapes.out.uplink, cohort, jax.random.key(0), spec.abstract_arrays
    levels = _Flow(name, 0).trace(update_nets, inputs, marked)
    if levels and _EXACT not in levels:
        raise ValueError(
            f"{name}: server_update takes the mean of the uplinks for the new network, and this mean is of differences, 0 where "
            "nobody comes back; send optax.tree.sub(net, sent), and add the mean to the server's network, or collect by "
            "aggregators.mean()._replace(payload='') what is no difference"
        )


def find_private_fits(spec: SimulationSpec) -> tuple[PrivateFit, ...]:
    """Returns the private trainings of a client's round, those of the group with the most epochs.

    Raises:
      ValueError: a client sends something that depends on its examples in another way; a private
        training is in a loop or a branch of the method's own, so that their number is unknown, or in
        a `vmap`, or on other examples than all of the client's; one is in `prepare`.
    """
    return max((_find_fits_of_group(spec, g) for g in range(len(spec.groups))), key=lambda fits: sum(fit.epochs for fit in fits))


def _find_fits_of_group(spec: SimulationSpec, g: int) -> tuple[PrivateFit, ...]:
    name, shapes, arrays = builder_name(spec.groups[g].build), spec.shapes.groups[g], spec.abstract_arrays
    key = jax.random.key(0)
    own_data = lambda arrays: spec.client_data(arrays, 0, arrays.size[0])
    own = jax.eval_shape(lambda arrays: (own_data(arrays).index, own_data(arrays).size), arrays)

    def bind(train, index, size, arrays):
        arrays = arrays._replace(train=train)
        return spec.algorithm(g, arrays, 0), own_data(arrays)._replace(index=index, size=size)

    def update_client(train, index, size, sent, client, arrays, key):
        algorithm, data = bind(train, index, size, arrays)
        out = algorithm.client_update(sent, client, data, key)
        return out.uplink, out.state

    def prepare_client(train, index, size, sent, client, arrays, key):
        algorithm, data = bind(train, index, size, arrays)
        return client if algorithm.prepare is None else algorithm.prepare(sent, client, data, key)

    inputs = arrays.train, *own, shapes.sent, shapes.client, arrays, key
    leaves = len(jax.tree.leaves(arrays.train))
    flow = _Flow(name, leaves)
    levels = [*[_EXAMPLES] * leaves, _INDEX, _SIZE, *[_CLEAN] * len(jax.tree.leaves(shapes.sent))]
    state = flow.trace(prepare_client, inputs, [*levels, *[_CLEAN] * len(jax.tree.leaves(shapes.client))])
    state = [max(level, _CLEAN) for level in state]
    if flow.fits:
        raise ValueError(
            f"privacy.level='example': {name} also trains before round 1, which is not accounted for; use another method"
        )
    parts = jax.tree_util.tree_flatten_with_path(shapes.out.uplink)[0]
    while True:  # exact numbers that a client keeps are in a later uplink
        flow = _Flow(name, leaves)
        results = [max(level, _CLEAN) for level in flow.trace(update_client, inputs, [*levels, *state])]
        merged = [max(pair) for pair in zip(state, results[len(parts) :], strict=True)]
        if merged == state:
            break
        state = merged
    for (path, _), level in zip(parts, results[: len(parts)], strict=True):
        if level != _CLEAN:
            part = f"part {jax.tree_util.keystr(path)} of its uplink" if path else "its uplink"
            raise ValueError(
                f"privacy.level='example' protects what local training computes; {name} reads examples in other ways, "
                f"on which {part} depends without noise; use another method, such as fedavg, scaffold or fedper"
            )
    if not flow.fits and parts:
        raise ValueError(f"privacy.level='example': {name} does not use the shared local training (`local_training.fit`)")
    return tuple(flow.fits)


class _Flow:
    """Follows values through a program.

    A private training gets the data once, as `ClientData`; what reads them beside it, such as a loss
    that closes over them, is exact.
    """

    def __init__(self, method: str, leaves: int):
        self.method, self.leaves = method, leaves
        self.fits: list[PrivateFit] = []

    def trace(self, fn: Callable[..., PyTree], inputs: tuple, levels: Sequence[int]) -> list[int]:
        """Returns the levels of the leaves of `fn(*inputs)`; inputs without a given level are clean."""
        closed = jax.make_jaxpr(fn)(*inputs)
        return self._follow(closed.jaxpr, [*levels, *[_CLEAN] * (len(closed.jaxpr.invars) - len(levels))])

    def _follow(self, jaxpr: Jaxpr, levels: Sequence[int]) -> list[int]:
        known: dict[Any, int] = dict(zip(jaxpr.invars, levels, strict=True))
        level_of = lambda atom: _CLEAN if isinstance(atom, Literal) else known.get(atom, _CLEAN)
        for equation in jaxpr.eqns:
            results = self._follow_equation(equation, [level_of(atom) for atom in equation.invars])
            known |= zip(equation.outvars, results, strict=True)
        return [level_of(atom) for atom in jaxpr.outvars]

    def _follow_equation(self, equation: Any, levels: Sequence[int]) -> list[int]:
        number, name = len(equation.outvars), str(equation.params.get("name", ""))
        is_call = equation.primitive.name in ("pjit", "jit")
        if is_call and is_exact(name):
            return [_EXACT] * number
        if is_call and (fit := find_fit(name)) is not None:
            self._check_fit(equation, levels)
            self.fits.append(fit)
            is_read_beside = list(levels).count(_EXAMPLES) > self.leaves
            return [_EXACT if is_read_beside or _EXACT in levels else _CLEAN] * number
        if is_call:
            return self._follow(equation.params["jaxpr"].jaxpr, levels)
        if any(map(_contains_fit, inner_jaxprs(equation))):
            raise ValueError(
                f"privacy.level='example': {self.method} calls its local training in a loop or a branch of its own, so that the "
                "number of private steps is unknown; use another method, such as fedavg, scaffold or fedper"
            )
        return [_EXACT if any(level > _CLEAN for level in levels) else _CLEAN] * number

    def _check_fit(self, equation: Any, levels: Sequence[int]) -> None:
        """Raises ValueError for a training that is not what is accounted for (`mark_fit`)."""
        if equation.outvars[-1].aval.shape:
            raise ValueError(
                f"privacy.level='example': {self.method} trains several networks at once by vmap, and epsilon counts one training; "
                "call its local training once for each, or use another method, such as fedavg, scaffold or fedper"
            )
        if tuple(levels[-2:]) != (_INDEX, _SIZE):
            raise ValueError(
                f"privacy.level='example': {self.method} trains on a part of the client's examples, or on others, and epsilon "
                "is computed for minibatches of all of them; use another method, such as fedavg, scaffold or fedper"
            )


def _contains_fit(jaxpr: Jaxpr) -> bool:
    names = (str(equation.params.get("name", "")) for equation in jaxpr.eqns)
    return any(find_fit(name) for name in names) or any(
        _contains_fit(inner) for equation in jaxpr.eqns for inner in inner_jaxprs(equation)
    )
