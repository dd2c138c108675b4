"""Parts of others' code that are too large to run here, and ours, on the same random arrays.

python -m tests.benchmarks.peers.parts_equality CHECKOUTS [CASE ...]

CHECKOUTS has clones, each by its name, of CERT-Lab/fedex-lora, ATP-1010/FederatedLLM (FLoRA),
alibaba/FederatedScope's branch FlexLoRA (as FlexLoRA), measaverb/SplitHetLoRA at 56f086e,
Pengxin-Guo/FedSA-LoRA, epfml/federated-learning-public-code (FedDF), hwang52/FedSKC,
yxdyc/pFedGate, boschresearch/FedTPG and PEILab-Federated-Learning/PromptFL. Of FedDF and of the
methods for adapters it is the server's step, of FedSKC its discrepancy weights, of pFedGate the
choice of blocks, of FedTPG the network that makes prompts, and of PromptFL the whole network. What
the code imports and is not installed is a stub.

Prints a line of JSON for each case: the largest difference, and the largest entry.
"""

import contextlib
import functools
import io
import json
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from fedjax_core.algorithm import Cohort, Net, PyTree, Reduce, is_reduce
from fedjax_core.language import clip_prompts, instruction_data
from fedjax_core.language.models import clip
from fedjax_core.training import adapters, local_training
from fedjax_core.training.param_partition import all_but, drop_entry, split_net
from methods import feddf, fedskc, flexlora, hetlora, pfedgate
from tests import toy
from tests.benchmarks.peers.authors_equality import import_stubbed
from tests.benchmarks.peers.released_equality import import_from

Arrays = list[np.ndarray]
SIZES, RANK, SCALE = (3, 1, 7, 5), 2, 8.0  # examples of clients; rank, and alpha over it, of the toy's adapter
RANKS = (2, 1, 2, 1)  # of clients, where they differ


class Layer(torch.nn.Module):
    """An adapted layer with the kernel in `transformers.Conv1D`'s form, [in, out]."""

    def __init__(self, kernel: np.ndarray, own: dict[str, np.ndarray]):
        """Holds a kernel and an adapter."""
        super().__init__()
        holders = {"lora_A": own["a"].T, "lora_B": own["b"].T}
        for name, array in holders.items():
            setattr(self, name, torch.nn.ModuleDict({"default": hold_weight(array)}))
        self.base_layer = hold_weight(kernel)


def hold_weight(array: np.ndarray) -> torch.nn.Module:
    """Returns a module with this weight."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor(np.ascontiguousarray(array)))
    return module


class Adapted(torch.nn.Module):
    """The toy's network in the form of `transformers` and `peft`."""

    def __init__(self, params: PyTree, kernel: np.ndarray):
        """Holds one client's or the server's parameters."""
        super().__init__()
        self.body = Layer(kernel, params[adapters.ENTRY]["body"])
        self.classifier = hold_weight(params["head"]["kernel"].T)
        self.classifier.bias = torch.nn.Parameter(torch.tensor(params["head"]["bias"]))


def list_ours(params: PyTree) -> Arrays:
    """Returns adapter, correction of the kernel, and head."""
    own, correction = params[adapters.ENTRY]["body"], params.get(adapters.CORRECTION, {"body": np.zeros(())})["body"]
    correction = np.broadcast_to(SCALE * np.asarray(correction), (own["a"].shape[0], own["b"].shape[1]))
    return [np.asarray(x) for x in (own["a"], own["b"], correction, params["head"]["kernel"], params["head"]["bias"])]


def list_theirs(state: dict[str, torch.Tensor], kernel: np.ndarray) -> Arrays:
    """Returns the same of a network of theirs."""
    own = {name: array.detach().numpy() for name, array in state.items()}
    a, b = (own[f"body.lora_{part}.default.weight"].T for part in "AB")
    return [a, b, own["body.base_layer.weight"] - kernel, own["classifier.weight"].T, own["classifier.bias"]]


