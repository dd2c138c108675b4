"""Finds the files, besides data and code, that a config's results depend on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.registry import parse_spec

LONGEST = 4096  # of a path; of longer ones some systems do not tell whether they exist


def existing_input_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files that exist of weights, of devices and clients, and of the method's options."""
    return [*existing_weight_files(resolved), *existing_option_files(resolved.fields)]


def existing_option_files(fields: Mapping[str, Any]) -> list[Path]:
    """Returns the files that exist of devices and clients, and of the method's options."""
    return [*existing_client_files(fields), *existing_method_files(fields).values()]


def existing_weight_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files of weights that exist, each once."""
    return sorted({Path(network.file) for network in resolved.networks if network.file and Path(network.file).is_file()})


def existing_client_files(fields: Mapping[str, Any]) -> list[Path]:
    """Returns the files that exist of devices, availability and settings by client, each once."""
    specs = {name: text for name, text in fields.items() if name.startswith(("devices.", "clients.")) and isinstance(text, str)}
    paths = [parse_spec(text, name)[1].get("path") for name, text in specs.items()]
    return sorted({file for path in paths if isinstance(path, str) and (file := Path(path).expanduser()).is_file()})


def existing_method_files(fields: Mapping[str, Any]) -> dict[str, Path]:
    """Returns the files that exist of the method's options, such as a mixing matrix, by field.

    An option is taken for a file if it is a short text with a suffix, like "links.csv".
    """
    options = {name: value for name, value in fields.items() if name.startswith("method.") and name != "method.name"}
    paths = {name: Path(value).expanduser() for name, value in options.items() if isinstance(value, str)}
    return {name: path for name, path in paths.items() if path.suffix and len(str(path)) < LONGEST and path.is_file()}
