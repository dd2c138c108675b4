"""Shows the fields of a config, and what they may name: methods, models, data sources and the rest, with options and defaults.

fedjax-core list                        the kinds there are
fedjax-core list methods                one kind, a line each
fedjax-core list partitions dirichlet   one of them: its options and what they mean
fedjax-core list fields data            fields of a config, here config.data.*; all of them without a name
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flax import nnx

from fedjax_core import experiment, nn, outside, registry
from fedjax_core.commands import ending, fields, shipped
from fedjax_core.data import partition, poisoning, sources
from fedjax_core.language import instruction_task as language
from fedjax_core.nn.from_nnx import FIXED
from fedjax_core.reporting import loggers, reporter
from fedjax_core.training import adapters
from fedjax_core.training.augment import pipeline
from fedjax_core.uplink import attacks, compression, dp_mechanisms, robust_aggregation

OF_A_MODEL = {"resize": None, "frame": 0}  # options that every network of images has
SAID_OF_THEM = """Of any network of images:
  resize: pixels, height and width or one number for both, to which images are scaled first; None: their own.
  frame: width of a frame of learnable pixels around them."""
ELSEWHERE = re.compile(r"[Aa]rguments as (?:those\s+of|in)\s+`(\w+)`")  # in a docstring, of another one of its kind


class Kind(NamedTuple):
    """Something that configs name.

    Attributes:
      what: it is, as packages announce it (`outside.GROUPS`) and messages call it.
      field: of a config, where it stands.
      found: () -> {name: what builds it}.
      hidden: arguments that the builder gets from the run.
    """

    what: str
    field: str
    found: Callable[[], Mapping[str, Callable]]
    hidden: Collection[str] = ()


def _methods() -> dict[str, Callable]:
    return {name: experiment.method(name) for name in experiment.names()}


def _models() -> dict[str, Callable]:
    return nn.MODULES | {language.MODEL: language.Spec}


def _sources() -> dict[str, Callable]:
    return sources.READERS | {language.SOURCE: language.Source}


KINDS = {
    "methods": Kind("method", "method.name", _methods, ("task", "optimizer")),
    "models": Kind("model", "models", _models, ("rngs", "dtype", "blocks", "block")),
    "sources": Kind("data set", "data.source", _sources, sources.GIVEN),
    "partitions": Kind("partition", "data.partition", lambda: partition.SCHEMES, partition.GIVEN),
    "optimizers": Kind("optimizer", "optimizer.name", lambda: experiment.OPTIMIZERS),
    "augmentations": Kind("augmentation", "augment", lambda: pipeline.OPS),
    "adapters": Kind("adapter", "adapter", lambda: adapters.ADAPTERS),
    "losses": Kind("loss", "loss", lambda: experiment.LOSSES, ("logits", "y", "mask")),
    "rules": Kind("rule", "aggregation.rule", lambda: robust_aggregation.RULES),
    "attacks": Kind("attack", "adversary.attack", lambda: attacks.SENT | attacks.CRAFTED | poisoning.POISONS),
    "compressors": Kind("compressor", "compression.uplink", lambda: compression.COMPRESSORS),
    "mechanisms": Kind("mechanism", "privacy.mechanism", lambda: dp_mechanisms.MECHANISMS, dp_mechanisms.GIVEN),
    "tasks": Kind("task", "task", lambda: experiment.TASKS),
    "scores": Kind("score", "evaluation.scores", lambda: experiment.SCORES, ("outputs", "x", "y", "mask")),
    "callbacks": Kind("callback", "callbacks", lambda: loggers.CALLBACKS),
}
FILES = {"configs": "config", "tables": "table"}  # found by bare name; see `shipped`
OF_CONFIGS = "fields"


def options(kind: str, name: str, builder: Callable) -> dict[str, Any]:
    """What may stand in brackets behind a name, with the defaults.

    Args:
      kind: one of `KINDS`.
      name: of the thing.
      builder: of the thing.

    Returns:
      Default by option; `inspect.Parameter.empty` for one that must be given.
    """
    network = isinstance(builder, type) and kind == "models" and not hasattr(builder, "_fields")
    hidden = {*FIXED.get(name, ()), *(() if kind == "models" and not network else KINDS[kind].hidden)}
    parameters = inspect.signature(builder.__init__ if network else builder).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY or (not network and p.kind is p.POSITIONAL_OR_KEYWORD)]
    return {p.name: p.default for p in named if p.name not in hidden} | (OF_A_MODEL if network else {})


def spelled(name: str, given: Mapping[str, Any]) -> str:
    """As a config may write it: name(option=default, ...)."""
    texts = [key if value is inspect.Parameter.empty else f"{key}={_literal(value)}" for key, value in given.items()]
    return f"{name}({', '.join(texts)})" if texts else name


def _literal(value: Any) -> str:
    """A default: a value as Python writes it, a function by its name."""
    return getattr(value, "__name__", None) or repr(value)


def about(kind: str, name: str, builder: Callable) -> str:
    """The docstring: of a method its module's, which has the paper."""
    of = sys.modules[builder.__module__] if kind == "methods" else builder
    return inspect.cleandoc(of.__doc__ or "") if not _made_up(of) else ""


