"""Writes the public address of the repository where packages, citations, notebooks and the README name it.

  REPOSITORY_URL=https://github.com/OWNER/NAME [SITE_URL=https://...] python .ci/set_address.py [ROOT]

Another call replaces an earlier address. The site reads both variables when it is built.
"""

import os
import re
import sys
from pathlib import Path

COLAB = "https://colab.research.google.com/"
BADGE = "colab-badge.svg)]"


def replace_once(file: Path, pattern: str, replacement: str) -> None:
    """Replaces the one match of a pattern in a file."""
    text, count = re.subn(pattern, replacement, file.read_text(encoding="utf-8"), flags=re.M)
    if count != 1:
        raise SystemExit(f"{file}: {count} places match {pattern!r}; there must be one")
    file.write_text(text, encoding="utf-8")


def main() -> None:
    """Edits the files."""
    root = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1]
    url, site = os.environ.get("REPOSITORY_URL", "").rstrip("/"), os.environ.get("SITE_URL", "")
    matched = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", url)
    if matched is None:
        raise SystemExit(f"REPOSITORY_URL={url!r} must be https://github.com/OWNER/NAME")
    name = matched[1]
    addresses = {"Documentation": site} if site else {}
    addresses |= {"Repository": url, "Issues": f"{url}/issues", "Changelog": f"{url}/blob/main/CHANGELOG.md"}
    urls = "[project.urls]\n" + "".join(f'{key} = "{value}"\n' for key, value in addresses.items()) + "\n"
    badge = f"[![ci]({url}/actions/workflows/ci.yml/badge.svg)]({url}/actions/workflows/ci.yml)\n\n"
    # Patterns match a file without an address, and one with another.
    for path, pattern, replacement in (
        ("pyproject.toml", r"(\[project\.urls\]\n[^[]*)?(\[project\.optional-dependencies\]\n)", rf"{urls}\2"),
        ("CITATION.cff", r"(^repository-code: [^\n]*\n)?(^license: )", rf"repository-code: {url}\n\2"),
        ("README.md", r"\A(# [^\n]*\n\n)(\[!\[ci\][^\n]*\n\n)?", rf"\1{badge}"),
    ):
        replace_once(root / path, pattern, replacement)
    for file in sorted((root / "colab").glob("*.ipynb")):
        link = f"{BADGE}({COLAB}github/{name}/blob/main/colab/{file.name})"
        replace_once(file, re.escape(f"{BADGE}({COLAB}") + r"[^)]*\)", link)
        replace_once(file, r'SOURCE = \\"[^"\\]*\\"', rf'SOURCE = \\"git+{url}\\"')


if __name__ == "__main__":
    main()
