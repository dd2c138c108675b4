"""Makes the page "Choose a method" when the site is built: from the README's table and the methods' docstrings."""

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = re.compile(r"^In plain words: (?P<words>.*?)^Sent to clients: (?P<down>.*?)\.\n\n", re.DOTALL | re.MULTILINE)
HEAD = """# Choose a method

Every method below runs with `fedjax-core run NAME --workdir=DIR`. All of them share data, networks, evaluation and the compiled
round, so two methods differ only in what this page says. K is the number of classes and D the number of features.

| you want | look at |
|---|---|
| one model for all clients | FedAvg, then SCAFFOLD, FedDyn, FedProx, FedOpt, FedSAM |
| a fair share for the worst clients | q-FedAvg, AFL |
| clients that lack classes | FedLC, FedNTD, FedSKC |
| a model for each client | Local (the baseline to beat), FedAvg with fine-tuning, FedPer, Ditto, FedPFT |
| a model for each group of clients | IFCA, CFL |
| clients with different networks | FedHe, FedProto, FedMD, FedHPL |
| adapters of a frozen network | FedIT, PerAda, FedOA |

Scores of all methods on the same data, with commands and seeds, are in [Results](results/digits.md).
"""


def read_method_table(readme: str) -> dict[str, list[str]]:
    """Returns the README's table of methods: by name, the other four cells."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", readme, re.MULTILINE)
    table = {name: [cell.strip() for cell in rest.split("|")] for name, rest in lines}
    return {name: cells for name, cells in table.items() if len(cells) == 4}


def render_method(name: str, cells: list[str]) -> str:
    """Returns the section of one method: what it is, what travels, where its code is.

    Raises:
      ValueError: its docstring does not say it in plain words.
    """
    title, client_state, uplink, may_differ = cells
    source = (ROOT / "methods" / f"{name}.py").read_text(encoding="utf-8")
    first_line, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    summary = SUMMARY.match(rest)
    if summary is None:
        raise ValueError(
            f"methods/{name}.py: below its first line the docstring lacks 'In plain words: ...' and 'Sent to clients: ...'"
        )
    address = re.search(r"https?://\S+", rest)
    paper = f" [Paper]({address[0].rstrip('.')})." if address else ""
    diagram = [
        "```mermaid",
        "flowchart LR",
        f'  server -->|"{summary["down"]}"| client',
        f'  client -->|"{uplink}"| server' if uplink else "  client -.- server",
        f'  client["client keeps: {client_state}"]',
        "```",
    ]
    return "\n".join(
        [
            f"## {title}",
            "",
            " ".join(summary["words"].split()) + paper,
            "",
            *diagram,
            "",
            f"Models of clients may differ: {may_differ}. Config: `configs/{name}.py`, with the variants `smoke`, `small` and "
            f"`paper`. Code: `methods/{name}.py` ({first_line.rstrip('.')}).",
            "",
        ]
    )


def render_page() -> str:
    """Returns the whole page."""
    table = read_method_table((ROOT / "README.md").read_text(encoding="utf-8"))
    return "\n".join([HEAD, *(render_method(name, cells) for name, cells in table.items())])


def on_files(files: Any, config: Any) -> Any:
    """Adds the page; mkdocs calls this."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "methods.md", content=render_page()))
    return files
