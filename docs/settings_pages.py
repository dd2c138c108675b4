"""Makes the pages "Settings" and "What settings may name" when the site is built: from what `fedjax-core list` shows."""

import itertools
from typing import Any

from markup import escape, format_code

from fedjax_core import registry
from fedjax_core.commands import list_names

FIELDS = """# Settings

Fields of a config, with the default of the variant `small`. A config file assigns them: `config.data.clients = 100`. A command
line sets them: `--config.data.clients=100`. So does a table's: `--set=data.clients=100`. A method's own options are fields
`config.method.*`: `fedjax-core list methods NAME` shows them. `fedjax-core list fields` shows this page in a terminal.
"""
CHOICES = """# What settings may name

What is built in, by the field that names it. Options stand in brackets behind a name: `data.partition` may be
`"dirichlet(alpha=0.1)"`, `models` `("cnn(widths=(16, 32))",)`. An optimizer's options may also be fields: `optimizer.lr`.
[Methods](../methods/index.md), [data sources](../sources/index.md) and [networks](../networks/index.md) have pages of their own.
`fedjax-core list KIND NAME` shows each in a terminal, also what installed packages add.
"""
WITH_PAGES = ("methods", "sources", "models")  # kinds whose names have a page each


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
    return f"| `{field.name}` | {format_code(repr(field.default))} | {escape(description)} |"


def render_choices() -> str:
    """Returns the page of what fields may name: kinds without pages of their own, with options and docstrings."""
    lines = [CHOICES]
    for kind, section in list_names.SECTIONS.items():
        names = list(section.builders())
        if kind in WITH_PAGES or not names:
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
