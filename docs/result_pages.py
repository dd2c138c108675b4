"""Makes the pages of the section "Results" when the site is built: configs/RESULTS.md, and the pages that it links."""

from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def read_pages() -> dict[str, str]:
    """Returns the text of each page, by its path on the site."""
    pages = {"results.md": (CONFIGS / "RESULTS.md").read_text(encoding="utf-8")}
    for file in sorted((CONFIGS / "results").glob("*.md")):
        text = file.read_text(encoding="utf-8")
        pages[f"results/{file.name}"] = text.replace("](../RESULTS.md", "](../results.md").replace("](../../docs/pages/", "](../")
    return pages


def relink(text: str) -> str:
    """Returns a page of docs/pages whose links to results lead to their pages on the site."""
    text = text.replace("](../../../configs/results/", "](../results/")  # of a page in a folder
    return text.replace("](../../configs/RESULTS.md", "](results.md").replace("](../../configs/results/", "](results/")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages; mkdocs calls this."""
    from mkdocs.structure.files import File

    for path, content in read_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Relinks a page; mkdocs calls this for each of them."""
    return relink(markdown)
