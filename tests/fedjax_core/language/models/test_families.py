"""Every family of networks beside transformers, with random weights that it saved itself: outputs,
gradients and greedy texts.
"""

import functools
import json
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.language import load_pretrained
from fedjax_core.language.models import bert, clip, decoder, decoder_configs
from fedjax_core.language.models.transformer import Encoder, LanguageModel
from tests import reference
from tests.fedjax_core.language.models.test_decoder import texts

SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 22,
    "bos_token_id": None,
    "pad_token_id": 0,
}
FULL, SLIDING = decoder_configs.LAYER_TYPES
ALTERNATING = {"head_dim": 8, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING], "query_pre_attn_scalar": 5}
DECODERS = {
    "mistral": ("Mistral", SIZES | {"sliding_window": 4, "head_dim": 6}),
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    "qwen2 with windows": ("Qwen2", SIZES | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8}),
    "gemma2": ("Gemma2", SIZES | ALTERNATING | {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}),
    "gemma3_text": ("Gemma3Text", SIZES | ALTERNATING),
    "gpt2": ("GPT2LMHead", SIZES | {"n_inner": 20, "num_key_value_heads": None}),
}


def compare_gradients(library_model, family, folder, gradients):
    """Compares our gradients with the library's, whose gradients are read as a file's tensors are."""
    slopes = {name: np.asarray(p.grad) for name, p in library_model.named_parameters() if p.grad is not None}
    if getattr(library_model.config, "tie_word_embeddings", False):
        slopes.pop("lm_head.weight", None)
    wanted = family.from_tensors(json.loads((folder / "config.json").read_text()), slopes)

    largest = max(np.abs(slope).max() for slope in slopes.values())

    def check(path, ours, theirs):
        atol = 1e-4 * np.abs(theirs).max() + 1e-6 * largest  # a bias of keys that nothing turns has a gradient of rounding alone
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=atol, err_msg=str(path))

    jax.tree_util.tree_map_with_path(check, gradients, wanted)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_those_of_transformers(name, tmp_path):
    library = reference.library()
    import torch

    family, own = DECODERS[name]
    config = getattr(library, f"{family.removesuffix('LMHead')}Config")(**own, attn_implementation="eager")
    model_class = f"{family}Model" if family == "GPT2LMHead" else f"{family.removesuffix('Text')}ForCausalLM"
    other = reference.saved(getattr(library, model_class)(config), tmp_path)
    tokens, mask = texts("left")
    weights = np.random.default_rng(5).normal(size=(*tokens.shape, 23)).astype(np.float32) * mask[..., None]
    text = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(mask).long()}
    places = torch.from_numpy(np.maximum(np.cumsum(mask, 1) - 1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = other(**text, position_ids=places).logits
        (theirs * torch.from_numpy(weights)).sum().backward()
        written = other.generate(**text, do_sample=False, max_new_tokens=8, pad_token_id=0).numpy()[:, tokens.shape[1] :]
    model, params = load_pretrained.load(tmp_path)
    assert isinstance(model, LanguageModel)

    def loss(params):
        logits = model.logits(params, model.hidden(params, jnp.asarray(tokens), jnp.asarray(mask)))
        return jnp.sum(logits * weights), logits

    gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(np.asarray(logits)[mask], theirs.detach().numpy()[mask], atol=1e-4, rtol=1e-4)
    compare_gradients(other, decoder, tmp_path, gradients)
    found, real = (np.asarray(part) for part in jax.jit(functools.partial(model.generate, limit=8))(params, tokens, mask))
    for row in range(len(tokens)):
        ends = np.flatnonzero(written[row] == 22)
        assert found[row][real[row]].tolist() == written[row][: ends[0] if len(ends) else None].tolist()


def test_roberta_is_that_of_transformers(tmp_path):
    """Its positions begin behind the id of the padding, and a model that contains it is read, too."""
    library = reference.library()
    import torch

    own = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
    config = library.RobertaConfig(**own, num_hidden_layers=2, max_position_embeddings=20, type_vocab_size=1, pad_token_id=3)
    other = reference.saved(library.RobertaModel(config, add_pooling_layer=False), tmp_path)
    tokens, mask = texts("right")
    tokens = np.where(mask, np.where(tokens == 3, 4, tokens), 3).astype(np.int32)
    weights = np.random.default_rng(5).normal(size=(*tokens.shape, 16)).astype(np.float32) * mask[..., None]
    theirs = other(input_ids=torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(mask).long()).last_hidden_state
    (theirs * torch.from_numpy(weights)).sum().backward()
    encoder, params = load_pretrained.load(tmp_path)
    assert isinstance(encoder, Encoder)
    assert encoder.context == 16

    def loss(params):
        hidden = encoder.hidden(params, jnp.asarray(tokens), jnp.asarray(mask))
        return jnp.sum(hidden * weights), hidden

    gradients, hidden = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(np.asarray(hidden)[mask], theirs.detach().numpy()[mask], atol=1e-4)
    compare_gradients(other, bert, tmp_path, gradients)
    inside = {f"roberta.{name}": tensor for name, tensor in load_pretrained.read_folder_tensors(tmp_path).items()}
    inside["lm_head.bias"] = np.zeros(23)
    described = load_pretrained.read_config(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, bert.from_tensors(described, inside), params)


def test_clip_is_that_of_transformers(tmp_path):
    """Both encoders, by the similarities of texts and images."""
    library = reference.library()
    import torch

    own = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    text = own | {"vocab_size": 23, "num_hidden_layers": 2, "max_position_embeddings": 12, "eos_token_id": 22}
    image = own | {"hidden_size": 12, "num_hidden_layers": 2, "image_size": 8, "patch_size": 4}
    config = library.CLIPConfig(text_config=text, vision_config=image, projection_dim=10)
    other = reference.saved(library.CLIPModel(config), tmp_path)
    tokens, mask = texts("right")
    tokens = np.where(tokens == 22, 21, tokens)
    tokens[np.arange(3), mask.sum(1) - 1] = 22
    images = np.random.default_rng(6).normal(size=(4, 8, 8, 3)).astype(np.float32)
    weights = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    theirs = other(
        input_ids=torch.from_numpy(tokens).long(),
        attention_mask=torch.from_numpy(mask).long(),
        pixel_values=torch.from_numpy(images.transpose(0, 3, 1, 2).copy()),
    ).logits_per_image
    (theirs * torch.from_numpy(weights)).sum().backward()
    model, params = load_pretrained.load_clip(tmp_path)

    def loss(params):
        texts_, images_ = model.encode_text(params, tokens, mask), model.encode_image(params, images)
        logits = jnp.exp(params["scale"]) * images_ @ texts_.T
        return jnp.sum(logits * weights), logits

    gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(logits, theirs.detach().numpy(), rtol=1e-4, atol=1e-4)
    compare_gradients(other, clip, tmp_path, gradients)


def test_clip_of_a_config_has_the_logits_of_transformers(tmp_path):
    """Uses the embeddings of two words as prompts, so the texts begin with these words."""
    library = reference.library()
    import tokenizers
    import torch

    words = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", ".", "number", "handwritten", "<begin>", "<end>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="."))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("<begin>", 13), ("<end>", 14)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<begin> $A <end>", special_tokens=special)
    tokenizer.save(str(tmp_path / load_pretrained.TOKENIZER))
    own = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")}
    text = own | {"vocab_size": len(words), "max_position_embeddings": 8, "eos_token_id": 14, "bos_token_id": 13}
    image = own | {"image_size": 8, "patch_size": 4}
    config = library.CLIPConfig(text_config=text, vision_config=image, projection_dim=10)
    other = reference.saved(library.CLIPModel(config), tmp_path)

    settings = experiment.load_config("promptfl:smoke")
    settings.models = (f"clip(folder={str(tmp_path)!r}, prompts=2)",)
    sim = experiment.build(settings)
    net, x = sim.init(0).server.net, sim.spec.data.test.x[:6]
    begin = other.text_model.embeddings.token_embedding.weight[[12, 11]].detach().numpy()
    net = net._replace(params={"prompts": {"vectors": jnp.asarray(begin)}})
    chex.assert_trees_all_equal_shapes(net, sim.init(0).server.net)
    logits = sim.spec.bound_groups[0].task.model.apply(net, x)[0]["logits"]

    tokens = torch.tensor([[13, 12, 11, digit, 10, 14] for digit in range(10)])
    pixels = (np.repeat(x.astype(np.float32) / 255, 3, -1) - clip.MEAN) / clip.STD
    theirs = other(input_ids=tokens, pixel_values=torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32)))
    np.testing.assert_allclose(logits, theirs.logits_per_image.detach().numpy(), rtol=1e-4, atol=1e-4)
