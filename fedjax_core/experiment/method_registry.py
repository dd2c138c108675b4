"""The methods that there are, found by name, and a config's method changed to another one."""

import functools
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_core import own_packages, registry

Config = Any  # an ml_collections.ConfigDict as configs/base.py makes it; type checkers do not know its fields
PROTOCOL = ("epochs", "batch", "weights")  # how a method trains, whatever it is: what a config keeps with another one


@functools.cache
def _modules(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the modules in folders, which are looked through once."""
    return tuple(module.name for module in pkgutil.iter_modules(folders))


class _Methods(Mapping[str, Callable]):
    """Builders by name, each imported when it is asked for."""

    def __iter__(self):
        return (name for name in _modules((str(own_packages.HOME / "methods"),)) if name != "main")

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Callable:
        if name not in iter(self):
            raise KeyError(name)
        return getattr(own_packages.import_bundled(f"methods.{name}"), name)


METHODS = _Methods()


def names() -> dict[str, str]:
    """The methods that there are, each with the first line of its docstring."""
    return {name: (own_packages.import_bundled(f"methods.{name}").__doc__ or "").partition("\n")[0] for name in METHODS}


def method(name: str) -> Callable:
    """The builder of a method: the function in `methods/<name>.py` that has its name, or one from outside (`registry.py`).

    Raises:
      ValueError: there is no such method.
    """
    return registry.lookup("method", name, METHODS)[0]


def switch(config: Config, method_of: Mapping[str, Any]) -> str:
    """Gives a config another method, in place. Of the old one's options those of `PROTOCOL` that the new one has are kept, all
    others are dropped: a coefficient of one method says nothing of another's that has the same name.

    Args:
      config: with a method; it may be locked.
      method_of: "name" of the new method, and options of it. If it is the config's own method, or there is no name, these change
        its options.

    Returns:
      A line that says what was kept and what was dropped; empty where it is the config's own method.

    Raises:
      ValueError: there is no such method.
    """
    method_of = {"name": config.method.name, **method_of}
    name, own = registry.parse(method_of["name"], "method.name")
    function, before = method(name), config.method.to_dict()
    old = before.pop("name")
    if same := _is_method(old, function):
        kept = {key: value for key, value in before.items() if key not in own}
    else:
        takes, others = registry.parameters(function)
        kept = {key: value for key, value in before.items() if key in PROTOCOL and key not in own and (key in takes or others)}
    with config.unlocked():
        config.method = _merged(kept, method_of)
    if same:
        return ""
    settings = {key: value for key, value in kept.items() if key not in method_of}
    dropped = {key: value for key, value in before.items() if key not in {*kept, *own, *method_of}}
    said = [f"{word} {_said(of)}" for word, of in (("kept", settings), ("dropped", dropped)) if without_none(of)]
    return f"method {name} in place of {old}: {'; '.join([*said, 'its other options are its defaults'])}"


def _is_method(name: str, function: Callable) -> bool:
    """Whether a name stands for this builder."""
    try:
        return method(registry.parse(name)[0]) is function
    except ValueError:  # such as one that an earlier process was given
        return False


def _merged(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others, mappings among them one by one."""
    both = {key for key in before if isinstance(before[key], Mapping) and isinstance(more.get(key), Mapping)}
    return {**before, **more, **{key: _merged(before[key], more[key]) for key in both}}


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in without_none(options).items())


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a config leaves at None."""
    return {key: value for key, value in options.items() if value is not None}
