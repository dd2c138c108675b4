"""Attacks: what attackers send in place of their deltas or class means.

    config.adversary.attack = "alie"
    config.adversary.attack = "backdoor(target=1) | scaled(factor=10.0)"  # poisoned, then scaled
    config.adversary.fraction = 0.2  # of the clients, the same in all rounds

Attackers train like other clients; what they send is changed afterwards. Attacks of `CRAFTED` read
the uplinks of all other clients and change the cohort's stack; their own uplinks are not
compressed. Poisoned examples are in `data/poisoning.py`. The attackers are drawn with the seed of
the data, and their ids are in run.json.

A user's attack is a function in a module or file, `path/to/file.py:name(option=...)`, or an entry
point of the group `fedjax_core.attacks`. It takes options and returns (array, key) -> array of the
same shape, in JAX, or a `Crafted`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Array
from fedjax_core.option_types import Positive, one_of
from fedjax_core.registry import ResolvedSpec
from fedjax_core.uplink.layout import check_shape, masked_mean
from fedjax_core.uplink.transform import ClientContext, TransformOutput, UplinkTransform, UplinkValue

Attack = Callable[[Array, Array], Array]
_NUMBER = option_types.Limit("a number", lambda v: abs(v) < option_types.LARGEST)
Factor = Annotated[float, _NUMBER]


class Crafted(NamedTuple):
    """An attack that reads the uplinks of the whole cohort.

    Attributes:
      vector: (vectors [C, D], honest [C], attacking [C], key) -> [D], what every attacker sends.
        The masks `honest` and `attacking` select the clients that count.
    """

    vector: Callable[[Array, Array, Array, Array], Array]


def sign_flip(scale: Positive = 1.0) -> Attack:
    """The negated delta, times `scale`: Li, Xu, Chen, Giannakis, Ling. RSA. AAAI 2019."""
    return lambda x, key: -scale * x


def scaled(factor: Factor = 10.0) -> Attack:
    """`factor` times the delta, which replaces the mean.

    Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How To Backdoor Federated Learning. AISTATS 2020, Eq.
    3.
    """
    return lambda x, key: factor * x


def noise(deviation: Positive = 1.0) -> Attack:
    """Gaussian noise instead of the delta."""
    return lambda x, key: deviation * jax.random.normal(key, x.shape, x.dtype)


def not_finite(value: Annotated[str, one_of("nan", "inf")] = "nan") -> Attack:
    """NaN or Inf in every entry."""
    return lambda x, key: jnp.full_like(x, float(value))


def alie(z: Annotated[float | None, _NUMBER] = None) -> Crafted:
    """Mean of the honest minus z standard deviations: "a little is enough".

    Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning.
    NeurIPS 2019, Algorithm 3.

    Args:
      z: None: the largest with which, of n clients and m attackers, floor(n / 2 + 1) - m honest
        clients are still further away; see `largest_z`. With few attackers that is 0 or less, and
        the attack does nothing: 0 for n = 10 and m = 2.
    """

    def vector(vectors, honest, attacking, key):
        del key
        mean = masked_mean(vectors, honest)
        deviation = jnp.sqrt(masked_mean((vectors - mean[None]) ** 2, honest))
        if z is not None:
            return mean - z * deviation
        return mean - largest_z(jnp.sum(honest | attacking), jnp.sum(attacking)) * deviation

    return Crafted(vector)


def largest_z(n: Array | int, m: Array | int) -> Array:
    """Returns the default z of `alie` for n clients of which m attack.

    Example:
      >>> abs(round(float(largest_z(10, 2)), 4)), round(float(largest_z(50, 24)), 2)
      (0.0, 1.43)
    """
    supporters = n // 2 + 1 - m
    quantile = (n - m - supporters) / jnp.maximum(n - m, 1)
    return jax.scipy.special.ndtri(jnp.clip(quantile, 1e-3, 1 - 1e-3))


def inner_product(epsilon: Positive = 0.5) -> Crafted:
    """`-epsilon` times the mean of the honest.

    Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation. UAI 2019.
    """
    return Crafted(lambda vectors, honest, attacking, key: -epsilon * masked_mean(vectors, honest))


def mimic() -> Crafted:
    """The uplink of one honest client, that with the lowest id.

    Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing.
    ICLR 2022, without its search for the client.
    """

    def vector(vectors, honest, attacking, key):
        del attacking, key
        return jnp.where(jnp.any(honest), vectors[jnp.argmax(honest)], 0)

    return Crafted(vector)


SENT: dict[str, Callable[..., Any]] = {
    "sign_flip": sign_flip,
    "scaled": scaled,
    "noise": noise,
    "not_finite": not_finite,
}
CRAFTED: dict[str, Callable[..., Any]] = {"alie": alie, "inner_product": inner_product, "mimic": mimic}


def draw_attackers(population: int, fraction: float, seed: int) -> np.ndarray:
    """Returns the sorted ids of the attackers: a rounded `fraction` of all clients, at least one.

    Example:
      >>> draw_attackers(10, 0.2, seed=0).tolist()
      [0, 2]
    """
    number = max(1, round(fraction * population))
    rng = np.random.default_rng([seed, 0x6164])
    return np.sort(rng.permutation(population)[:number]).astype(np.int32)


def make_attack(name: str, attack: Attack | Crafted, ids: Sequence[int] | np.ndarray) -> UplinkTransform:
    """Returns the transform of an attack by the clients `ids`."""
    attacker_ids = np.sort(np.asarray(ids, np.int32))

    def is_attacker(client_id: Array) -> Array:
        index = jnp.searchsorted(jnp.asarray(attacker_ids), client_id)
        return jnp.asarray(attacker_ids)[jnp.minimum(index, len(attacker_ids) - 1)] == client_id

    if isinstance(attack, Crafted):

        def attack_stack(vectors: Array, mask: Array, client_ids: Array, key: Array) -> Array:
            attacking = mask & jax.vmap(is_attacker)(client_ids)
            order = jnp.argsort(client_ids)  # independent of the cohort's order, which is the plan's
            crafted = attack.vector(vectors[order], (mask & ~attacking)[order], attacking[order], key)
            crafted = check_shape(crafted, vectors.shape[1:], f"attack {name!r}")
            return jnp.where(attacking[:, None], crafted[None], vectors)

        return UplinkTransform("attack", name, attack_stack=attack_stack)

    def send(value: UplinkValue, context: ClientContext, client_state: Any) -> TransformOutput:
        del client_state
        attacking = is_attacker(context.id)
        leaves, structure = jax.tree.flatten((value.deltas, value.class_values))
        keys = jax.random.split(context.key, max(1, len(leaves)))
        changed = []
        for leaf, key in zip(leaves, keys, strict=False):
            attacked = check_shape(attack(leaf, key), leaf.shape, f"attack {name!r}")
            changed.append(jnp.where(attacking, attacked.astype(leaf.dtype), leaf))
        deltas, class_values = structure.unflatten(changed)
        return TransformOutput(value._replace(deltas=deltas).with_class_values(class_values))

    return UplinkTransform("attack", name, send=send)


def find_attacks(spec: str, poisons: dict[str, Callable[..., Any]]) -> list[ResolvedSpec]:
    """Returns the attacks of a config in their order, with validated options.

    Args:
      spec: "name(option=literal, ...) | name | ...".
      poisons: attacks that change data, by name.
    """
    known = SENT | CRAFTED | poisons
    return [registry.resolve_spec("attack", part.strip(), known, field="adversary.attack") for part in spec.split("|")]
