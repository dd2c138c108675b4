"""Targets of a plan: the local devices, or a TPU topology, whose compiler comes with the package libtpu."""

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

HERE = "here"
TPU_CHIPS = ("v2", "v3", "v4", "v5e", "v5p", "v6e")
TRIED = {("0.10", "0.0.52")}  # jax and libtpu that were seen to work, beside those that jax itself asks for
_FORM = re.compile(r"(?:([1-9]\d*)\*)?(\w+):([1-9]\d*(?:x[1-9]\d*){0,2})")
MISSING = "TPU topologies need the package libtpu"
ENVIRONMENT = {  # of a process that compiles for a TPU without one
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # there is no machine to ask what it is
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # processes compile side by side
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "",
    "TPU_LOG_DIR": "disabled",
    "XLA_FLAGS": "",  # flags of a CPU end the compiler of a TPU, which reads LIBTPU_INIT_ARGS
}


class Target(NamedTuple):
    """A target to compile for.

    Attributes:
      name: "here", or a topology, "v5e:16x16", of several slices "2*v5e:16x16".
      topology: of each; "" here.
    """

    name: str
    slices: int = 1
    topology: str = ""


def parse_targets(text: str) -> list[Target]:
    """Parses targets with commas between."""
    targets = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        form = _FORM.fullmatch(name)
        if name == HERE:
            targets.append(Target(HERE))
        elif form is None or form[2] not in TPU_CHIPS:
            chips = ", ".join(TPU_CHIPS)
            raise ValueError(
                f"--topology={name!r} must be CHIP:SIZE such as v5e:16x16 or 2*v5e:16x16, with a chip of {chips}; or here"
            )
        elif form[2] in ("v5e", "v6e") and max(map(int, form[3].split("x"))) > 16:
            raise ValueError(
                f"--topology={name!r}: no side of a slice of {form[2]} is longer than 16; take slices, 2*{form[2]}:16x16"
            )
        else:
            targets.append(Target(name, int(form[1] or 1), f"{form[2]}:{form[3]}"))
    if not targets:
        raise ValueError("--topology names no target")
    return targets


def explain_unavailable(targets: Sequence[Target]) -> str | None:
    """Returns in one line why some targets cannot be compiled for here; None if they can."""
    if all(target.name == HERE for target in targets):
        return None
    matches = [re.search(r"libtpu==([\d.]+)\.\*", line) for line in importlib.metadata.requires("jax") or ()]
    required = next((match[1] for match in matches if match), None)
    minor = ".".join(jax.__version__.split(".")[:2])
    tried = any(jax_version == minor for jax_version, _ in TRIED)  # then it is what the extra has
    install = "pip install " + (f"'libtpu=={required}.*'" if required and not tried else "'fedjax-core[plan]'")
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return f"{MISSING}: {install}"
    if required is None or f"{version}.".startswith(f"{required}.") or (minor, version) in TRIED:
        return None
    known = " or ".join([f"{required}.*", *sorted(libtpu for jax_version, libtpu in TRIED if jax_version == minor)])
    return f"libtpu {version} is not known to fit jax {jax.__version__}, which wants {known}: {install}"


def target_devices(target: Target) -> Sequence[Any]:
    """Returns the devices of a target, to compile for."""
    if target.name == HERE:
        return jax.devices()
    from jax.experimental import topologies

    more: dict[str, Any] = {"num_slices": target.slices} if target.slices > 1 else {}
    if target.topology.startswith("v4:"):
        more["chip_config_name"] = "megacore"  # both cores of a chip as one device, as a machine's jax has them
    try:
        return topologies.get_topology_desc(topology_name=target.topology, platform="tpu", **more).devices
    except Exception as error:  # the compiler's own kinds
        raise ValueError(f"there is no topology {target.name!r}: {str(error).splitlines()[0]}") from None
