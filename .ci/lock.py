"""Renews pylock.toml, the versions of the base installation and of the tests' extras, for Linux, macOS and Windows.

  python .ci/lock.py            # keeps the versions that still fit pyproject.toml
  python .ci/lock.py --upgrade  # takes the newest
  python .ci/lock.py --check    # ends with 1 where the file does not fit pyproject.toml

uv, of the extra "release", resolves them. The extra "reference" is left out: installers take different builds of torch.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "pylock.toml"
COMPILE = ("pip", "compile", "pyproject.toml", "--universal", "--extra=test", "--python-version=3.11", "--no-header", "--quiet")


def read_versions(lock: Path) -> set[tuple[str, str, str]]:
    """Returns the (name, version, marker) of a lock's packages; files that a release gains later do not count."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    return {(package["name"], package["version"], package.get("marker", "")) for package in packages}


def main() -> int:
    """Writes or checks the lock, and returns the exit status."""
    option = sys.argv[1] if sys.argv[1:] else ""
    if option not in ("", "--upgrade", "--check"):
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / LOCK.name
        if option != "--upgrade" and LOCK.exists():
            shutil.copy(LOCK, new)
        subprocess.run([sys.executable, "-m", "uv", *COMPILE, f"--output-file={new}"], cwd=ROOT, check=True)
        if option != "--check":
            shutil.copy(new, LOCK)
            return 0
        changes = sorted(read_versions(LOCK) ^ read_versions(new))
    if changes:
        print("pylock.toml does not fit pyproject.toml; renew it by `python .ci/lock.py`:", *changes, sep="\n  ")
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
