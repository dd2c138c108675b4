"""Beam search against one written here in loops over texts, on the networks of `test_decoder.py`; and
against transformers.
"""

import functools
import math
import warnings

import jax
import numpy as np
import pytest

from fedjax_core.language import load_pretrained
from fedjax_core.language.models import beam_search, decoder
from tests import reference
from tests.fedjax_core.language.models.test_decoder import CONFIGS, LENGTHS, PLAIN, built, naive, tensors, texts

LIMIT = 5
PROMPTS = [np.random.default_rng(row).integers(3, 23, n).tolist() for row, n in enumerate(LENGTHS)]  # those of `texts`


@functools.cache
def log_probabilities(text: tuple[int, ...]) -> np.ndarray:
    logits = naive(PLAIN, tensors(PLAIN), list(text))[-1]
    top = logits.max()
    return logits - top - math.log(np.exp(logits - top).sum())


def searched(prompt: list[int], beams: int, limit: int, stop: tuple[int, ...]) -> list[int]:
    """The best text, its stop left out."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        longer = [
            (score + float(p), [*text, token])
            for score, text in running
            for token, p in enumerate(log_probabilities((*prompt, *text)))
        ]
        longer.sort(key=lambda found: -found[0])
        longer = longer[: max(2, 1 + len(stop)) * beams]
        over = [found[1][-1] in stop or length == limit for found in longer]
        new = [(score / length, text) for (score, text), end in zip(longer[:beams], over, strict=False) if end]
        finished = sorted(finished + new, key=lambda found: -found[0])[:beams]
        running = [found for found, end in zip(longer, over, strict=True) if not end][:beams]
        if not running or (len(finished) == beams and running[0][0] / length <= finished[-1][0]):
            break
    best = finished[0][1]
    return best[:-1] if best[-1] in stop else best


@functools.cache
def generated(beams: int, stop: tuple[int, ...], side: str = "left") -> list[list[int]]:
    model, params, *_ = built("plain")
    write = jax.jit(lambda p, *text: model.generate(p, *text, limit=LIMIT, stop=stop, beams=beams))
    tokens, mask = (np.asarray(part) for part in write(params, *texts(side)))
    return [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]


def test_it_finds_what_the_loops_find():
    """Without a stop, and with three of them, of which some come early."""
    without = [searched(prompt, 3, LIMIT, ()) for prompt in PROMPTS]
    assert generated(3, ()) == without
    stop = (without[0][1], without[1][2], 2)
    found = [searched(prompt, 3, LIMIT, stop) for prompt in PROMPTS]
    assert generated(3, stop, "right") == found
    assert any(len(text) < LIMIT for text in found)


def test_it_is_better_than_greedy():
    """Of some prompt, by the texts' own probabilities."""
    score = lambda prompt, text: sum(log_probabilities((*prompt, *text[:i]))[text[i]] for i in range(len(text)))
    greedy = [searched(prompt, 1, LIMIT, ()) for prompt in PROMPTS]
    gains = [
        score(prompt, found) - score(prompt, one) for prompt, found, one in zip(PROMPTS, generated(3, ()), greedy, strict=True)
    ]
    assert min(gains) >= -1e-6
    assert max(gains) > 0.01


def test_what_it_cannot_do_is_named():
    with pytest.raises(ValueError, match="beams=0 must be at least 1"):
        built("plain").model.generate(built("plain").params, *texts("left"), limit=2, beams=0)
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        beam_search.beam_search(lambda *_: None, (), *texts("left"), limit=0, stop=(), beams=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scaled"])
def test_it_is_transformers_beam_search(name, tmp_path):
    """Four beams, as FedOA's released evaluation has; weights that the library drew, ends at
    several tokens.
    """
    library = reference.library()
    import torch

    own = {key: value for key, value in CONFIGS[name].items() if key not in ("model_type", "rope_theta", "rope_scaling")}
    scaling = dict(CONFIGS[name].get("rope_scaling", {"rope_type": "default"}))
    rope = {"rope_theta": 100.0, "rope_type": scaling.pop("type", scaling.get("rope_type"))} | scaling
    other = reference.saved(library.LlamaForCausalLM(library.LlamaConfig(**own, rope_parameters=rope)), tmp_path)
    model, params = load_pretrained.load(tmp_path)
    assert isinstance(model, decoder.LanguageModel)
    tokens, mask = texts("left")
    early = 0
    for stop in ((2,), (2, 5, 9, 11, 17)):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(mask).long()}
            options = {"num_beams": 4, "do_sample": False, "max_new_tokens": 12, "eos_token_id": list(stop), "pad_token_id": 0}
            wanted = other.generate(**text, **options).numpy()[:, tokens.shape[1] :]
        write = jax.jit(lambda p, *text, stop=stop: model.generate(p, *text, limit=12, stop=stop, beams=4))
        found, real = (np.asarray(part) for part in write(params, tokens, mask))
        for row in range(len(tokens)):
            ends = [i for i, token in enumerate(wanted[row]) if token in stop]
            text = wanted[row].tolist()[: ends[0] if ends else None]
            assert found[row][real[row]].tolist() == text
            early += bool(ends)
    assert early
