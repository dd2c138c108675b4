"""Pieces of Markdown that the generated pages share."""

import re
from collections.abc import Iterable, Sequence

ADDRESS = re.compile(r"https?://[^\s,;)]+[^\s,;).]")


def escape(text: str) -> str:
    """Returns the text with the signs of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_|\[])", r"\\\1", text).replace("<", "&lt;")


def format_prose(text: str) -> str:
    """Returns a docstring's prose as Markdown: code and bold words stay, addresses become links."""
    parts = re.split(rf"(`[^`]+`|\*\*[^*]+\*\*|{ADDRESS.pattern})", " ".join(text.split()))
    return "".join(_format_part(part) for part in parts)


def _format_part(part: str) -> str:
    if ADDRESS.fullmatch(part):
        return f"[{escape(part.partition('://')[2])}]({part})"
    return part if part.startswith(("`", "**")) and len(part) > 4 else escape(part)


def format_code(text: str) -> str:
    """Returns the text as code in a table, where a bar would end the cell."""
    return f"`{text}`".replace("|", "\\|")


def format_docstring(text: str) -> list[str]:
    """Returns lines of Markdown: paragraphs as prose, indented ones (tables of symbols) as they are."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        is_block = any(line.startswith("  ") for line in paragraph.splitlines())
        lines += ["~~~text", paragraph, "~~~", ""] if is_block else [format_prose(paragraph), ""]
    return lines


def format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def format_shape(shape: Sequence[int]) -> str:
    """Returns a shape such as "28 x 28 x 1"."""
    return " x ".join(map(str, shape)) or "1 number"
