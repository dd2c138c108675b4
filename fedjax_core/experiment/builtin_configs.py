"""The configs that come with the package, by their bare names."""

from fedjax_core import own_packages, registry
from fedjax_core.experiment.method_registry import Config

NOT_NAMED = ("__init__", "base")  # files that are no experiments


def load_config(name: str) -> Config:
    """Returns a config that comes with the package, as the command line names it.

    It is found whatever the current folder holds, also where `from configs import fedavg` finds a package
    `configs` of the user's own.

    >>> load_config("fedavg:smoke").method.name
    'fedavg'

    Args:
      name: such as "fedavg", or with a variant "fedavg:smoke".

    Raises:
      ValueError: there is no such config, or no such variant of it.
    """
    stem, colon, variant = name.partition(":")
    known = sorted(file.stem for file in (own_packages.HOME / "configs").glob("*.py") if file.stem not in NOT_NAMED)
    registry.choose("config", stem, known)
    with own_packages.ours():
        get_config = own_packages.import_bundled(f"configs.{stem}").get_config
        return get_config(variant) if colon else get_config()
