"""The fields of a config: defaults, what they are for, what they may hold; read from `configs/base.py` and `experiment.fields`."""

import ast
import io
import re
import textwrap
import tokenize
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_core import option_types, own_packages, registry
from fedjax_core.commands import shipped
from fedjax_core.experiment.schema import FIELDS

INDENT = " " * 4


class Field(NamedTuple):
    """A field of a config.

    Attributes:
      name: with dots.
      default: in `configs/base.py`, variant "small".
      said: what it is for.
      allowed: what it may hold, in words; "" where others check it.
    """

    name: str
    default: Any
    said: str
    allowed: str


def fields() -> list[Field]:
    """Those that all configs have, in the order of `configs/base.py`. A method's options are fields `method.*` beside them."""
    config = own_packages.import_bundled("configs.base").get_config("small")
    said = _comments(Path(shipped.FOLDERS["config"] / "base.py").read_text(encoding="utf-8"))
    found = []
    for name, text in said.items():
        default: Any = config
        for part in name.split("."):
            default = default[part]
        allowed = (option_types.must_be(object(), FIELDS[name]) if name in FIELDS else None) or ""
        found.append(Field(name, default, text, re.sub(r" or None$", "; or None", allowed)))
    return found


def listed(part: str = "") -> str:
    """All fields, or those of a part such as "data", or one, as text.

    Raises:
      ValueError: there is no such field.
    """
    every = fields()
    part = part.removeprefix("config.")
    chosen = [field for field in every if not part or field.name == part or field.name.startswith(f"{part}.")]
    if not chosen:
        parts = dict.fromkeys(field.name.partition(".")[0] for field in every if "." in field.name)
        registry.choose("field", part, [*parts, *(field.name for field in every)])
    lines = []
    for field in chosen:
        lines.append(f"{field.name} = {field.default!r}")
        texts = field.said, field.allowed and f"allowed: {field.allowed}"
        lines += [line for text in texts for line in textwrap.wrap(text, 120, initial_indent=INDENT, subsequent_indent=INDENT)]
    more = "method.* are a method's own: fedjax-core list methods NAME"
    return "\n".join([*lines, *([] if part else ["", more])])


def _comments(code: str) -> dict[str, str]:
    """By assigned field of `config` in `get_config`: the comments on the lines above it and behind it, joined."""
    lines = code.splitlines()
    marks = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    body = next(node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef) and node.name == "get_config").body
    found = {}
    for node in body:
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("config.")):
            continue
        if ast.unparse(node.value) == "ConfigDict()":
            continue
        above, line = [], node.lineno - 1
        while lines[line - 1].lstrip().startswith("#"):
            above.insert(0, marks[line])
            line -= 1
        behind = [marks[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in marks]
        found[ast.unparse(node.targets[0]).removeprefix("config.")] = " ".join([*above, *behind])
    return found
