"""FedOA's release and ours tune the same small LLaMA on the same texts, and adapters are compared.

python -m tests.benchmarks.peers.fedoa_equality CHECKOUT [CASE ...]

CHECKOUT is a clone of FedOA's release, whose program `main.py`, clients, server and changed `peft` run
unchanged. The environment has torch and the pins of fedoa.txt beside our packages. The language
model, its tokenizer and the texts are made here; the model is in float32 on the processor, without
dropout, and examples stay in their order. All answers have equally many tokens, since the release
averages R_e over parts of a minibatch and ours over all of it.

Prints a line of JSON for each case: the largest difference of an entry of the server's adapter, of
the clients' and of the logits that the release scores, and the largest change that training made.
"""

import contextlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from configs import base
from fedjax_core import experiment
from fedjax_core.algorithm import PyTree
from fedjax_core.language import load_pretrained
from fedjax_core.training import adapters, local_training
from tests.benchmarks.peers.authors_equality import import_stubbed
from tests.benchmarks.peers.released_equality import import_from
from tests.fedjax_core.language.test_instruction_data import END, Letters

SIZES, BATCH, MICRO = (16, 24, 8, 32, 16), 8, 4  # examples of clients, of a minibatch, and of a part of it
ROUNDS, EPOCHS, RATE, RANK, ALPHA, LAM = 4, 2, 0.02, 2, 4, 0.5
EPSILON = 0.1  # of both Adams; with 1e-8 rounding decides steps along gradients near 0
CONFIG = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0,
}  # fmt: skip
PROJECTIONS = {"query": "q_proj", "value": "v_proj"}


class Case(NamedTuple):
    """Holds what either side is told.

    Attributes:
      method: ours.
      arguments: of the release's program.
      drawn: clients of a round.
      score: whether the release's mixture of both adapters is compared too.
    """

    method: dict[str, Any]
    arguments: dict[str, Any]
    drawn: int = len(SIZES)
    score: bool = False


class Tokens(transformers.PreTrainedTokenizer):
    """The tokenizer of letters in the form of `transformers`."""

    model_input_names = ("input_ids", "attention_mask")

    def get_vocab(self) -> dict[str, int]:
        """Returns all tokens by name."""
        return {"<pad>": 0, "<s>": 1, "</s>": END} | {str(i): i for i in range(2, CONFIG["vocab_size"]) if i != END}

    vocab_size = property(lambda self: CONFIG["vocab_size"])
    _tokenize = lambda self, text, **_: list(map(str, text.encode()))
    _convert_token_to_id = lambda self, token: self.get_vocab()[token]
    build_inputs_with_special_tokens = lambda self, tokens, _=None: [1, *tokens]


class Texts(list):
    """Examples in the form of `datasets`."""

    def shuffle(self) -> "Texts":
        """Keeps their order."""
        return self

    def map(self, function: Any) -> list[Any]:
        """Returns the function's results."""
        return [function(row) for row in self]


def write_texts(folder: Path) -> None:
    """Writes questions of each client's own kind, and of one that nobody trains on."""
    rng = np.random.default_rng(0)
    kinds = [f"kind {i}" for i in range(len(SIZES))]
    for part, sizes in (("train", (*SIZES, 1)), ("test", (*[1] * len(SIZES), 4))):
        lines = []
        for kind, size in zip([*kinds, "other"], sizes, strict=True):
            for _ in range(size):
                words = " ".join(rng.choice(["red", "a", "seven", "owl", "it"], rng.integers(1, 5)))
                answer = ("yes", "not")[int(rng.integers(2))]
                task = "left out" if kind == "other" else "asked"
                lines.append(json.dumps({"task": task, "dataset": kind, "instruction": f"{kind}: {words}?", "output": answer}))
        (folder / f"{part}.jsonl").write_text("\n".join(lines))


def build_ours(case: Case, folder: Path) -> Any:
    """Returns our config."""
    made = base.get_config("smoke")
    files = "folder='.', train='train.jsonl', test='test.jsonl'"
    made.data.update(
        source=f"instructions({files}, leave_out='left out')", dir=str(folder), clients=len(SIZES), partition="by_domain"
    )
    made.models = (f"pretrained(folder='{folder / 'llama'}', limit=96)",)
    made.adapter = f"lora(rank={RANK}, alpha={ALPHA}.0, dropout=0.0, targets=('query', 'value'))"
    made.method = {"epochs": EPOCHS, "batch": BATCH} | case.method
    made.optimizer.update(name="adam", lr=RATE, eps=EPSILON, anneal="linear", clip=1.0)
    made.cohort.update(fraction=None, size=case.drawn)
    made.rounds = ROUNDS
    return made