def take_step(name: str, weights: str, ranks: tuple[int, ...] | None = None) -> tuple[Net, list[PyTree], Net]:
    """Returns our server's network before its step, the parameters that clients trained, and the network after it."""
    task = toy.task_adapted(dropout=0.0)
    algorithm = toy.METHODS[name].func(task, optimizer=local_training.sgd(0.1), weights=weights)
    server, rng = algorithm.server_init(jax.random.key(0)), np.random.default_rng(0)
    whole = getattr(server, "net", None) or task.model.init(jax.random.key(0))  # of FedSA-LoRA the server has a part
    trained = {key: part for key, part in whole.params.items() if key != adapters.CORRECTION}
    move = lambda x: x + rng.normal(size=x.shape).astype(np.float32)
    clients = [jax.tree.map(move, trained) for _ in SIZES]
    clients = clients if ranks is None else [adapters.truncate_adapters(*pair) for pair in zip(clients, ranks, strict=True)]
    clients = clients if name != "ffa_lora" else [keep_a(params, trained) for params in clients]
    uplinks = [make_uplink(name, params, trained) for params in clients]
    cohort = Cohort(jnp.arange(len(SIZES)), jnp.array(SIZES))
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *uplinks)

    def reduce(rule: Reduce, part: PyTree) -> PyTree:
        mapped = jax.vmap(rule.map)(part, cohort)
        return rule.finalize(jax.tree.map(lambda x: x.sum(0), mapped) if rule.combine == "add" else mapped)

    rules = algorithm.collect
    of_parts = getattr(type(rules), "_make", tuple)
    collected = reduce(rules, stacked) if is_reduce(rules) else of_parts(map(reduce, rules, stacked))
    after = algorithm.server_update(server, collected, cohort, jax.random.key(1))[0]
    return whole, clients, getattr(after, "net", after)


def keep_a(params: PyTree, first: PyTree) -> PyTree:
    """Returns parameters with the first half of their adapter as it was."""
    own = {"a": first[adapters.ENTRY]["body"]["a"], "b": params[adapters.ENTRY]["body"]["b"]}
    return params | {adapters.ENTRY: {"body": own}}


def make_uplink(name: str, params: PyTree, sent: PyTree) -> PyTree:
    """Returns what a client of ours sends, by its method."""
    if name == "hetlora":
        return hetlora.Uplink(Net(params, {}), adapters.product_norm(params[adapters.ENTRY]))
    delta = Net(jax.tree.map(jnp.subtract, params, sent), {})
    if name == "flexlora":
        return flexlora.Uplink({adapters.ENTRY: params[adapters.ENTRY]}, drop_entry(delta, adapters.ENTRY))
    if name == "fedsa_lora":
        return split_net(delta, all_but(adapters.select_a))[0]
    if name == "flora":
        return {adapters.ENTRY: params[adapters.ENTRY]}, drop_entry(delta, adapters.ENTRY)
    return split_net(delta, adapters.select_a)[0] if name == "ffa_lora" else delta


def compare_fedex(name: str, function: str, weights: str = "uniform") -> tuple[Arrays, Arrays]:
    """Compares a server's step with that of FedEx-LoRA's code."""
    server, clients, after = take_step(name, weights)
    kernel = np.asarray(toy.task_adapted().frozen.params["body"]["kernel"])
    module = import_stubbed("fed_agg")[0]
    network = Adapted(server.params, kernel)
    args = [Namespace(lora_alpha=RANK * SCALE, lora_r=RANK, rslora=False)] if function == "aggregate_models_ours" else []
    getattr(module, function)(network, [Adapted(params, kernel).state_dict() for params in clients], *args)
    return list_theirs(network.state_dict(), kernel), list_ours(after.params)


