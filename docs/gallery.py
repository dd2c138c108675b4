"""Makes the page "Choose a method" when the site is built: from the README's table and the methods' docstrings."""

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLAIN = re.compile(r"^In plain words: (?P<words>.*?)^Sent to clients: (?P<down>.*?)\.\n\n", re.DOTALL | re.MULTILINE)
HEAD = """# Choose a method

Every method below runs with `fedjax-core run NAME --workdir=DIR`. All of them share data, networks, evaluation and the compiled
round, so two methods differ in what this page says and in nothing else. K is the number of classes and D the number of features.

| you want | look at |
|---|---|
| one model for everybody | FedAvg, then SCAFFOLD, FedProx, FedOpt, FedSKC |
| a model for each client | Local (to be beaten), FedAvg with fine-tuning, FedPer, Ditto, FedPFT |
| clients with different networks | FedHe, FedProto, FedMD, FedHPL |
| adapters of a frozen network | FedIT, PerAda, FedOA |

Scores of all methods on the same data, with commands and seeds, are in [Results](results/digits.md).
"""


def rows(readme: str) -> dict[str, list[str]]:
    """Of the README's table of methods: by name, the other cells."""
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", readme, re.MULTILINE)
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}
    return {name: of_one for name, of_one in cells.items() if len(of_one) == 4}


def entry(name: str, cells: list[str]) -> str:
    """One method: what it is, what travels, where it stands.

    Raises:
      ValueError: its docstring does not say it in plain words.
    """
    title, kept, up, differ = cells
    source = (ROOT / "methods" / f"{name}.py").read_text(encoding="utf-8")
    first, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    plain = PLAIN.match(rest)
    if plain is None:
        raise ValueError(
            f"methods/{name}.py: below its first line the docstring lacks 'In plain words: ...' and 'Sent to clients: ...'"
        )
    address = re.search(r"https?://\S+", rest)
    paper = f" [Paper]({address[0].rstrip('.')})." if address else ""
    drawing = [
        "```mermaid",
        "flowchart LR",
        f'  server -->|"{plain["down"]}"| client',
        f'  client -->|"{up}"| server' if up else "  client -.- server",
        f'  client["client keeps: {kept}"]',
        "```",
    ]
    return "\n".join(
        [
            f"## {title}",
            "",
            " ".join(plain["words"].split()) + paper,
            "",
            *drawing,
            "",
            f"Models of clients may differ: {differ}. Config: `configs/{name}.py`, with the variants `smoke`, `small` and `paper`. "
            f"Code: `methods/{name}.py` ({first.rstrip('.')}).",
            "",
        ]
    )


def page() -> str:
    """The whole page."""
    table = rows((ROOT / "README.md").read_text(encoding="utf-8"))
    return "\n".join([HEAD, *(entry(name, cells) for name, cells in table.items())])


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the page."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "methods.md", content=page()))
    return files
