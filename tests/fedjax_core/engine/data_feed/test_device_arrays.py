"""Index tables against lists, in and out of programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.engine.data_feed.device_arrays import make_index_table


def test_a_clients_list_is_filled_up_with_row_zero():
    table = make_index_table(RaggedIndex.from_lists([[4, 5, 6], [], [2]]))
    padded = [[4, 5, 6], [0, 0, 0], [2, 0, 0]]
    assert [np.asarray(table[i]).tolist() for i in range(3)] == padded
    assert jax.jit(lambda t, i: t[i])(table, jnp.int32(2)).tolist() == padded[2]
    assert jax.vmap(lambda i: table[i])(jnp.arange(3)).tolist() == padded
    longer = dataclasses.replace(table, most=4, filler=1, rows=np.pad(table.rows, (0, 1)))
    assert np.asarray(longer[2]).tolist() == [2, 1, 1, 1]


def test_nobody_has_any():
    table = make_index_table(RaggedIndex.from_lists([[], []]))
    assert np.asarray(table[1]).tolist() == [0]