def compare_flora(
    name: str, stacking: bool = False, zero_padding: bool = False, ranks: tuple[int, ...] | None = None, corrected: bool = False
) -> tuple[Arrays, Arrays]:
    """Compares a server's step with that of FLoRA's code, of the adapter alone; `corrected`: with the name of its sum."""
    _, clients, after = take_step(name, "samples", ranks)
    module, kept = import_stubbed("fed_utils.model_aggregation")[0], [RANK] * len(SIZES) if ranks is None else list(ranks)
    if corrected:
        wrong, right = "weighted_sindgle_weights", "weighted_single_weights"
        source = Path(str(module.__file__)).read_text()
        assert wrong in source
        exec(source.replace(wrong, right).split("torch.nn import ZeroPad2d")[1], vars(module))
    received = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(module, "set_peft_model_state_dict", lambda _, weights, __: received.update(weights)),
    ):
        for i, (params, rank) in enumerate(zip(clients, kept, strict=True)):
            own = params[adapters.ENTRY]["body"]
            sent = {"lora_A": own["a"][:, :rank].T, "lora_B": own["b"][:rank].T}
            where = Path(folder) / "0" / f"local_output_{i}"
            where.mkdir(parents=True)
            torch.save({key: torch.tensor(np.ascontiguousarray(x)) for key, x in sent.items()}, where / "pytorch_model.bin")
        sizes = dict(enumerate(SIZES))
        module.FedAvg(None, list(sizes), folder, sizes, 0, stacking, RANK, ranks is not None, kept, zero_padding, False)
        if stacking:
            received = torch.load(Path(folder) / "0" / "adapter_model.bin")
    a, b = (received[f"lora_{part}"].numpy().T for part in "AB")
    if stacking:
        return [a @ b], [np.asarray(after.params[adapters.CORRECTION]["body"])]
    own = after.params[adapters.ENTRY]["body"]
    return [a, b], [np.asarray(own["a"]), np.asarray(own["b"])]


def name_factors(own: PyTree, rank: int, names: tuple[str, str]) -> dict[str, torch.Tensor]:
    """Returns the first columns and rows of an adapter in torch's form."""
    return {
        names[0]: torch.tensor(np.asarray(own["a"]).T[:rank].copy()),
        names[1]: torch.tensor(np.asarray(own["b"]).T[:, :rank].copy()),
    }


def compare_flexlora() -> tuple[Arrays, Arrays]:
    """Compares a server's step with that of FlexLoRA's code, the adapters that clients of each rank get."""
    _, clients, after = take_step("flexlora", "samples", RANKS)
    average, divide = import_stubbed("fed_utils.model_aggregation", "fed_utils.adaptive_peft")
    layer, alpha = "model.body.lora", 16  # in its average the scale is 16 over the rank; in ours it is the same for all ranks
    names = f"{layer}_A.local.weight", f"{layer}_B.local.weight"
    sent = [name_factors(params[adapters.ENTRY]["body"], rank, names) for params, rank in zip(clients, RANKS, strict=True)]
    for own, rank in zip(sent, RANKS, strict=True):
        own[names[1]] *= rank / alpha
    with mock.patch.object(average.torch, "load", side_effect=sent):
        mean = average.FlexLoRA(range(len(SIZES)), "", dict(enumerate(SIZES)), 0)
    shapes = {f"Client_{i}": {"body": rank} for i, rank in enumerate(RANKS)}
    theirs, ours, own = [], [], after.params[adapters.ENTRY]["body"]
    given = divide.distribute_weight_fast(mean, shapes | {"alpha": 1.0})
    for rank in sorted(set(RANKS)):
        a, b = (given[f"{name}.{rank}"].numpy().T for name in names)
        turn = np.sign(np.sum(a * np.asarray(own["a"])[:, :rank], 0))  # singular vectors have no sign
        theirs += [a * turn, b * turn[:, None] / rank]
        ours += [np.asarray(own["a"])[:, :rank], np.asarray(own["b"])[:rank]]
    return theirs, ours


def compare_hetlora_norms() -> tuple[Arrays, Arrays]:
    """Compares a server's step with HetLoRA's of SplitHetLoRA, for which adapters are filled with zeros."""
    _, clients, after = take_step("hetlora", "norms", RANKS)
    own = lambda params: {
        f"body.lora_{part.upper()}": torch.tensor(np.asarray(x)) for part, x in params[adapters.ENTRY]["body"].items()
    }
    (module,) = import_stubbed("utils.etc")
    like = {f"client_transformer.{name}": x for name, x in own(after.params).items()}
    theirs = module.sparsity_weighted_aggregation([own(params) for params in clients], like)
    return [theirs[f"client_transformer.body.lora_{part}"].numpy() for part in "AB"], [
        np.asarray(after.params[adapters.ENTRY]["body"][part]) for part in "ab"
    ]


