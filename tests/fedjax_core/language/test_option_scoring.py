"""An encoder that scores options, a writer of answers, batches cut to their texts, and decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import Net
from fedjax_core.data import federated_data
from fedjax_core.engine import client_loop, simulator
from fedjax_core.language import generation, instruction_data, length_bucketing, option_scoring
from fedjax_core.language.models import bert, decoder
from fedjax_core.task import Model, Task
from fedjax_core.training import adapters, local_training
from methods.fedavg import fedavg
from tests.fedjax_core.language.models.test_bert import CONFIG as BERT
from tests.fedjax_core.language.models.test_decoder import PLAIN as LLAMA
from tests.fedjax_core.language.test_instruction_data import END, Letters, divided

ENCODER = bert.build(BERT | {"vocab_size": 128, "max_position_embeddings": 48, "num_hidden_layers": 1, "initializer_range": 0.3})
WRITER = decoder.build(
    LLAMA | {"vocab_size": 128, "num_hidden_layers": 1, "max_position_embeddings": 256, "initializer_range": 0.3}
)


embed = jax.jit(functools.partial(option_scoring.embed_batch, ENCODER))


@functools.cache
def frozen() -> tuple[Model, Net, federated_data.FederatedData]:
    data, options = instruction_data.build_option_data(divided(), Letters(), limit=24, multiple=8, long="cut")
    base = jax.jit(ENCODER.init)(jax.random.key(0))
    return (
        option_scoring.make_option_scorer(ENCODER, len(options["tokens"])),
        option_scoring.add_option_embeddings(ENCODER, base, batch=4, **options),
        data,
    )


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
    tokens, mask = instruction_data.pad_sequences([rng.integers(1, 128, n) for n in (3, 20, 0, 9, 1, 13, 2)], 4, "right")
    base = frozen()[1].params
    found = option_scoring.embed_texts(ENCODER, base, tokens, mask, batch=3, multiple=8)
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
        option_scoring.make_option_scorer(ENCODER, 3, temperature=0)


def test_rows_of_padding_count_for_nothing():
    model, net, data = frozen()
    loss = local_training.model_loss(model)
    take = lambda rows, mask: local_training.gather_batch(data.train, np.array(rows), np.array(mask))
    slope = jax.jit(jax.grad(lambda params, batch: loss(Net(params, {}), batch, jax.random.key(0))[0]))
    wide, narrow = (
        slope(net.params, take([3, 9, 4], [True, True, False])),
        slope(net.params, take([3, 9, 9], [True, True, False])),
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), wide, narrow)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(wide))


def fitted(task: Task, data: federated_data.FederatedData, rate: float, rounds: int):
    build = functools.partial(fedavg, optimizer=local_training.sgd(rate), epochs=2, batch=4)
    sim = simulator.Simulator(
        simulator.build_spec(simulator.one_group(build, task, data.clients), data, plan=client_loop.Plan(2, 1))
    )
    state = sim.init(0)
    state, records = sim.run_rounds(state, rounds)
    return sim, state, [record["train/loss"] for record in records]


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
    (params, of), data = writer(), instruction_data.build_generation_data(divided(), Letters(), 200, END)
    rows, there = np.array([2, 29, 33]), np.array([True, True, False])
    batch = local_training.gather_batch(data.train, rows, there)
    model, net = generation.make_writer(WRITER), Net(params, {})
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
    loss = lambda mask: local_training.model_loss(model)(net, batch._replace(mask=mask), jax.random.key(0))[0]
    np.testing.assert_allclose(jax.jit(loss)(batch.mask), total / count, rtol=1e-4)
    assert float(jax.jit(loss)(jnp.zeros(3, bool))) == 0
    last = model.head(net, found["features"][:1])
    np.testing.assert_allclose(last[0], of(tokens[0][mask[0]])[1][-1], atol=1e-4)


def test_seven_billion_numbers_are_held_once():
    """A step on LLaMA-7B, compiled for shapes alone: what it needs beside the weights is a small
    part of them.
    """
    seven = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    model = generation.make_writer(decoder.build({"model_type": "llama", "num_attention_heads": 32} | seven, remat=True))
    base = jax.eval_shape(model.init, jax.random.key(0)).params
    own = adapters.make_adapter(adapters.lora(), base)
    trained = jax.eval_shape(own.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) == 4_194_304
    shape = jax.ShapeDtypeStruct
    x = {"tokens": shape((4, 512), jnp.int32), "mask": shape((4, 512), bool), "answer": shape((4, 16), bool)}

    def loss(trained, base, x):
        batch = local_training.Batch(x, jnp.zeros(4, jnp.int32), jnp.ones(4, bool))
        key = jax.random.key(0)
        return local_training.model_loss(model)(Net(own.wrap(base, trained, key), {}), batch, key)[0]

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

    found = generation.generate_completions(generate, prompts, batch=2, multiple=4, widest=11)
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
        generation.generate_completions(generate, [[1], []])
    with pytest.raises(ValueError, match="a prompt has 11 tokens, widest=10"):
        generation.generate_completions(generate, prompts, widest=10)


def adapted(model: Model, arrays: Net, dropout: float = 0.1) -> Task:
    return adapters.adapter_task(model, arrays, adapters.lora(rank=2, dropout=dropout), classes=3, population=4)


def kinds():
    """(model, arrays, data, side) of an encoder and of a writer."""
    data = instruction_data.build_generation_data(divided(), Letters(), 144, END, long="cut")
    return {"encoder": (*frozen(), "right"), "writer": (generation.make_writer(WRITER), Net(writer()[0], {}), data, "left")}


@pytest.mark.parametrize(("kind", "widths"), [("encoder", (16,)), ("writer", (128,))])
def test_batches_are_cut_to_their_longest_text(kind, widths):
    """Gradients of clients that train at once, with dropout, are those of whole batches; so are
    outputs.
    """
    model, arrays, data, side = kinds()[kind]
    examples, seen = jax.tree.map(jnp.asarray, data.train), []
    spy = model._replace(
        apply=lambda net, x, *args, **more: seen.append(x["tokens"].shape[1]) or model.apply(net, x, *args, **more)
    )
    plain, cut = adapted(model, arrays), adapted(length_bucketing.with_length_buckets(spy, widths, side), arrays)

    def gradient(task):
        def of(net, rows, mask, key, frozen):
            loss = local_training.model_loss(task.network(frozen))
            return jax.value_and_grad(lambda net: loss(net, local_training.gather_batch(examples, rows, mask), key)[0])(net)

        return jax.jit(jax.vmap(of, in_axes=(0, 0, 0, 0, None)))

    lengths = data.train.x["mask"].sum(1)
    short, full = np.argsort(lengths)[:2], int(np.argmax(lengths))
    rows = np.stack([[*short, full], [*short, short[0]]])
    nets = jax.vmap(plain.model.init)(jax.random.split(jax.random.key(0), 2))
    nets = jax.tree.map(lambda leaf: leaf + 0.1, nets)
    keys, some, whole = jax.random.split(jax.random.key(1), 2), gradient(cut), gradient(plain)
    for mask in ([[True, True, False], [True, True, True]], [[True, True, True], [True, False, False]]):
        found, wanted = (of(nets, rows, np.array(mask), keys, arrays) for of in (some, whole))
        assert float(jnp.abs(wanted[1].params["adapter"]["layers"]["attention"]["query"]["a"]).max()) > 0.01
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), found, wanted)
    assert sorted(set(seen)) == [*widths, data.train.x["tokens"].shape[1]]
    assert some.lower(nets, rows, np.ones((2, 3), bool), keys, arrays).as_text().count("stablehlo.case") == 2, "one for all clients"


@pytest.mark.parametrize(("kind", "width"), [("encoder", 16), ("writer", 128)])
def test_the_narrow_branch_is_taken(kind, width):
    """By a batch whose real examples fit; also where clients of several are cut at once, in other
    programs and for other devices.
    """
    model, arrays, data, side = kinds()[kind]
    wide, answer = data.train.x["tokens"].shape[1], data.train.x.get("answer", np.zeros((1, 0))).shape[1]
    spy = model._replace(apply=lambda net, x, *args, **more: ({"width": jnp.int32(x["tokens"].shape[1])}, {}))
    cut = length_bucketing.with_length_buckets(spy, (answer, width, wide, 999), side)
    lengths = data.train.x["mask"].sum(1)
    fits, over = int(np.flatnonzero(lengths == lengths[lengths <= width].max())[0]), int(np.argmax(lengths))
    x = lambda *rows: jax.tree.map(lambda leaf: jnp.asarray(leaf[np.array(rows)]), data.train.x)
    run = jax.jit(lambda x, mask: cut.apply(arrays, x, mask=mask)[0]["width"])
    assert run(x(fits, over), jnp.array([True, False])) == width
    assert run(x(fits, over), jnp.array([True, True])) == wide
    assert run(x(fits, over), jnp.array([False, False])) == width
    many = jax.jit(jax.vmap(lambda x, mask: cut.apply(arrays, x, mask=mask)[0]["width"]))
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), x(fits, over), x(fits, fits))
    masks = jnp.array([[True, False], [True, True]])
    assert many(both, masks).tolist() == [width, width]
    assert many(both, ~masks | masks).tolist() == [wide, wide], "a width is common to those at once"
    exported = jax.export.export(many, platforms=("cpu", "cuda", "tpu"))(both, masks)
    assert "stablehlo.case" in exported.mlir_module()
    assert length_bucketing.with_length_buckets(model, ()) is model


def test_widths_are_those_that_save_work():
    alike, short = np.full(100, 120), np.full(100, 40)
    assert length_bucketing.choose_widths([alike, alike], 128) == ()
    assert length_bucketing.choose_widths([alike, short], 128) == (48,)
    assert length_bucketing.choose_widths([alike, short - 20, np.full(100, 70)], 128, most=3) == (32, 80)
    assert length_bucketing.choose_widths([alike, short, np.full(100, 70)], 128) == (80,)
    assert length_bucketing.choose_widths([alike, np.array([], int)], 128) == ()
    assert length_bucketing.choose_widths([np.array([30] * 70 + [120] * 30)] * 2, 128) == (), "nearly every batch has a long text"
    assert length_bucketing.choose_widths([short], 16) == length_bucketing.choose_widths([], 128) == ()
    rng = np.random.default_rng(0)
    lengths = [rng.integers(20, 60, 100), rng.integers(100, 380, 100), rng.integers(20, 100, 50)]

    def work(chosen):
        """Tokens that are taken, as they come."""
        total = 0.0
        for mine in lengths:
            for _ in range(60):
                longest = rng.choice(mine, 16).max()
                total += len(mine) * min(width for width in (*chosen, 384) if width >= longest)
        return total

    assert work(length_bucketing.choose_widths(lengths, 384)) < 1.03 * min(
        work(other) for other in ((), (64,), (96,), (128,), (256,))
    )
    assert (
        work(length_bucketing.choose_widths(lengths, 384, most=3))
        < min(work(other) for other in ((64, 128), (96, 256), (64, 96))) / length_bucketing.MAX_RELATIVE_WORK
    )


def test_a_federation_on_cut_batches_is_the_same():
    """On two devices and with clients that train at once; evaluation too."""
    model, arrays, data = frozen()
    scores = []
    for widths in ((), (16,)):
        task = adapted(length_bucketing.with_length_buckets(model, widths), arrays)
        sim, state, losses = fitted(task, data, 0.02, 2)
        assert sim.spec.shapes.up == 2 * 2 * (12 * 2) * 4, "the options' embeddings stay, though a network's head"
        scores.append((state.server.net, losses, sim.evaluate(state).metrics))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-3), *scores)


def test_what_is_frozen_is_not_copied():
    """A gradient of cut batches takes memory for the layers' inputs at each width, but none for the
    base.
    """
    wide = decoder.build(LLAMA | {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 2048}, remat=True)
    base = jax.eval_shape(wide.init, jax.random.key(0))
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(base["layers"]))
    own = adapters.make_adapter(adapters.lora(), base)
    shape = jax.ShapeDtypeStruct
    x = {"tokens": shape((1, 48), jnp.int32), "mask": shape((1, 48), bool), "answer": shape((1, 4), bool)}

    def memory(widths):
        model = length_bucketing.with_length_buckets(generation.make_writer(wide), widths, "left")

        def loss(trained, base, x):
            batch = local_training.Batch(x, jnp.zeros(1, jnp.int32), jnp.ones(1, bool))
            return local_training.model_loss(model)(Net(own.wrap(base, trained, None), {}), batch, jax.random.key(0))[0]

        lowered = jax.jit(jax.grad(loss)).lower(jax.eval_shape(own.init, jax.random.key(0)), base, x)
        found = lowered.compile().memory_analysis()
        assert found is not None
        return found.temp_size_in_bytes

    assert size > 10e6
    assert memory((16, 32)) < memory(()) + size / 4


def test_layers_have_names():
    """Read where the features are; the last one's are the features, before the norm of a writer."""
    model, arrays, data = frozen()
    x = jax.tree.map(lambda leaf: leaf[:3], data.train.x)
    outputs = jax.jit(lambda net, x: length_bucketing.with_length_buckets(model, (16,)).apply(net, x, intermediates=True)[0])(
        arrays, x
    )
    assert list(outputs["intermediates"]) == ["layer1"]
    np.testing.assert_allclose(
        [unit(row) for row in np.asarray(outputs["intermediates"]["layer1"])], outputs["features"], atol=1e-5
    )
    deep = decoder.build(
        LLAMA | {"vocab_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256, "initializer_range": 0.3}
    )
    params = jax.jit(deep.init)(jax.random.key(0))
    rows = instruction_data.build_generation_data(divided(), Letters(), 144, END, long="cut").train.x
    x = jax.tree.map(lambda leaf: leaf[:2], rows)
    found = jax.jit(lambda x: generation.make_writer(deep).apply(Net(params, {}), x, intermediates=True)[0])(x)
    first = params | {"layers": jax.tree.map(lambda leaf: leaf[:1], params["layers"])}
    names = found["intermediates"]
    assert list(names) == ["layer1", "layer2"]
    norm = lambda rows: np.asarray(rows) / np.sqrt(np.mean(np.asarray(rows) ** 2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(names["layer2"]), found["features"], atol=1e-3)
    alone = jax.jit(lambda x: generation.make_writer(WRITER).apply(Net(first, {}), x)[0]["features"])(x)
    np.testing.assert_allclose(norm(names["layer1"]), alone, atol=1e-3)
