"""Federated learning simulated in JAX: the engine. Methods are in `methods`, their settings in `configs`."""

from importlib import metadata
from pathlib import Path

__all__ = ["__version__"]


def _version() -> str:
    """Returns the version of the installed package; of a checkout, what its pyproject.toml says."""
    try:
        return metadata.version("fedjax-core")
    except metadata.PackageNotFoundError:
        pass
    file = Path(__file__).parents[1] / "pyproject.toml"
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"


__version__ = _version()