def _made_up(of: Any) -> bool:
    """Whether its docstring is one that Python wrote."""
    text = str(of.__doc__)
    return (dataclasses.is_dataclass(of) or hasattr(of, "_fields")) and text.startswith(f"{getattr(of, '__name__', '')}(")


def kinds() -> str:
    """The kinds that there are, with their number and the config's field."""
    counts = {OF_CONFIGS: (len(fields.fields()), "config.*")}
    counts |= {kind: (len(_all(kind)), f"config.{entry.field}") for kind, entry in KINDS.items()}
    counts |= {
        kind: (len(shipped.names(what)), f"fedjax-core {'run' if what == 'config' else what} NAME") for kind, what in FILES.items()
    }
    lines = [f"  {kind:14} {number:4}  {field}" for kind, (number, field) in counts.items()]
    return "\n".join(["fedjax-core list KIND [NAME], with KIND one of", "", *lines])


def _all(kind: str) -> dict[str, Callable]:
    """What there is of a kind by name: built in, then what installed packages announce.

    Raises:
      ValueError: a package announces something that cannot be loaded.
    """
    entry = KINDS[kind]
    brought = {name: outside.load(entry.what, name)[0] for name in outside.announced(entry.what)}
    return {**entry.found(), **brought}


def listed(kind: str) -> str:
    """A line for each thing of a kind: how it is written, the first line of what is said of it, and which package brings it."""
    if kind == OF_CONFIGS:
        return fields.listed()
    if kind in FILES:
        return "\n".join(shipped.names(FILES[kind]))
    lines, brought = [], outside.announced(KINDS[kind].what)
    for name, builder in _all(kind).items():
        first = about(kind, name, builder).partition("\n")[0]
        if name in brought:
            first += f" [{outside.load(KINDS[kind].what, name)[1]}]"
        written = name if kind == "methods" else spelled(name, options(kind, name, builder))
        lines.append(f"{written:16}  {first}".rstrip() if len(written) <= 16 else f"{written}\n{'':16}  {first}".rstrip())
    return "\n".join(lines)


def detailed(kind: str, name: str) -> str:
    """One thing: how it is written with all of its options, and all that is said of it.

    Raises:
      ValueError: there is none of this name.
    """
    if kind == OF_CONFIGS:
        return fields.listed(name)
    if kind in FILES:
        return _head_of(shipped.file(FILES[kind], name))
    found = _all(kind)
    builder = found[registry.choose(KINDS[kind].what, name, found)]
    texts = [spelled(name, options(kind, name, builder)), about(kind, name, builder)]
    if kind == "methods":
        texts.append(inspect.cleandoc(builder.__doc__ or ""))
    if isinstance(builder, type) and builder.__init__.__doc__ not in (object.__init__.__doc__, nnx.Module.__init__.__doc__):
        texts.append(inspect.cleandoc(builder.__init__.__doc__ or ""))
    if name in nn.MODULES:
        texts.append(SAID_OF_THEM)
    if (other := ELSEWHERE.search(texts[1])) and other[1] in found:
        texts.append(f"{other[1]}: {about(kind, other[1], found[other[1]])}")
    return "\n\n".join(text for text in texts if text)


def _head_of(file: str) -> str:
    """The docstring of a file."""
    with open(file, encoding="utf-8") as opened:
        return ast.get_docstring(ast.parse(opened.read())) or file


def _parser() -> argparse.ArgumentParser:
    parser = reporter.Parser("fedjax-core list", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", help=f"one of {', '.join([OF_CONFIGS, *KINDS, *FILES])}")
    parser.add_argument("name", nargs="?", help="one of the kind")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, prints; the exit status is 0, or 2 for a wrong command line."""
    try:
        given = _parser().parse_args(arguments)
        if given.kind is None:
            text = kinds()
        else:
            registry.choose("kind", given.kind, [OF_CONFIGS, *KINDS, *FILES])
            text = listed(given.kind) if given.name is None else detailed(given.kind, given.name)
    except ValueError as error:
        return reporter.fail(error, 2)
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    ending.end("fedjax_core.commands.list_names", sys.argv[1:])
