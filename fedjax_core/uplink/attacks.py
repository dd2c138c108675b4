"""Attacks: what an attacker sends in place of its delta, or of its class means.

    config.adversary.attack = "alie"
    config.adversary.attack = "backdoor(target=1) | scaled(factor=10.0)"       poisoned rows, and then a scaled delta
    config.adversary.fraction = 0.2                                           of the clients, the same ones in all rounds

Attackers train as everybody does; what they send is changed behind the training. Those of `CRAFTED` know what all others send,
and change the cohort's stack; they are not compressed. Poisoned rows are in `data/poisoning.py`. Who attacks is drawn from the
seed of the data, and named in run.json.

An attack from outside is a function in a module or file of its own, `path/to/file.py:name(option=...)`, or an entry point of the
group `fedjax_core.attacks`: it takes options and returns (vector, key) -> vector, in JAX, of whatever shape; or a `Crafted`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array
from fedjax_core.option_types import Positive, one_of
from fedjax_core.registry import Found
from fedjax_core.uplink.flatten import checked, mean_of
from fedjax_core.uplink.transform import Carried, Link, Passed

Attack = Callable[[Array, Array], Array]
_NUMBER = option_types.Limit("a number", lambda v: abs(v) < option_types.LARGEST)
Factor = Annotated[float, _NUMBER]


class Crafted(NamedTuple):
    """An attack that knows the uplinks of the cohort.

    Attributes:
      vector: (rows [C, D], honest [C] whose are such, evil [C] whose are the attackers', key) -> [D], what all attackers send.
    """

    vector: Callable[[Array, Array, Array, Array], Array]


def sign_flip(scale: Positive = 1.0) -> Attack:
    """The opposite of the delta, times `scale`: Li, Xu, Chen, Giannakis, Ling. RSA. AAAI 2019."""
    return lambda x, key: -scale * x


def scaled(factor: Factor = 10.0) -> Attack:
    """`factor` times the delta, so that it takes the place of the mean: Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor
    Federated Learning. AISTATS 2020, Eq. 3."""
    return lambda x, key: factor * x


def noise(deviation: Positive = 1.0) -> Attack:
    """Gaussian noise in place of the delta."""
    return lambda x, key: deviation * jax.random.normal(key, x.shape, x.dtype)


def not_finite(value: Annotated[str, one_of("nan", "inf")] = "nan") -> Attack:
    """NaN or infinities in every place."""
    return lambda x, key: jnp.full_like(x, float(value))


def alie(z: Annotated[float | None, _NUMBER] = None) -> Crafted:
    """Mean of the honest minus z of their standard deviations, coordinate by coordinate: "a little is enough".

    Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019, Algorithm 3. z is
    the largest with which, of n clients and m attackers, floor(n / 2 + 1) - m honest ones are still further away, if none is given.
    With few attackers that is 0 or less, so that the attack is none: 0 for n = 10 and m = 2. `largest_z` says it beforehand.
    """

    def vector(rows, honest, evil, key):
        del key
        mean = mean_of(rows, honest)
        deviation = jnp.sqrt(mean_of((rows - mean[None]) ** 2, honest))
        if z is not None:
            return mean - z * deviation
        return mean - largest_z(jnp.sum(honest | evil), jnp.sum(evil)) * deviation

    return Crafted(vector)


def largest_z(n: Array | int, m: Array | int) -> Array:
    """The z of `alie` for n clients, m attackers among them.

    Example:
      >>> abs(round(float(largest_z(10, 2)), 4)), round(float(largest_z(50, 24)), 2)
      (0.0, 1.43)
    """
    supporters = n // 2 + 1 - m
    return jax.scipy.special.ndtri(jnp.clip((n - m - supporters) / jnp.maximum(n - m, 1), 1e-3, 1 - 1e-3))


def inner_product(epsilon: Positive = 0.5) -> Crafted:
    """`-epsilon` times the mean of the honest: Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
    Product Manipulation. UAI 2019."""
    return Crafted(lambda rows, honest, evil, key: -epsilon * mean_of(rows, honest))


def mimic() -> Crafted:
    """What one honest client sends, that with the lowest id: Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing. ICLR 2022, without its search for the client."""
    return Crafted(lambda rows, honest, evil, key: jnp.where(jnp.any(honest), rows[jnp.argmax(honest)], 0))


SENT: dict[str, Callable[..., Any]] = {"sign_flip": sign_flip, "scaled": scaled, "noise": noise, "not_finite": not_finite}
CRAFTED: dict[str, Callable[..., Any]] = {"alie": alie, "inner_product": inner_product, "mimic": mimic}


def attackers(population: int, fraction: float, seed: int) -> np.ndarray:
    """Ids of the clients that attack, sorted: `fraction` of them, rounded, at least one.

    Example:
      >>> attackers(10, 0.2, seed=0).tolist()
      [0, 2]
    """
    number = max(1, round(fraction * population))
    draw = np.random.default_rng([seed, 0x6164])
    return np.sort(draw.permutation(population)[:number]).astype(np.int32)


def link(name: str, attack: Attack | Crafted, ids: Sequence[int] | np.ndarray) -> Link:
    """An attack by the clients `ids`."""
    evil_ids = np.sort(np.asarray(ids, np.int32))

    def among(i: Array) -> Array:
        at = jnp.searchsorted(jnp.asarray(evil_ids), i)
        return jnp.asarray(evil_ids)[jnp.minimum(at, len(evil_ids) - 1)] == i

    if isinstance(attack, Crafted):

        def craft(rows, there, who, key):
            evil = there & jax.vmap(among)(who)
            order = jnp.argsort(who)  # so that the lowest id stands first, whatever the order of the cohort
            one = attack.vector(rows[order], (there & ~evil)[order], evil[order], key)
            one = checked(one, rows.shape[1:], f"attack {name!r}")
            return jnp.where(evil[:, None], one[None], rows)

        return Link("attack", name, craft=craft)

    def send(value: Carried, sender, kept):
        del kept
        evil = among(sender.id)
        leaves, structure = jax.tree.flatten((value.deltas, tuple(values for values, _ in value.classes)))
        keys = jax.random.split(sender.key, max(1, len(leaves)))
        made = [checked(attack(x, key), x.shape, f"attack {name!r}").astype(x.dtype) for x, key in zip(leaves, keys, strict=False)]
        changed = [jnp.where(evil, new, x) for new, x in zip(made, leaves, strict=True)]
        deltas, of_classes = structure.unflatten(changed)
        classes = tuple((values, counts) for values, (_, counts) in zip(of_classes, value.classes, strict=True))
        return Passed(Carried(deltas, classes))

    return Link("attack", name, send=send)


def find(spec: str, poisons: dict[str, Callable[..., Any]]) -> list[Found]:
    """The attacks of a config, in their order, each with its options checked.

    Args:
      spec: "name(option=literal, ...) | name | ...".
      poisons: those that change data, by name.

    Raises:
      ValueError, TypeError: an unknown name, option or value.
    """
    known = SENT | CRAFTED | poisons
    return [registry.find("attack", part.strip(), known, field="adversary.attack") for part in spec.split("|")]