def compare_fedsa_lora() -> tuple[Arrays, Arrays]:
    """Compares what is sent and the server's step with FedSA-LoRA's code."""
    _, clients, after = take_step("fedsa_lora", "samples")
    trainer, average = import_stubbed(
        "federatedscope.core.trainers.trainer", "federatedscope.core.aggregators.clients_avg_aggregator"
    )
    names = "body.lora_A.default.weight", "body.lora_B.default.weight"
    state = lambda params: (
        name_factors(params[adapters.ENTRY]["body"], RANK, names)
        | {f"classifier.{name}": torch.tensor(np.asarray(x)) for name, x in params["head"].items()}
    )
    settings = Namespace(
        federate=Namespace(method="fedavg", ignore_weight=False, use_ss=False),
        personalization=Namespace(local_param=["lora_B", "classifier"], share_non_trainable_para=False),
    )
    keep = functools.partial(trainer.Trainer._param_filter, Namespace(cfg=settings))
    feedback = [(size, keep(state(params))) for size, params in zip(SIZES, clients, strict=True)]
    server = average.ClientsAvgAggregator(config=settings)
    theirs = server.aggregate({"client_feedback": feedback})
    assert list(theirs) == [names[0]]
    return [theirs[names[0]].numpy().T], [np.asarray(x) for x in jax.tree.leaves(after)]


def compare_fedskc() -> tuple[Arrays, Arrays]:
    """Compares the discrepancy weights that FedSKC's release computes (and then leaves unused)."""
    module, rng = import_stubbed("main_fedskc")[0], np.random.default_rng(0)
    values, held = rng.normal(size=(4, 5, 5)).astype(np.float32), rng.random((4, 5)) < 0.7
    merged, _ = fedskc.merge_neighbours(values, held)
    owned = [{j: torch.tensor(values[k, j]) for j in range(5) if held[k, j]} for k in range(4)]
    server = module.Global.__new__(module.Global)
    common = server.get_global_kn(owned)
    theirs = server.get_dis_weights(list(SIZES), owned, common)
    options = fedskc.Gda(size="count", distance="sum")
    ours = fedskc.discrepancy_weights(
        Cohort(jnp.arange(4), jnp.array(SIZES)), jnp.asarray(values), jnp.asarray(held), merged, options
    )
    known = sorted(common)
    return [theirs, torch.stack([common[j] for j in known]).numpy()], [np.asarray(ours / ours.sum()), np.asarray(merged)[known]]


class Stable(np.ndarray):
    """An array that keeps the order of equal entries when it is sorted."""

    def argsort(self, *_: Any, **__: Any) -> np.ndarray:
        """Returns indices of the sorted array."""
        return np.argsort(np.asarray(self), kind="stable")


def compare_pfedgate() -> tuple[Arrays, Arrays]:
    """Compares which blocks are kept, times their gates; equally important blocks are in stored order."""
    learner_module, gating, solver = import_stubbed("pFedGate.gated_learner", "models.gating_layers", "models.knapsack_solver")
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    params = {f"layer{i}": {"kernel": layer.weight.T, "offset": layer.bias} for i, layer in enumerate(network)}  # in their order
    cut = pfedgate.cut_into_blocks(jax.tree.map(lambda x: np.zeros(x.shape), params), 5)
    gates = np.random.default_rng(0).random((20, sum(number for number, _ in cut.pieces))).astype(np.float32)
    layer = gating.GatingLayer(network, "cpu", "emnist", fine_grained_block_split=5)
    learner = Namespace(
        sparse_factor=0.5, min_sparse_factor=0.2, block_wise_prune=True, device="cpu", gating_layer=layer,
        importance_prior_para_num=0, gated_scores_scale_factor=10, knapsack_solver=solver.KnapsackSolver01(1, 1, 1),
        total_model_size=1,
    )  # fmt: skip
    kind, choose = learner_module.GatedLearner, learner.knapsack_solver.found_max_value_greedy
    learner.knapsack_solver.found_max_value_greedy = lambda weight_list, value_list, capacity: choose(
        weight_list, value_list.view(Stable), capacity
    )
    learner._select_top_sub_blocks = functools.partial(kind._select_top_sub_blocks, learner)
    theirs, ours = [], []
    for t in gates:
        trans, _ = kind.select_top_trans_weights(learner, torch.tensor(np.maximum(t, 0.2)), torch.tensor(t), in_place=False)
        theirs.append(trans.detach().numpy())
        ours.append(np.asarray(t * pfedgate.select_blocks(jnp.maximum(t, 0.2), cut, 0.5, 0.2)))
    return theirs, ours


