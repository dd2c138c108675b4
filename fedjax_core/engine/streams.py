"""Streams of random draws: each has keys of its own, in one round or in all."""

import jax

from fedjax_core.algorithm import Array

STREAMS = {
    "init": 0,
    "prepare": 1,
    "cohort": 2,
    "dropout": 3,
    "client": 4,
    "server": 5,
    "personalise": 6,
    "unseen": 7,
    "failure": 8,
}


def stream_key(key_data: Array, stream: str, round_num: Array | int | None = None) -> Array:
    """Returns the key of one stream of draws, in one round or (None) in all."""
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), STREAMS[stream])
    return key if round_num is None else jax.random.fold_in(key, round_num)
