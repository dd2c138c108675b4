"""Beam search with a cache of keys and values.

It is transformers' `generate(num_beams=W, do_sample=False)` with its defaults (length penalty 1, no
early stopping): a finished text scores the sum of its tokens' log-probabilities, the stop's too,
over their number.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.transformer import is_stop, read_prompts

NEVER = -1e9  # the score of a beam that is none


def beam_search(
    step: Callable[..., tuple[Array, PyTree]],
    cache: PyTree,
    tokens: Array,
    mask: Array,
    *,
    limit: int,
    stop: Sequence[int],
    beams: int,
) -> tuple[Array, Array]:
    """Decodes a batch of prompts by beam search; returns the best text of each.

    Every step takes the best continuations of all beams. Those that end and are among the best W
    are kept as finished; the best W of the others go on. A prompt is done when none of its beams,
    were it to end now, would beat the worst of W finished texts; at the limit all end.

    Args:
      step: as `transformer.greedy_decode` takes it, for B and for B * W examples.
      cache: of T + limit places for B examples; leaves [L, B, ...].
      tokens: [B, T], the prompts.
      mask: [B, T], which of their tokens are real; padding may be on either side.
      limit: the most tokens to be written.
      stop: ids that end a text.
      beams: W; 1 is not quite greedy decoding, for it looks at the second best where the best ends
        the text.

    Returns:
      (tokens [B, limit], mask [B, limit]): the mask has what was written before the stop.
    """
    for name, value in (("limit", limit), ("beams", beams)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    (b, t), w = tokens.shape, beams
    rows = lambda x: jnp.repeat(x, w, 0)
    logits, cache, is_visible = read_prompts(step, cache, tokens, mask, limit)
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, w, 1), cache)
    is_visible, length = rows(is_visible), rows(jnp.sum(mask, 1, dtype=jnp.int32))
    vocabulary = logits.shape[-1]
    most = min(max(2, 1 + len(stop)) * w, w * vocabulary)  # continuations to look at: enough that W of them go on

    def chosen(i, logits, running, out, finished):
        """Adds one token: chooses the beams that go on with their parents, and the finished texts."""
        texts, scores, lengths, is_open = finished
        total = running[..., None] + jax.nn.log_softmax(logits.reshape(b, w, vocabulary).astype(jnp.float32))
        values, places = jax.lax.top_k(total.reshape(b, -1), most)
        parents, token = places // vocabulary, (places % vocabulary).astype(jnp.int32)
        written = jnp.take_along_axis(out, parents[..., None], 1).at[:, :, i].set(token)
        stops = is_stop(token, stop)
        over = stops | (i + 1 == limit)
        counts = over & (jnp.arange(most)[None] < w) & (values > NEVER / 2) & is_open[:, None]
        every = jnp.concatenate([scores, jnp.where(counts, values / (i + 1), NEVER)], 1)
        scores, best = jax.lax.top_k(every, w)
        pick = lambda old, new: jnp.take_along_axis(jnp.concatenate([old, new], 1), best, 1)
        lengths = pick(lengths, jnp.where(stops, i, i + 1))
        texts = jnp.take_along_axis(jnp.concatenate([texts, written], 1), best[..., None], 1)
        running, best = jax.lax.top_k(jnp.where(over, NEVER, values), w)
        onward = lambda x: jnp.take_along_axis(x, best, 1)
        out = jnp.take_along_axis(written, best[..., None], 1)
        is_open = is_open & ((running[:, 0] / (i + 1) > scores[:, -1]) | (scores[:, -1] <= NEVER / 2))
        return onward(token), onward(parents), running, out, (texts, scores, lengths, is_open)

    running = jnp.where(jnp.arange(w) == 0, 0.0, NEVER)[None] * jnp.ones((b, 1))
    nothing = jnp.zeros((b, w, limit), jnp.int32)
    finished = nothing, jnp.full((b, w), NEVER), jnp.zeros((b, w), jnp.int32), jnp.ones(b, bool)
    token, _, running, out, finished = chosen(0, rows(logits), running, nothing, finished)

    def going(carry):
        i, *_, finished, _, _ = carry
        return (i < limit) & jnp.any(finished[3])

    def body(carry):
        i, token, running, out, finished, is_visible, cache = carry
        is_visible = jax.lax.dynamic_update_slice_in_dim(is_visible, jnp.ones((b * w, 1), bool), t + i - 1, 1)
        place = (length + i - 1)[:, None]
        logits, cache = step(cache, token.reshape(-1, 1), place, t + i - 1, is_visible[:, None], jnp.zeros(b * w, jnp.int32))
        token, parents, running, out, finished = chosen(i, logits, running, out, finished)
        moved = (parents + w * jnp.arange(b)[:, None]).reshape(-1)
        cache = jax.tree.map(lambda leaf: jnp.take(leaf, moved, 1), cache)
        return i + 1, token, running, out, finished, is_visible, cache

    carry = jax.lax.while_loop(going, body, (jnp.int32(1), token, running, out, finished, is_visible, cache))
    texts, _, lengths, _ = carry[4]
    return texts[:, 0], jnp.arange(limit)[None] < lengths[:, :1]