def compare_fedtpg() -> tuple[Arrays, Arrays]:
    """Compares FedTPG's network that makes prompts, without the self-attention that the release leaves out."""
    module = import_stubbed("model.prompt_net")[0]
    module.repeat = lambda x, _, b: x[None].expand(b, *x.shape)
    prompts, width, names = 3, 16, 12
    theirs = module.PromptTranslator(prompts, 1, width, depth=0, textemb_dim=names, device="cpu")
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape) / 4
    ours = clip_prompts.PromptGenerator(prompts, width, names, nnx.Rngs(0))
    attention, forward = theirs.encoder.cross_attend_blocks[0], theirs.encoder.cross_attend_blocks[1].net
    heads, ends = attention.fn, np.split(attention.fn.in_proj_bias.detach().numpy(), 3)
    weight, bias = (part.detach().numpy() for part in (forward[1].weight, forward[1].bias))
    dense = {
        "query": (heads.q_proj_weight, ends[0]), "key": (heads.k_proj_weight, ends[1]), "value": (heads.v_proj_weight, ends[2]),
        "output": (heads.out_proj.weight, heads.out_proj.bias), "up": (weight[: 4 * width], bias[: 4 * width]),
        "gate": (weight[4 * width :], bias[4 * width :]), "down": (forward[3].weight, forward[3].bias),
    }  # fmt: skip
    to_array = lambda x: jnp.asarray(x if isinstance(x, np.ndarray) else x.detach().numpy())
    for name, (kernel, offset) in dense.items():
        own = getattr(ours, name)
        own.kernel, own.bias = nnx.Param(to_array(kernel).T), nnx.Param(to_array(offset))
    norms = {"query_norm": attention.norm, "names_norm": attention.norm_context, "mlp_norm": forward[0]}
    for name, norm in norms.items():
        own = getattr(ours, name)
        own.scale, own.bias = nnx.Param(to_array(norm.weight)), nnx.Param(to_array(norm.bias))
    ours.queries = nnx.Param(to_array(theirs.soft_prompt))
    texts = np.random.default_rng(0).normal(size=(5, names)).astype(np.float32)
    return [theirs(torch.tensor(texts)[None])[0][0].detach().numpy()], [np.asarray(ours(jnp.asarray(texts)))]


def list_clip(network: torch.nn.Module) -> dict[str, np.ndarray]:
    """Returns the tensors of a CLIP of PromptFL's code under the names of `CLIPModel`."""
    state = {name: x.detach().numpy() for name, x in network.state_dict().items()}
    moved = {
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight", "logit_scale": "logit_scale",
    }  # fmt: skip
    tensors = {to: state[name] for name, to in moved.items()}
    tensors |= {"text_projection.weight": state["text_projection"].T, "visual_projection.weight": state["visual.proj"].T}
    parts = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj"}
    parts |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    norms = {"text_model.final_layer_norm": "ln_final", "vision_model.pre_layrnorm": "visual.ln_pre"}
    norms |= {"vision_model.post_layernorm": "visual.ln_post"}
    for ending in ("weight", "bias"):
        tensors |= {f"{to}.{ending}": state[f"{name}.{ending}"] for to, name in norms.items()}
        for tower, prefix in (("text_model", ""), ("vision_model", "visual.")):
            for i in range(2):
                block, to = f"{prefix}transformer.resblocks.{i}", f"{tower}.encoder.layers.{i}"
                tensors |= {f"{to}.{part}.{ending}": state[f"{block}.{name}.{ending}"] for name, part in parts.items()}
                joined = np.split(state[f"{block}.attn.in_proj_{ending}"], 3)
                tensors |= {f"{to}.self_attn.{x}_proj.{ending}": part for x, part in zip("qkv", joined, strict=True)}
    return tensors