def list_ours(params: PyTree) -> dict[str, np.ndarray]:
    """Returns our adapter under the names of the release's files."""
    arrays = {}
    for part, to in PROJECTIONS.items():
        for letter, stacked in params[adapters.ENTRY]["layers"]["attention"][part].items():
            for i, array in enumerate(np.asarray(stacked)):
                arrays[f"base_model.model.model.layers.{i}.self_attn.{to}.lora_{letter.upper()}.weight"] = array.T
    return arrays


def to_torch(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns copies as tensors."""
    return {name: torch.tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}


class Peer(NamedTuple):
    """A run of the release.

    Attributes:
      server: its adapter.
      clients: those of the clients that trained one.
      logits: of each client's first example, by its mixture of both adapters.
    """

    server: dict[str, torch.Tensor]
    clients: dict[int, dict[str, torch.Tensor]]
    logits: dict[int, np.ndarray]


def run_peer(case: Case, rows: list[list[Any]], before: list[dict[str, np.ndarray]], cohorts: list[Any], folder: Path) -> Peer:
    """Runs the release; `before` has the server's initial adapter and then the clients'."""
    module, client_module, library = import_stubbed("main", "fed_utils.client", "peft")
    texts = [Texts({"instruction": row.instruction, "output": row.answer} for row in own) for own in rows]
    network = transformers.LlamaForCausalLM.from_pretrained(folder / "llama")
    tokenizer = Tokens(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>")
    settings, set_local, models = transformers.TrainingArguments, client_module.GeneralClient.set_local, []

    def adapt(*args: Any) -> Any:
        models.append(library.get_peft_model(*args))
        library.set_peft_model_state_dict(models[-1], to_torch(before[0]), "default")
        return models[-1]

    def set_first(client: Any, *args: Any, **kwargs: Any) -> None:
        set_local(client, *args, **kwargs)
        own = library.get_peft_model_state_dict(client.model, adapter_name="local")
        if not any(torch.any(array) for name, array in own.items() if "lora_B" in name):
            library.set_peft_model_state_dict(client.model, to_torch(before[1 + client.client_id]), "local")

    quiet = {"fp16": False, "use_cpu": True, "adam_epsilon": EPSILON, "report_to": "none", "disable_tqdm": True}
    sequential = torch.utils.data.SequentialSampler
    with contextlib.ExitStack() as stack:
        for target, name, new in (
            (transformers, "TrainingArguments", lambda **given: settings(**given | quiet)),
            (transformers.Trainer, "_get_train_sampler", lambda trainer: sequential(trainer.train_dataset)),
            (module.LlamaForCausalLM, "from_pretrained", lambda *_, **__: network),
            (module, "LlamaTokenizer", mock.Mock(from_pretrained=lambda _: tokenizer)),
            (module, "get_peft_model", adapt),
            (module, "client_selection", mock.Mock(side_effect=[cohort.tolist() for cohort in cohorts])),
            (module, "global_evaluation", lambda *_: 0.0),
            (client_module.GeneralClient, "set_local", set_first),
            (client_module, "load_dataset", lambda _, data_files: {"train": texts[int(Path(data_files).stem.split("_")[-1])]}),
            (torch, "load", lambda path, load=torch.load, **_: load(path)),
        ):
            stack.enter_context(mock.patch.object(target, name, new))
        out = folder / "out"
        module.fl_finetune(
            global_model="llama", data_path=str(folder), output_dir=str(out), num_clients=len(SIZES),
            num_communication_rounds=ROUNDS, local_batch_size=BATCH,
            local_micro_batch_size=MICRO, local_num_epochs=EPOCHS, local_learning_rate=RATE, lora_r=RANK, lora_alpha=ALPHA,
            lora_dropout=0.0, prompt_template_name="alpaca_short",
            **{"regular_weight": LAM, "client_selection_strategy": "subset"} | case.arguments,
        )  # fmt: skip
        saved = {}
        for t, cohort in enumerate(cohorts):
            for i in cohort.tolist():
                file = out / str(len(SIZES)) / str(t) / f"local_output_{i}" / "local" / "pytorch_model.bin"
                saved |= {i: file} if file.exists() else {}
        model, logits = models[0], {}
        server = {name: x.clone() for name, x in library.get_peft_model_state_dict(model, adapter_name="default").items()}
        for i in saved if case.score else ():
            model.add_local_model("local", str(saved[i]))
            model.set_local(["local"], [0.5, 0.5])
            model.set_adapter("default")
            prompt = "### Instruction:\n{instruction}\n\n### Response:\n{output}".format(**texts[i][0])
            with torch.no_grad():
                logits[i] = model.eval()(input_ids=torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -4:].numpy()
            model.unset_local()
            model.delete_adapter("local")
    return Peer(server, {i: torch.load(file) for i, file in saved.items()}, logits)


def find_difference(ours: dict[str, np.ndarray], theirs: dict[str, Any]) -> float:
    """Returns the largest difference of an entry."""
    assert ours.keys() == theirs.keys()
    return max(float(np.max(np.abs(ours[name] - np.asarray(theirs[name])))) for name in ours)


def compare(case: Case, checkout: Path, folder: Path) -> dict[str, float]:
    """Returns differences and changes."""
    config = build_ours(case, folder)
    prepared = experiment.read_instructions(config)
    rows = [[prepared.divided.train[j] for j in index] for index in prepared.divided.train_index]
    simulator = experiment.build(config)
    state = simulator.init(seed=0)
    personal = case.method["name"] != "fedit"
    read = lambda state: (
        [state.server.net.params]
        + [simulator.client_view(state, i).holds["personal"][1].params for i in range(len(SIZES)) if personal]
    )
    before = list(map(list_ours, jax.device_get(read(state))))
    state, _ = simulator.run_rounds(state, ROUNDS)
    after = list(map(list_ours, jax.device_get(read(state))))
    with import_from(checkout), contextlib.chdir(checkout):
        peer = run_peer(case, rows, before, simulator.past_cohorts(state), folder)
    line = {"server difference": find_difference(after[0], peer.server), "server change": find_difference(after[0], before[0])}
    if personal:
        pairs = [(after[1 + i], theirs) for i, theirs in peer.clients.items()]
        line["clients difference"] = max(find_difference(*pair) for pair in pairs)
        line["clients change"] = max(find_difference(after[1 + i], before[1 + i]) for i in peer.clients)
    if peer.logits:
        differences = []
        for i, theirs in peer.logits.items():
            view = simulator.client_view(state, i)
            first = prepared.divided.train_index[i][:1]
            x = {name: jnp.asarray(column[first]) for name, column in prepared.data.train.x.items()}
            ours = np.asarray(view.predict("personal", view.holds["personal"], x)["logits"])[0, -4:]
            differences.append(float(np.max(np.abs(ours - theirs))))
        line["logits difference"], line["largest logit"] = (
            max(differences),
            max(float(np.max(np.abs(theirs))) for theirs in peer.logits.values()),
        )
    return line


RELEASED = {"lam": LAM, "variant": "released"}
OWN = {"local_model": True}  # clients have adapters of their own
CASES = {
    "fedit": Case({"name": "fedit"}, {}, drawn=3),
    "fedoa": Case({"name": "fedoa", "reading": {"micro": MICRO}} | RELEASED, OWN, score=True),
    "fedoa_drawn": Case({"name": "fedoa", "reading": {"micro": MICRO}} | RELEASED, OWN, drawn=3),
    "fedsdr": Case({"name": "fedsdr", "micro": MICRO} | RELEASED, OWN | {"regular_term": "fedsdr"}, drawn=3),
    "perada": Case({"name": "perada"} | RELEASED, OWN | {"regular_term": "parameter"}, drawn=3),
    "pfedme": Case(
        {"name": "pfedme", "outer_lr": RATE} | RELEASED | {"lam": 5.0},
        OWN | {"regular_term": "parameter", "pFedMe": True, "regular_weight": 5.0},
    ),
}


def main(checkout: str, *names: str) -> None:
    """Compares these cases, by default all."""
    for name in names or CASES:
        with (
            tempfile.TemporaryDirectory() as scratch,
            open(os.devnull, "w") as nowhere,
            mock.patch.object(load_pretrained, "load_tokenizer", return_value=Letters()),
            mock.patch.object(local_training, "shuffle_slots", lambda key, slots, size: slots),
            warnings.catch_warnings(action="ignore"),
        ):
            folder = Path(scratch)
            torch.manual_seed(0)
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(
                folder / "llama", safe_serialization=True
            )
            write_texts(folder)
            (folder / str(len(SIZES))).mkdir()
            with contextlib.redirect_stdout(nowhere):
                line = compare(CASES[name], Path(checkout).resolve() / "code", folder)
        print(json.dumps({"case": name} | line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
