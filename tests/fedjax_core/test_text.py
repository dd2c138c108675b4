"""An encoder that scores options inside a federation, a language model's loss, decoding of many prompts, scores of texts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import lora, parallel, simulation, text, training
from fedjax_core.algorithm import Net
from fedjax_core.data import federated, instructions
from fedjax_core.nn import bert, llama
from fedjax_core.task import Model, Task
from methods.fedavg import fedavg
from tests.fedjax_core.data.test_instructions import END, Letters, divided
from tests.fedjax_core.nn.test_bert import CONFIG as BERT
from tests.fedjax_core.nn.test_llama import PLAIN as LLAMA

ENCODER = bert.build(BERT | {"vocab_size": 128, "max_position_embeddings": 48, "num_hidden_layers": 1, "initializer_range": 0.3})
WRITER = llama.build(LLAMA | {"vocab_size": 128, "num_hidden_layers": 1, "max_position_embeddings": 256, "initializer_range": 0.3})


embed = jax.jit(functools.partial(text.embed, ENCODER))


@functools.cache
def frozen() -> tuple[Model, Net, federated.FederatedData]:
    data, options = instructions.to_choose(divided(), Letters(), limit=24, multiple=8)
    base = jax.jit(ENCODER.init)(jax.random.key(0))
    return text.scoring(ENCODER, len(options["tokens"])), text.with_options(ENCODER, base, batch=4, **options), data


def unit(vector):
    return vector / np.sqrt(np.sum(vector**2))


def test_an_embedding_is_the_mean_of_the_real_tokens():
    tokens = np.array([[5, 6, 7, 0], [0, 0, 8, 9], [1, 2, 3, 4]], np.int32)
    mask = np.array([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], bool)
    base = frozen()[1].params
    found = np.asarray(embed(base, tokens, mask))
    hidden = np.asarray(jax.jit(ENCODER.hidden)(base, tokens, mask))
    for i in range(2):
        np.testing.assert_allclose(found[i], unit(np.mean([hidden[i, t] for t in range(4) if mask[i, t]], 0)), atol=1e-5)
    assert not found[2].any()


def test_many_embeddings_are_those_of_each():
    rng = np.random.default_rng(0)
    tokens, mask = instructions.rectangle([rng.integers(1, 128, n) for n in (3, 20, 0, 9, 1, 13, 2)], 4, "right")
    base = frozen()[1].params
    found = text.embed_all(ENCODER, base, tokens, mask, batch=3, multiple=8)
    np.testing.assert_allclose(found, embed(base, tokens, mask), atol=1e-5)


def test_scores_are_cosines_with_the_options_of_the_row():
    model, net, data = frozen()
    rows = np.array([0, 13, 25, 31])
    x = jax.tree.map(lambda leaf: leaf[rows], data.train.x)
    outputs, stats = jax.jit(model.apply)(net, x)
    assert stats == net.stats == {}
    questions = np.asarray(embed(net.params, x["tokens"], x["mask"]))
    for row in range(4):
        for k, place in enumerate(x["options"][row]):
            wanted = -1e30 if place < 0 else unit(questions[row]) @ unit(np.asarray(net.params["head"]["options"][place])) / 0.05
            np.testing.assert_allclose(outputs["logits"][row, k], wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(outputs["features"], questions, atol=1e-5)
    assert (x["options"] < 0).any()
    with pytest.raises(ValueError, match="the options differ between examples"):
        model.head(net, outputs["features"])
    with pytest.raises(ValueError, match="temperature=0 must be positive"):
        text.scoring(ENCODER, 3, temperature=0)


def test_rows_of_padding_count_for_nothing():
    model, net, data = frozen()
    loss = training.cross_entropy(model)
    take = lambda rows, mask: training.take(data.train, np.array(rows), np.array(mask))
    slope = jax.jit(jax.grad(lambda params, batch: loss(Net(params, {}), batch, jax.random.key(0))[0]))
    wide, narrow = (
        slope(net.params, take([3, 9, 4], [True, True, False])),
        slope(net.params, take([3, 9, 9], [True, True, False])),
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), wide, narrow)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(wide))


def fitted(task: Task, data: federated.FederatedData, rate: float, rounds: int):
    build = functools.partial(fedavg, optimizer=training.sgd(rate), epochs=2, batch=4)
    sim = simulation.Simulation(simulation.one_group(build, task, data.clients), data, plan=parallel.Plan(2, 1))
    state = sim.init(0)
    state, records = sim.rounds(state, rounds)
    return sim, state, [record["train/loss"] for record in records]


def test_a_federation_trains_an_adapter_of_it():
    """The base stays where it is; the options' embeddings too, though a network's head."""
    model, arrays, data = frozen()
    task = lora.adapted(model, arrays, lora.lora(rank=2, dropout=0.0), classes=data.classes, population=data.clients)
    sim, state, losses = fitted(task, data, 0.02, 4)
    assert sim.shapes.up == 2 * 2 * (12 * 2) * 4
    assert losses[-1] < 0.95 * losses[0]
    assert 0 <= sim.evaluate(state)["test/global/accuracy"] <= 1


@functools.cache
def writer():
    """(params, hidden states and logits of texts [T])."""

    def run(params, tokens, mask):
        hidden = WRITER.hidden(params, tokens, mask)
        return hidden, WRITER.logits(params, hidden)

    def of(text):
        tokens, mask = np.zeros((1, 256), np.int32), np.arange(256)[None] < len(text)
        tokens[0, : len(text)] = text
        return [np.asarray(part)[0, : len(text)] for part in jitted(params, tokens, mask)]

    params, jitted = jax.jit(WRITER.init)(jax.random.key(0)), jax.jit(run)
    return params, of


def test_the_loss_is_on_the_answers_and_their_ends():
    (params, of), data = writer(), instructions.to_write(divided(), Letters(), 200, END)
    rows, there = np.array([2, 29, 33]), np.array([True, True, False])
    batch = training.take(data.train, rows, there)
    model, net = text.writing(WRITER), Net(params, {})
    found = jax.jit(lambda net, x: model.apply(net, x, mask=batch.mask)[0])(net, batch.x)
    tokens, mask, answer = (np.asarray(batch.x[name]) for name in ("tokens", "mask", "answer"))
    total, count = 0.0, 0
    for row in range(2):
        real = tokens[row][mask[row]]
        hidden, logits = of(real)
        n = answer[row].sum()
        for t in range(len(real) - n, len(real)):
            total += np.log(np.exp(logits[t - 1]).sum()) - logits[t - 1, real[t]]
            count += 1
        assert real[-1] == END
        np.testing.assert_allclose(found["features"][row], hidden[-1], atol=1e-4)
    loss = lambda mask: training.cross_entropy(model)(net, batch._replace(mask=mask), jax.random.key(0))[0]
    np.testing.assert_allclose(jax.jit(loss)(batch.mask), total / count, rtol=1e-4)
    assert float(jax.jit(loss)(jnp.zeros(3, bool))) == 0
    last = model.head(net, found["features"][:1])
    np.testing.assert_allclose(last[0], of(tokens[0][mask[0]])[1][-1], atol=1e-4)


def test_a_federation_trains_an_adapter_of_a_writer():
    data = instructions.to_write(divided(), Letters(), 144, END, long="cut")
    kind = lora.lora(rank=2, dropout=0.1)
    net = Net(writer()[0], {})
    task = lora.adapted(text.writing(WRITER), net, kind, classes=data.classes, population=data.clients)
    sim, state, losses = fitted(task, data, 0.1, 3)
    assert sim.shapes.up == ((16 * 2 + 2 * 16) + (16 * 2 + 2 * 8)) * 4
    assert losses[-1] < losses[0]
    assert sim.evaluate(state)["test/global/loss"] > 0


def test_seven_billion_numbers_are_held_once():
    """A step on LLaMA-7B, compiled for shapes alone: what it needs beside the weights is a small part of them."""
    seven = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    model = text.writing(llama.build({"model_type": "llama", "num_attention_heads": 32} | seven, remat=True))
    base = jax.eval_shape(model.init, jax.random.key(0)).params
    own = lora.adapter(lora.lora(), base)
    trained = jax.eval_shape(own.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) == 4_194_304
    shape = jax.ShapeDtypeStruct
    x = {"tokens": shape((4, 512), jnp.int32), "mask": shape((4, 512), bool), "answer": shape((4, 16), bool)}

    def loss(trained, base, x):
        batch = training.Batch(x, jnp.zeros(4, jnp.int32), jnp.ones(4, bool))
        key = jax.random.key(0)
        return training.cross_entropy(model)(Net(own.wrap(base, trained, key), {}), batch, key)[0]

    memory = jax.jit(jax.grad(loss)).lower(trained, base, x).compile().memory_analysis()
    assert memory is not None
    assert 26.9e9 < memory.argument_size_in_bytes < 27e9
    assert memory.temp_size_in_bytes < 4e9  # the inputs of 32 layers, 1.1e9, and the inside of one
    assert memory.output_size_in_bytes < 17e6


def test_prompts_are_completed_in_their_order():
    """In batches of like lengths, each as it is alone."""
    params, of = writer()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, 128, n).tolist() for n in (3, 11, 5, 9, 2)]
    widths = []

    @jax.jit
    def generate(tokens, mask):
        widths.append(tokens.shape)
        return WRITER.generate(params, tokens, mask, limit=4, stop=tuple(range(64)))

    found = text.complete(generate, prompts, batch=2, multiple=4, widest=11)
    assert widths == [(2, 11), (2, 8), (2, 4)]
    for prompt, written in zip(prompts, found, strict=True):
        tail: list[int] = []
        while len(tail) < 4:
            token = int(np.argmax(of(prompt + tail)[1][-1]))
            if token < 64:
                break
            tail.append(token)
        assert written == tail
    assert len({len(row) for row in found}) > 1
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        text.complete(generate, [[1], []])
    with pytest.raises(ValueError, match="a prompt has 11 tokens, widest=10"):
        text.complete(generate, prompts, widest=10)


def test_rouge_is_the_f_measure_of_words():
    pytest.importorskip("rouge_score", reason="no rouge-score: pip install -e '.[text]'")
    pairs = {
        ("yes", "Yes."): 1.0,
        ("it is not possible", "not possible to tell"): 2 * (2 / 4) * (2 / 4) / (2 / 4 + 2 / 4),
        ("a a b", "a b c d"): 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4),
        ("", "no"): 0.0,
        ("no", ""): 0.0,
        ("running", "run"): 0.0,
    }
    found = text.rouge1(*zip(*pairs, strict=True))
    np.testing.assert_allclose(found, list(pairs.values()))


def test_exact_answers():
    assert text.exact(["Yes ", "no", "a\n b"], ["yes", "yes", "a b"]) == [True, False, True]
