"""A round's record on the host: flat, with names."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine import divergence, evaluation_step
from fedjax_core.training import metrics


def flat(
    record: PyTree,
    round: int,  # noqa: A002
    targets: str = "classes",
    own: Sequence[Mapping[str, Callable]] = (),
    y: np.ndarray | None = None,
) -> dict[str, float]:
    """What one round says of itself; what has no weight, as where no client came, is left out.

    Args:
      record: as the round's program gives it.
      round: from 1.
      targets: what rows are labelled with, one of `algorithm.TARGETS`.
      own: per group, what its task scores beside, by name; empty where the record has no such scores.
      y: the targets of the training rows, for what messages advise.

    Raises:
      Diverged: something was not finite, says what, and of which clients; or everybody was left out.
    """
    ids = np.asarray(record["ids"])
    divergence.refuse(ids, record["seen"], bool(record["turned"]), round, y)
    if "left_out" in record["server"]:
        divergence.raise_if_all_left_out(int(record["server"]["left_out"][0]), int(record["cohort"]), round, y)
    said: dict[str, float] = {"round": round, "cohort": int(record["cohort"])}
    for part in ("train", "server"):
        for name, pair in record[part].items():
            if weight := float(pair[1]):
                said[f"{part}/{name}"] = float(pair[0]) / weight
    if "loss" in record["train"]:
        said["train/examples"] = float(record["train"]["loss"][1])
    joined: dict[str, list] = {}
    behind = 0
    for g, group in enumerate(record.get("post_local", ())):
        here = ids[behind : behind + len(jax.tree.leaves(group)[0])] if group else ids[:0]
        divergence.scores(group, here, "its own test rows right after training", round, y)
        behind += len(here)
        for name, score in group.items():
            joined.setdefault(name, []).append(metrics.finalize_metrics(targets, score, own[g]))
    after = {name: jax.tree.map(lambda *x: np.concatenate(x), *found) for name, found in joined.items()}
    for name, found in after.items():
        said |= evaluation_step.statistics(f"test/{name}/post_local", found)
    return said
