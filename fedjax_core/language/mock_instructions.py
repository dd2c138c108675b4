"""Instructions and language models as shapes alone; at most a folder's config.json is read."""

from typing import NamedTuple

import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data
from fedjax_core.data.sources import Dataset
from fedjax_core.language import instruction_data, load_pretrained
from fedjax_core.language.instruction_task import PreparedTask, Source, Spec, build_model, check_spec, find_model_folder
from fedjax_core.language.models.transformer import Encoder

_LLAMA = {"model_type": "llama", "vocab_size": 32_000, "max_position_embeddings": 2048, "eos_token_id": 2}
_SIZES = {  # width, inner width, layers, heads: Touvron et al. 2023, Table 2, and the inner widths of the published files
    "llama-7b": (4096, 11_008, 32, 32),
    "llama-13b": (5120, 13_824, 40, 40),
    "llama-30b": (6656, 17_920, 60, 52),
    "llama-65b": (8192, 22_016, 80, 64),
}
KNOWN = {
    name: _LLAMA | dict(zip(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), sizes, strict=True))
    for name, sizes in _SIZES.items()
}  # config.json of models by the names of their folders


class Sizes(NamedTuple):
    """Sizes of texts, which no config has.

    Attributes:
      rows: training texts of all clients; None: a thousand each, as FedOA has them.
      test_rows: of the task that is left out.
      answer: tokens of the longest answer, or options of a question.
    """

    rows: int | None = None
    test_rows: int = 400
    answer: int = 16


def mock_prepared(source: Source, clients: int, spec: Spec, sizes: Sizes) -> PreparedTask:
    """Makes the result of `prepare_data` for texts that are all as long as the model reads.

    Args:
      source: where the texts would be.
      clients: N, each with equally many.
      spec: of the model. Its folder must have a config.json, or one of the names in `KNOWN`.
      sizes: of the data.
    """
    check_spec(spec)
    folder = find_model_folder(spec)
    is_there = load_pretrained.is_gguf(folder) or (folder / load_pretrained.CONFIG).is_file()
    model = build_model(folder, spec, None if is_there else KNOWN.get(folder.name))
    rows = sizes.rows or 1000 * clients
    is_encoder = isinstance(model, Encoder)

    def examples(number: int, test: bool) -> Examples:
        blank = lambda kind, *shape: np.broadcast_to(np.zeros((), kind), (number, *shape))
        x = {"tokens": blank(np.int32, spec.limit), "mask": np.broadcast_to(np.ones((), bool), (number, spec.limit))}
        x["options" if is_encoder else "answer"] = blank(np.int32 if is_encoder else bool, sizes.answer)
        if spec.pack and not test and not is_encoder:
            x |= {"answer": blank(bool, spec.limit - 1), "segments": blank(np.int32, spec.limit)}
        x |= {"kind": blank(np.int32)} | ({"rouge1": blank(np.float32, sizes.answer)} if is_encoder else {})
        return Examples(x, np.zeros(number, np.int32) if is_encoder else np.arange(number, dtype=np.int32) % clients)

    names = tuple(f"option {i + 1}" for i in range(sizes.answer)) if is_encoder else tuple(f"set {i}" for i in range(clients))
    train = [np.arange(i, rows, clients, dtype=np.int32) for i in range(clients)]
    test = [np.arange(i, sizes.test_rows, clients, dtype=np.int32) for i in range(clients)]
    data = federated_data.from_index(Dataset("texts", examples(rows, False), examples(sizes.test_rows, True), names), train, test)
    tokens = np.broadcast_to(np.zeros((), np.int32), (sizes.answer, spec.limit))
    options = {"tokens": tokens, "mask": tokens == 0} if is_encoder else None
    divided = instruction_data.LeaveOneOutSplit([], [], tuple(train), tuple(test), names)
    return PreparedTask(data, model, options, spec, folder, divided, (source.leave_out,), ())
