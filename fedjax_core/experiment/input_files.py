"""Finds the files, besides data and code, that a config's results depend on."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.language import clip_task, instruction_task, load_pretrained
from fedjax_core.registry import parse_spec

LONGEST = 4096  # of a path; of longer ones some systems do not tell whether they exist


def existing_input_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files that exist of weights and pre-trained models, of devices and clients, and of the method's options."""
    return [*existing_weight_files(resolved), *existing_model_files(resolved), *existing_option_files(resolved)]


def existing_option_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files that exist of devices and clients, and of the method's options."""
    return [*existing_client_files(resolved.fields), *existing_method_files(resolved).values()]


def existing_weight_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files of weights that exist, each once."""
    return sorted({Path(network.file) for network in resolved.networks if network.file and Path(network.file).is_file()})


def existing_model_files(resolved: ResolvedConfig) -> list[Path]:
    """Returns the files that exist of the folders and packages from which networks are read, each once."""
    files: set[Path] = set()
    for network in resolved.networks:
        function, options = network.resolved.function, network.resolved.options
        folder = None
        if function in (instruction_task.Spec, clip_task.Spec) and options.get("folder") is not None:
            folder = Path(str(options["folder"])).expanduser()
        elif function is instruction_task.Spec and options.get("package") is not None:
            with contextlib.suppress(FileNotFoundError):
                folder = load_pretrained.find_package_folder(str(options["package"]))
        if folder is not None and folder.exists():
            files |= {file for file in load_pretrained.list_files(folder) if file.is_file()}
    return sorted(files)


def existing_client_files(fields: Mapping[str, Any]) -> list[Path]:
    """Returns the files that exist of devices, availability and settings by client, each once."""
    specs = {name: text for name, text in fields.items() if name.startswith(("devices.", "clients.")) and isinstance(text, str)}
    paths = [parse_spec(text, name)[1].get("path") for name, text in specs.items()]
    return sorted({file for path in paths if isinstance(path, str) and (file := Path(path).expanduser()).is_file()})


def existing_method_files(resolved: ResolvedConfig) -> dict[str, Path]:
    """Returns the files that exist of the method's options, such as a mixing matrix, by field.

    An option is taken for a file if it is a short text with a suffix, like "links.csv".
    """
    options = {f"method.{name}": value for name, value in resolved.method.options.items()}  # those beside its name, too
    paths = {name: Path(value).expanduser() for name, value in options.items() if isinstance(value, str)}
    return {name: path for name, path in paths.items() if path.suffix and len(str(path)) < LONGEST and path.is_file()}