def compare_promptfl() -> tuple[Arrays, Arrays]:
    """Compares logits and the gradient by the prompts of PromptFL's network, on a small CLIP with random weights."""
    with mock.patch.dict(sys.modules, {"clip.simple_tokenizer": mock.MagicMock()}):  # reads a large file
        module, library = import_stubbed("trainers.promptfl", "clip.model")
    prompts, size, begin, end, context = 3, 16, 256, 257, 24
    names = ["red fox", "owl", "sea_lion"]
    torch.manual_seed(0)
    network = library.CLIP(48, size, 2, 64, 4, context, end + 1, 32, 2, 2)
    for parameter in network.parameters():
        parameter.data = parameter.data + 0.05 * torch.randn(parameter.shape)
    encode = lambda text: list(text.encode())

    def tokenize(text: str) -> torch.Tensor:
        words = text.split(" ")
        row = [begin, *[0] * prompts, *encode(" ".join(words[prompts:])), end]
        return torch.tensor([row + [0] * (context - len(row))])

    coop = Namespace(N_CTX=prompts, CTX_INIT="", CSC=False, CLASS_TOKEN_POSITION="end")
    config = Namespace(TRAINER=Namespace(COOP=coop), INPUT=Namespace(SIZE=[size]))
    with (
        mock.patch.object(module.clip, "tokenize", tokenize),
        mock.patch.object(module, "_tokenizer", Namespace(encode=encode)),
        mock.patch.object(library.CLIP, "dtype", torch.float32),
    ):
        theirs = module.CustomCLIP(config, names, network)
        images = np.random.default_rng(0).normal(size=(5, size, size, 3)).astype(np.float32)
        logits = theirs(torch.tensor(images.transpose(0, 3, 1, 2).copy()))
        torch.nn.functional.cross_entropy(logits, torch.arange(5) % 3).backward()
    widths = {"num_hidden_layers": 2, "hidden_act": "quick_gelu"}
    text = widths | {"vocab_size": end + 1, "hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 2}
    image = widths | {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1, "image_size": size, "patch_size": 4}
    text |= {"max_position_embeddings": context}
    description = {"model_type": "clip", "projection_dim": 48, "text_config": text, "vision_config": image}
    rows = [[begin, *encode(f"{name.replace('_', ' ')}."), end] for name in names]
    tokens, mask = instruction_data.pad_sequences(rows, 1, side="right")
    ours = clip_prompts.make_prompted_classifier(clip.build(description), tokens, mask, prompts)
    own = ours.init(jax.random.key(0)).params["prompts"]
    vectors = jax.tree.map(lambda _: jnp.asarray(theirs.prompt_learner.ctx.detach().numpy()), own)
    frozen = clip.from_tensors(description, list_clip(network))

    def loss(vectors: PyTree) -> tuple[jax.Array, jax.Array]:
        logits = ours.apply(Net({"clip": frozen, "prompts": vectors}, {}), jnp.asarray(images))[0]["logits"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(5), jnp.arange(5) % 3]), logits

    gradient, found = jax.grad(loss, has_aux=True)(vectors)
    return [logits.detach().numpy(), theirs.prompt_learner.ctx.grad.numpy()], [np.asarray(found), *jax.tree.leaves(gradient)]


