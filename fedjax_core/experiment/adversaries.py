"""Who attacks, and with what: poisoned rows, and links that change what is sent."""

from fedjax_core import option_types
from fedjax_core.data import poisoning
from fedjax_core.experiment.resolve_config import Asked
from fedjax_core.uplink import Link, attacks


def attackers(asked: Asked, population: int) -> list[int]:
    """Ids of the clients that attack."""
    return [] if asked.adversary is None else attacks.attackers(population, asked.adversary.fraction, asked.data.seed).tolist()


def attacked(asked: Asked, population: int) -> tuple[list[poisoning.Poison], list[Link]]:
    """What attackers do to their rows, and to what they send."""
    found = [] if asked.adversary is None else asked.adversary.attacks
    ids = attackers(asked, population)
    made = [(one, one()) for one in found]
    for one, attack in made:
        if not callable(attack) and not isinstance(attack, poisoning.Poison | attacks.Crafted):
            wants = "a function (array, key) -> array, a fedjax_core.uplink.attacks.Crafted or a fedjax_core.data.poisoning.Poison"
            raise TypeError(f"attack {one.name!r} must return {wants}, it returned {option_types.short(attack)}")
    patterns = [one.spec for one, attack in made if isinstance(attack, poisoning.Poison) and attack.trigger is not None]
    if len(patterns) > 1:
        raise ValueError(f"adversary.attack has two backdoors, {' and '.join(patterns[:2])}; one can be scored, so give one")
    links = [attacks.link(one.name, attack, ids) for one, attack in made if not isinstance(attack, poisoning.Poison)]
    return [attack for _, attack in made if isinstance(attack, poisoning.Poison)], links
