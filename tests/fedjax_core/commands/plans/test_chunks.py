"""The search for the largest chunk that fits."""

import pytest

from fedjax_core.commands.plans import chunks


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 15, 31, 32])
def test_the_largest_chunk_is_found(limit):
    seen = []

    def fits(chunk):
        seen.append(chunk)
        return chunk <= limit

    found = chunks.largest(fits, {32: limit >= 32}, 32, 10)
    assert (found.chunk, found.exact, found.tried) == (limit, True, len(seen))
    assert len(set(seen)) == len(seen) <= 8
    assert chunks.largest(fits, {4: limit >= 4}, 32, 10).chunk == limit


def test_a_search_for_a_chunk_ends():
    assert chunks.largest(lambda chunk: None, {32: False}, 32, 5) == chunks.Largest(0, 32, 1)
    stopped = chunks.largest(lambda chunk: chunk <= 11, {32: False}, 32, 2)
    assert (stopped.chunk, stopped.below, stopped.exact) == (6, 32, False)