class Student(torch.nn.Module):
    """The toy's network without statistics."""

    def __init__(self, net: Net):
        """Holds its parameters."""
        super().__init__()
        self.activations: list[torch.Tensor] = []
        self.own = torch.nn.ParameterList(torch.tensor(np.asarray(p)) for p in jax.tree.leaves(net.params))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits."""
        bias, kernel, head_bias, head_kernel = self.own
        return torch.tanh(x @ kernel + bias) @ head_kernel + head_bias


def compare_feddf() -> tuple[Arrays, Arrays]:
    """Compares the server's step of FedDF: mean of three models, and 20 steps of distillation on all public examples."""
    (theirs,) = import_stubbed("pcode.aggregation.noise_knowledge_transfer")
    task, steps, rate = toy.task_with_public(statistics=False), 20, 0.01
    algorithm = feddf.feddf(
        task.bind(jax.device_put(task.bound_arrays), 0),
        optimizer=local_training.sgd(0.1),
        weights="uniform",
        server_epochs=steps,
        server_batch=toy.PUBLIC,
        server_lr=rate,
    )
    server, nets = algorithm.server_init(jax.random.key(0)), [task.model.init(jax.random.key(i)) for i in (1, 2, 3)]
    uplinks = [(jax.tree.map(jnp.subtract, net, server.nets[0]), net) for net in nets]
    mapped = [
        [r.map(part, Cohort(jnp.int32(0), jnp.int32(1))) for r, part in zip(algorithm.collect, up, strict=True)] for up in uplinks
    ]
    totals = jax.tree.map(lambda *of_clients: sum(of_clients), *mapped)
    collected = tuple(r.finalize(total) for r, total in zip(algorithm.collect, totals, strict=True))
    after, _ = algorithm.server_update(server, collected, Cohort(jnp.arange(3), jnp.ones(3, jnp.int32)), jax.random.key(1))
    solver = theirs.NoiseKTSolver(
        Namespace(graph=Namespace(on_cuda=False), fl_aggregate={}),
        [Student(net) for net in nets],
        Student(jax.tree.map(lambda *x: sum(x) / 3, *nets)),
        None,
        None,
        toy.PUBLIC,
        total_n_server_pseudo_batches=steps,
        distillation_data_loader=[(torch.tensor(task.public.x),)],
        student_learning_rate=rate,
        eval_batches_freq=steps,  # the last student is the best one
        update_student_scheme="avg_logits",
        log_fn=lambda *_: None,
    )
    solver.validate = lambda **_: {"top1": 1.0}
    solver.distillation()
    return [p.detach().numpy() for p in solver.server_student.own], list(map(np.asarray, jax.tree.leaves(after.nets[0].params)))


CASES: dict[str, tuple[str, Callable[[], tuple[Arrays, Arrays]]]] = {
    "fedit": ("fedex-lora", lambda: compare_fedex("fedit", "aggregate_models_normal")),
    "ffa_lora": ("fedex-lora", lambda: compare_fedex("ffa_lora", "aggregate_models_ffa")),
    "fedex_lora": ("fedex-lora", lambda: compare_fedex("fedex_lora", "aggregate_models_ours")),
    "flora": ("FederatedLLM", lambda: compare_flora("flora", stacking=True, ranks=RANKS)),
    "flora_equal_ranks": ("FederatedLLM", lambda: compare_flora("flora", stacking=True)),
    "hetlora_by_samples": ("FederatedLLM", lambda: compare_flora("hetlora", zero_padding=True, ranks=RANKS)),
    "fedit_flora": ("FederatedLLM", lambda: compare_flora("fedit")),
    "fedit_flora_corrected": ("FederatedLLM", lambda: compare_flora("fedit", corrected=True)),
    "flexlora": ("FlexLoRA", compare_flexlora),
    "hetlora_norms": ("SplitHetLoRA", compare_hetlora_norms),
    "fedsa_lora": ("FedSA-LoRA", compare_fedsa_lora),
    "feddf": ("federated-learning-public-code/codes/FedDF-code", compare_feddf),
    "fedskc": ("FedSKC", compare_fedskc),
    "pfedgate": ("pFedGate", compare_pfedgate),
    "fedtpg": ("FedTPG", compare_fedtpg),
    "promptfl": ("PromptFL", compare_promptfl),
}


def main(checkouts: str, *names: str) -> None:
    """Compares these cases, by default all."""
    for name in names or CASES:
        code, compare = CASES[name]
        with (
            import_from(Path(checkouts).resolve() / code),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
            mock.patch.object(np, "int", int, create=True),  # of NumPy before 1.24
        ):
            pairs = list(zip(*compare(), strict=True))
        line = {"case": name, "difference": max(float(np.max(np.abs(a - b))) for a, b in pairs)}
        print(json.dumps(line | {"largest": max(float(np.max(np.abs(b))) for _, b in pairs)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
