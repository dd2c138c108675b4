"""Traces what the methods send: the shapes of both messages of a round, of each smoke config.

Tracing all takes a minute, so the result is kept in build/ for as long as no source file changes.
"""

import functools
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "messages.json"
FEW = 3  # arrays whose shapes are listed


def trace_message(name: str) -> dict[str, Any]:
    """Returns what tracing the smoke config of a method says of it, as JSON values.

    Returns:
      "setting": its network and data; "down", "up": parts of the messages, each (name, shapes,
      numbers); "bytes": of both; "state": bytes that a client keeps; "targets"; "unseen": why it
      has no model for unseen clients, or "".
    """
    import jax

    from fedjax_core import experiment

    config = experiment.load_config(f"{name}:smoke")
    spec = experiment.build(config, shapes_only=True).spec
    shapes, algorithm = spec.shapes.groups[0], spec.abstract_algorithm(0)
    networks = dict.fromkeys(group.name.partition(": ")[2] or group.name for group in spec.groups)
    return {
        "setting": f"{', '.join(networks)} on {config.data.source.partition('(')[0]}",
        "down": _list_parts(shapes.wire[0]),
        "up": _list_parts(shapes.wire[1]),
        "bytes": (spec.shapes.down, spec.shapes.up),
        "state": sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.client)),
        "targets": algorithm.targets,
        "unseen": algorithm.init_unseen if isinstance(algorithm.init_unseen, str) else "",
    }


def _list_parts(tree: Any, name: str = "") -> list[tuple[str, str, int]]:
    """Returns the parts of a message; a network, or another dict of arrays, is one part."""
    import jax

    from fedjax_core.algorithm import Net

    if isinstance(tree, tuple) and not isinstance(tree, Net):
        names = getattr(tree, "_fields", [f"part {i + 1}" for i in range(len(tree))])
        parts = [_list_parts(part, f"{name} {key}".strip()) for key, part in zip(names, tree, strict=True)]
        return [part for inner in parts for part in inner]
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return []
    texts = ["x".join(map(str, leaf.shape)) or "1 number" for leaf in leaves[:FEW]]
    more = f" and {len(leaves) - FEW} more" if len(leaves) > FEW else ""
    return [
        (
            name or ("network" if isinstance(tree, Net) else "message"),
            f"{', '.join(texts)}{more}",
            sum(math.prod(leaf.shape) for leaf in leaves),
        )
    ]


@functools.cache
def trace_all() -> dict[str, dict[str, Any]]:
    """Returns the facts of every method, by name; in two processes where they are not kept."""
    files = sorted(file for folder in ("fedjax_core", "methods", "configs") for file in (ROOT / folder).rglob("*.py"))
    code = hashlib.sha256(b"".join(file.read_bytes() for file in [*files, Path(__file__)])).hexdigest()
    if KEPT.exists() and (kept := json.loads(KEPT.read_text()))["code"] == code:
        return kept["facts"]
    names = sorted(file.stem for file in (ROOT / "methods").glob("*.py") if file.stem not in ("__init__", "main"))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    halves = [
        subprocess.Popen([sys.executable, __file__, *half], stdout=subprocess.PIPE, text=True, env=environment)
        for half in (names[::2], names[1::2])
    ]
    texts = [half.communicate()[0] for half in halves]
    if any(half.returncode for half in halves):
        raise RuntimeError("docs/messages.py failed, see above")
    facts = {name: values for text in texts for name, values in json.loads(text).items()}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps({"code": code, "facts": facts}))
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: trace_message(name) for name in sys.argv[1:]}))
