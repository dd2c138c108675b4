"""What a round says of itself, as numbers with names."""

import jax.numpy as jnp
import numpy as np

from fedjax_core.engine.divergence import Seen
from fedjax_core.engine.record import flat
from fedjax_core.reporting.summary import summarise

NOBODY = {
    "ids": np.array([-1, -1]),
    "seen": Seen(jnp.zeros(2, jnp.int32), jnp.zeros((2, 1))),
    "turned": np.False_,
    "cohort": np.int32(0),
    "train": {"loss": (np.float32(0), np.float32(0)), "accuracy": (np.float32(0), np.float32(0))},
    "server": {"clipped": (np.float32(0), np.float32(0)), "left_out": (np.float32(0), np.float32(1))},
}
SOME = NOBODY | {"ids": np.array([4, -1]), "cohort": np.int32(1), "train": {"loss": (np.float32(3), np.float32(6))}}


def test_a_round_that_nobody_comes_to_has_no_means():
    record = flat(NOBODY, 2)
    assert record == {"round": 2, "cohort": 0, "train/examples": 0.0, "server/left_out": 0.0}
    entry = summarise([flat(SOME, 1), record])["metrics"]["train/loss"]
    assert (entry["last"], entry["last_round"], entry["mean_last_k"]) == (0.5, 1, 0.5)


def test_sums_are_divided_by_their_weights():
    assert flat(SOME, 1) == {"round": 1, "cohort": 1, "train/loss": 0.5, "train/examples": 6.0, "server/left_out": 0.0}
