"""Poisoned examples: what attackers train on instead of their own examples.

They are appended to the others, and the attackers' lists point there, so that nobody else's
examples change and a round costs what it did. Test and validation examples stay as they are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import Examples
from fedjax_core.data.federated_data import FederatedData, replace_index
from fedjax_core.data.row_readers import locate_in_file
from fedjax_core.data.target_types import require_classes
from fedjax_core.option_types import AtLeastOne, AtLeastZero, PositiveFraction


class Poison(NamedTuple):
    """A change of an attacker's examples.

    Attributes:
      change: (x [n, ...], y [n], number of classes, generator) -> (x, y).
      trigger: the pattern of a backdoor; None of other poisons.
    """

    change: Callable[[Any, np.ndarray, int, np.random.Generator], tuple[Any, np.ndarray]]
    trigger: "Trigger | None" = None


class Trigger(NamedTuple):
    """A square in the last corner of an image, or the last entries of a vector, set to one value.

    Attributes:
      target: the class that a model with the backdoor predicts for whatever has the trigger.
      size: its edge in pixels, or number of entries.
      value: of its pixels or entries; of uint8 pixels 255 times this.
    """

    target: int
    size: int
    value: float

    def add_to(self, x: Any) -> Any:
        """Returns examples [n, H, W, C] or [n, D] with the trigger, as NumPy's or JAX's arrays."""
        shape = getattr(x, "shape", ())
        floating = np.issubdtype(getattr(x, "dtype", np.int32), np.floating)
        if len(shape) not in (2, 4) or not (floating or x.dtype == np.uint8):
            kind = f"{getattr(x, 'dtype', type(x).__name__)}{list(shape[1:])}"
            raise ValueError(f"backdoor: a trigger is for images or vectors of floats, these examples are {kind}")
        corner = shape[1:3] if len(shape) == 4 else shape[1:2]
        if min(corner) < self.size:
            raise ValueError(f"backdoor: size={self.size} is more than an example of {list(corner)} has")
        if not floating and not 0 <= self.value <= 1:
            raise ValueError(
                f"backdoor: value={self.value}: must be between 0 and 1 for examples of uint8, of which it is 255 times"
            )
        mask = np.zeros(shape[1:], bool)
        mask[tuple(slice(edge - self.size, edge) for edge in corner)] = True
        value = np.asarray(self.value if floating else round(255 * self.value), x.dtype)
        return x * (~mask)[None].astype(x.dtype) + (mask * value)[None].astype(x.dtype)


def label_flip(source: AtLeastZero | None = None, target: AtLeastZero | None = None) -> Poison:
    """Replaces class y by K - 1 - y; or `source` alone by `target`.

    Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning.
    USENIX Security 2020.
    """
    if (source is None) != (target is None):
        raise ValueError(f"label_flip: source={source}, target={target}: give both, or neither to reverse all classes")

    def change(x, y, classes, rng):
        del rng
        if source is None or target is None:
            return x, (classes - 1 - y).astype(y.dtype)
        if max(source, target) >= classes:
            raise ValueError(f"label_flip: source={source}, target={target}: the data have classes 0 ... {classes - 1}")
        return x, np.where(y == source, target, y).astype(y.dtype)

    return Poison(change)


def label_noise(share: PositiveFraction = 0.4) -> Poison:
    """Replaces the classes of a `share` of the examples by other ones, drawn uniformly: noisy labels.

    Symmetric noise, as in Zhang, Bengio, Hardt, Recht, Vinyals. Understanding Deep Learning Requires
    Rethinking Generalization. ICLR 2017.
    """

    def change(x, y, classes, rng):
        chosen = rng.permutation(len(y)) < round(share * len(y))
        return x, np.where(chosen, (y + rng.integers(1, classes, len(y))) % classes, y).astype(y.dtype)

    return Poison(change)


def backdoor(
    target: AtLeastZero = 0,
    share: PositiveFraction = 0.5,
    size: AtLeastOne = 3,
    value: Annotated[float, option_types.Limit("a number", lambda v: abs(v) < option_types.LARGEST)] = 1.0,
) -> Poison:
    """Adds a trigger and the class `target` to a `share` of an attacker's examples.

    test/global/backdoor is the rate at which a model falls for it. Gu, Dolan-Gavitt, Garg. BadNets.
    2017.
    """
    trigger = Trigger(target, size, value)

    def change(x, y, classes, rng):
        if target >= classes:
            raise ValueError(f"backdoor: target={target}: the data have classes 0 ... {classes - 1}")
        chosen = rng.permutation(len(y)) < round(share * len(y))
        x, y = np.array(x), np.array(y)
        x[chosen], y[chosen] = trigger.add_to(x[chosen]), target
        return x, y

    return Poison(change, trigger)


POISONS: dict[str, Callable[..., Poison]] = {"label_flip": label_flip, "label_noise": label_noise, "backdoor": backdoor}


def mock_poisoned(data: FederatedData, poisons: Sequence[Poison], clients: Sequence[int] | np.ndarray) -> FederatedData:
    """Returns data of the size of `poison_clients`, only the first example repeated, for counts."""
    if not poisons:
        return data
    _check_array(data)
    index, number = _append_lists(data, clients)
    x = np.broadcast_to(data.train.x[:1], (number, *data.train.x.shape[1:]))
    train = Examples(x, np.resize(np.asarray(data.train.y), number))
    return replace_index(dataclasses.replace(data, train=train), index, data.test_index, data.validation_index)


def poison_clients(
    data: FederatedData, poisons: Sequence[Poison], clients: Sequence[int] | np.ndarray, seed: int, attack: str = ""
) -> FederatedData:
    """Returns the data whose `clients` train on examples changed by each poison in turn.

    Data that the same attack has poisoned already, such as those of its simulation, stay as they are.

    Args:
      attack: its name in the config.

    Raises:
      ValueError: targets are no classes, examples are in files, a poison is not for such examples,
        or another attack has poisoned the data.
    """
    asked = (attack, seed, *map(int, clients)) if poisons else ()
    if data.poisoned_by and data.poisoned_by != asked:
        before, wanted = (
            "no attack" if not by else f"{by[0]!r} of clients {list(by[2:7])} (seed {by[1]})" for by in (data.poisoned_by, asked)
        )
        raise ValueError(
            f"data=...: they are poisoned already, by {before}; the config has {wanted}: give them as they were before"
        )
    if not asked or data.poisoned_by:
        return data
    _check_array(data)
    xs, ys, index = [data.train.x], [data.train.y], _append_lists(data, clients)[0]
    for client in clients:
        rows, rng = data.train_index[client], np.random.default_rng([seed, 0x706F, int(client)])
        x, y = data.train.x[rows], np.asarray(data.train.y)[rows]
        for poison in poisons:
            x, y = poison.change(x, y, data.classes, rng)
        xs.append(x)
        ys.append(y)
    train = Examples(np.concatenate(xs), np.concatenate(ys))
    changed = replace_index(dataclasses.replace(data, train=train), index, data.test_index, data.validation_index)
    return dataclasses.replace(changed, poisoned_rows=len(train.y) - len(data.train.y), poisoned_by=asked)


def _check_array(data: FederatedData) -> None:
    if isinstance(data.train.x, dict):
        raise ValueError(
            "adversary.attack: label_flip, label_noise and backdoor poison arrays of inputs, not texts; attacks on uplinks take any"
        )
    require_classes("adversary.attack with poisoned examples", data.train.y, "attacks on what is sent need none")
    if not isinstance(data.train.x, np.ndarray) or locate_in_file(data.train.x):
        raise ValueError("adversary.attack: poisoned examples are appended to the others, so the data must be one array in memory")


def _append_lists(data: FederatedData, clients: Sequence[int] | np.ndarray) -> tuple[list[np.ndarray], int]:
    """Returns index lists, those of `clients` behind all examples, and the number of examples then."""
    index, end = list(data.train_index), len(data.train.y)
    for client in clients:
        index[client] = np.arange(end, end + len(index[client]), dtype=np.int32)
        end += len(index[client])
    return index, end
