"""A round's record on the host: flat, with names."""

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine import scores


class Diverged(FloatingPointError):
    """A client's training loss was not finite."""


def flat(record: PyTree, round: int) -> dict[str, float]:  # noqa: A002
    """What one round says of itself.

    Raises:
      Diverged: a client's training loss was not finite; says which client.
    """
    if record["diverged"] >= 0:
        raise Diverged(
            f"round {round}: the training loss of client {int(record['diverged'])} is not finite; try a lower learning rate, "
            "or clip gradients"
        )
    said: dict[str, float] = {"round": round, "cohort": int(record["cohort"])}
    for part in ("train", "server"):
        for name, pair in record[part].items():
            said[f"{part}/{name}"] = float(pair[0]) / max(float(pair[1]), 1e-30)
    if "loss" in record["train"]:
        said["train/examples"] = float(record["train"]["loss"][1])
    joined: dict[str, list] = {}
    for group in record.get("post_local", ()):
        for name, score in group.items():
            joined.setdefault(name, []).append(score)
    for name, found in joined.items():
        said |= scores.statistics(f"test/{name}/post_local", jax.tree.map(lambda *x: np.concatenate(x), *found))
    return said
