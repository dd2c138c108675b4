"""Plain texts for next-character prediction."""

import importlib
import itertools
from pathlib import Path

import numpy as np

from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import TestFraction, find_file, read_text, stratified_fraction_mask
from fedjax_core.option_types import AtLeastOne, Width


def text(
    data_dir: Path,
    path: str | None = None,
    length: Width = 80,
    parts: AtLeastOne | None = None,
    most: AtLeastOne | None = None,
    test_fraction: TestFraction = 0.2,
) -> Dataset:
    """Cuts a text into examples of equal length; each position predicts the character after it.

    Natural clients are parts of the text that follow each other (`partition="natural"`), or of
    Python's manual its topics.

    Args:
      path: a text file in UTF-8, which may end in .gz; None: the topics of Python's own manual,
        which come with it and differ between its versions.
      length: T, the positions of an example; the rest of a part that fills no example is left out.
      parts: of a file; as many natural clients. None: 20.
      most: examples of each client; None: all.
      test_fraction: part of each client's examples that becomes the test set.

    Raises:
      ValueError: it is no such text, or too short; or `parts` without a file.
    """
    if path is None and parts is not None:
        raise ValueError(f"text: parts={parts} without a path: Python's manual is divided by its topics; parts are of a file.")
    parts = 20 if parts is None else parts
    if path is None:
        topics = importlib.import_module("pydoc_data.topics").topics
        client_names = [key for key in sorted(topics) if len(topics[key]) > 2 * length]
        name, pieces = "python's manual", [topics[key] for key in client_names]
    else:
        file = find_file(f"text {path}", data_dir, [data_dir / path], "put a text file there, or name another")
        whole = read_text(file)
        cuts = np.linspace(0, len(whole), parts + 1).astype(int)
        client_names = []
        name, pieces = file.name, [whole[a:b] for a, b in itertools.pairwise(cuts)]
    characters = sorted({*"".join(pieces)})
    index = {character: i for i, character in enumerate(characters)}
    rows, clients = [], []
    for client, piece in enumerate(pieces):
        ids = np.array([index[character] for character in piece], np.int32)
        number = min((len(ids) - 1) // length, len(ids) if most is None else most)
        rows += [ids[i * length : (i + 1) * length + 1] for i in range(number)]
        clients += [client] * number
    if len(rows) < 2 * parts:
        what = f"{name}: {sum(map(len, pieces))} characters make {len(rows)} examples of length={length}"
        raise ValueError(f"{what}: must be at least {2 * parts}, two for each of {parts} parts; lower length or parts.")
    owners, x = np.array(clients, np.int32), np.stack(rows)
    is_test = stratified_fraction_mask([owners], test_fraction)
    return from_arrays(
        x[~is_test],
        None,
        x[is_test],
        None,
        [repr(character)[1:-1] for character in characters],
        targets="tokens",
        name=name,
        train_clients=owners[~is_test],
        test_clients=owners[is_test],
        client_names=client_names,
    )
