"""Makes the pages "Settings" and "What settings may name" when the site is built: from what `fedjax-core list` shows."""

import itertools
import re
from typing import Any

from fedjax_core import registry
from fedjax_core.commands import list_names

FIELDS = """# Settings

Fields of a config, with the default of the variant `small`. A config file assigns them: `config.data.clients = 100`. A command
line sets them: `--config.data.clients=100`. So does a table's: `--set=data.clients=100`. A method's own options are fields
`config.method.*`: `fedjax-core list methods NAME` shows them. `fedjax-core list fields` shows this page in a terminal.
"""
CHOICES = """# What settings may name

What is built in, by the field that names it. Options stand in brackets behind a name: `data.partition` may be
`"dirichlet(alpha=0.1)"`, `models` `("cnn(widths=(16, 32))",)`. An optimizer's options may also be fields: `optimizer.lr`. Methods
have [a page of their own](../methods.md). `fedjax-core list KIND NAME` shows each in a terminal, also what installed packages add.
"""


def render_settings() -> str:
    """Returns the page of fields: a table for each group of a config."""
    fields = list_names.read_fields()
    parts = [("The run", [field for field in fields if "." not in field.name])]
    inner = itertools.groupby((field for field in fields if "." in field.name), lambda field: field.name.partition(".")[0])
    parts += [(f"config.{part}", list(group)) for part, group in inner]
    lines = [FIELDS]
    for title, group in parts:
        lines += [f"## {title}", "", "| field | default | what it is for |", "|---|---|---|", *map(_render_row, group), ""]
    return "\n".join(lines)


def _render_row(field: list_names.Field) -> str:
    description = f"{field.comment.rstrip('.')}. Allowed: {field.allowed}." if field.allowed else field.comment
    return f"| `{field.name}` | {_format_code(repr(field.default))} | {_escape_cell(description)} |"


def _format_code(text: str) -> str:
    """Returns the text as code in a table, where a bar would end the cell."""
    return f"`{text}`".replace("|", "\\|")


def _escape_cell(text: str) -> str:
    """Returns the text with the signs of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_|\[])", r"\\\1", text).replace("<", "&lt;")


def render_choices() -> str:
    """Returns the page of what fields may name: all kinds but methods, each with its options and its docstring."""
    lines = [CHOICES]
    for kind, section in list_names.SECTIONS.items():
        names = list(section.builders())
        if kind == "methods" or not names:
            continue
        yours = "Yours: `package.module:name` or `path/to/file.py:name`." if section.what in registry.ENTRY_POINT_GROUPS else ""
        lines += [f"## {kind.capitalize()}: config.{section.field}", "", *([yours, ""] if yours else ())]
        for name in names:
            lines += [f"### {name}", "", "~~~text", list_names.describe_name(kind, name), "~~~", ""]
    return "\n".join(lines)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages; mkdocs calls this."""
    from mkdocs.structure.files import File

    for name, content in (("settings", render_settings()), ("choices", render_choices())):
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files
