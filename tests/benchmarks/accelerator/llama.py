"""FedIT on a LLaMA with random weights and texts, on which speed and memory do not depend."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import fedit
from fedjax_core import experiment
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data
from fedjax_core.engine.simulator import Simulator
from fedjax_core.experiment import build_simulator, mock_data
from fedjax_core.storage.json_files import write_json
from fedjax_core.task import Task

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
ROWS = 64  # texts per client, of the network's maximum length: two steps of 32 per epoch


def simulation(folder: str, chunk: int, batch: int, toy: bool) -> tuple[Simulator, int, int]:
    """Returns FedOA's setting: six clients, two epochs, LoRA of rank 8, bfloat16, remat.

    Args:
      folder: folder for the network's config.json.
      chunk: clients at once.
      batch: texts per step.
      toy: whether to use one layer and texts of eight tokens.

    Returns: (simulation, trained tokens per round, parameters of the network).
    """
    place = Path(folder) / "llama"
    place.mkdir(parents=True, exist_ok=True)
    words: dict[str, Any] = {
        "vocab_size": 64 if toy else 32_000,
        "max_position_embeddings": 2048,
        "eos_token_id": 2,
        "model_type": "llama",
    }
    write_json(place / "config.json", words | (SMALL if toy else SIZES))
    limit, rows = (8, 4) if toy else (512, ROWS)
    config = fedit.get_config("paper")
    config.models = (f"pretrained(folder={str(place)!r}, dtype='bfloat16', limit={limit}, long='cut', remat=True)",)
    config.method.batch, config.plan.chunk = batch, chunk
    config.data.clients, config.plan.devices = (2, 1) if toy else (6, None)
    asked = experiment.resolve(config)
    kind = mock_data.mock_pipeline(
        asked, mock_data.Counts(rows=rows * config.data.clients, test_rows=config.data.clients, answer=limit // 2)
    )

    def texts(asked: Any) -> federated_data.FederatedData:
        found, rng = kind.federated(asked), np.random.default_rng(0)
        x: Any = found.train.x
        tokens = rng.integers(3, words["vocab_size"], x["tokens"].shape, np.int32)
        return dataclasses.replace(
            found, train=Examples(x | {"tokens": tokens, "answer": np.ones(x["answer"].shape, bool)}, found.train.y)
        )

    def task(*given: Any) -> Task:
        made = kind.task(*given)
        return dataclasses.replace(made, frozen=jax.device_get(drawn(made.frozen)))

    made = build_simulator.build(config, pipeline=kind._replace(federated=texts, task=task))
    tokens = config.data.clients * rows * config.method.epochs * limit
    return made, tokens, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(made.spec.bound_groups[0].task.frozen))


def drawn(arrays: Any) -> Any:
    """Returns random arrays of these shapes: ones for scales, else normally distributed."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    make, key = jax.jit(jax.random.normal, static_argnums=(1, 2)), jax.random.key(0)
    draw = lambda i, leaf: 0.02 * make(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
    scale = lambda path: "norm" in jax.tree_util.keystr(path)
    each = [jnp.ones(leaf.shape, leaf.dtype) if scale(path) else draw(i, leaf) for i, (path, leaf) in enumerate(leaves)]
    return structure.unflatten(each)
