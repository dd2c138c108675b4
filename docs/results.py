"""Makes the pages of the section "Results" when the site is built: configs/RESULTS.md, and what it links."""

from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def pages() -> dict[str, str]:
    """By place in the site, the text."""
    found = {"results.md": (CONFIGS / "RESULTS.md").read_text(encoding="utf-8")}
    for file in sorted((CONFIGS / "results").glob("*.md")):
        text = file.read_text(encoding="utf-8")
        found[f"results/{file.name}"] = text.replace("](../RESULTS.md", "](../results.md").replace("](../../docs/pages/", "](../")
    return found


def relinked(text: str) -> str:
    """A page of docs/pages with its links to results as they lead on the site."""
    return text.replace("](../../configs/RESULTS.md", "](results.md").replace("](../../configs/results/", "](results/")


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the pages."""
    from mkdocs.structure.files import File

    for place, content in pages().items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return relinked(markdown)
