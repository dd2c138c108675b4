"""Shows the fields of a config, and what they may name: methods, models, data sources and the rest,
with options and defaults.

fedjax-core list                        the kinds there are
fedjax-core list methods                one kind, a line each
fedjax-core list partitions dirichlet   one of them: its options and what they mean
fedjax-core list fields data            fields of a config, here config.data.*; all of them without a name
"""

import ast
import dataclasses
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from fedjax_core import devices, experiment, nn, option_types, own_packages, registry
from fedjax_core.commands.config_flags import FOLDERS, find_file, list_bundled
from fedjax_core.commands.main import run_and_exit
from fedjax_core.data import partition, poisoning, sources
from fedjax_core.data.sources.dataset_cards import CARDS
from fedjax_core.devices import client_values
from fedjax_core.engine import client_sampling
from fedjax_core.experiment import lookup
from fedjax_core.experiment.schema import FIELDS, find_group
from fedjax_core.language import instruction_task as language
from fedjax_core.nn.from_nnx import FIXED_OPTIONS
from fedjax_core.reporting import console, loggers
from fedjax_core.reporting.terminal import write_text
from fedjax_core.training import adapters, local_training
from fedjax_core.training.augment import pipeline
from fedjax_core.training.regularizers import REGULARIZERS
from fedjax_core.uplink import attacks, compression, dp_mechanisms, robust_aggregation

INPUT_OPTIONS = {"resize": None, "frame": 0}  # options that every network of images has
INPUT_OPTIONS_TEXT = """Of any network of images:
  resize: pixels, height and width or one number for both, to which images are scaled first; None: their own.
  frame: width of a frame of learnable pixels around them."""
REFERENCE = re.compile(r"[Aa]rguments\s+as\s+(?:those\s+of|in)\s+`(\w+)`")  # to the docstring of another of its kind
INDENT = " " * 4


class RegistrySection(NamedTuple):
    """A kind of things that configs name.

    Attributes:
      what: the kind, as `registry.ENTRY_POINT_GROUPS` and messages call it.
      builders: () -> {name: builder}, of those built in.
      hidden: arguments that the run passes to the builder.
    """

    what: str
    field: str
    builders: Callable[[], Mapping[str, Callable]]
    hidden: Collection[str] = ()


SECTIONS = {
    "methods": RegistrySection("method", "method.name", lambda: dict(lookup.METHODS), ("task", "optimizer")),
    "models": RegistrySection("model", "models", lambda: lookup.MODELS, ("rngs", "dtype", "blocks", "block")),
    "sources": RegistrySection(
        "data set", "data.source", lambda: sources.READERS | {language.SOURCE: language.Source}, sources.GIVEN
    ),
    "partitions": RegistrySection("partition", "data.partition", lambda: partition.SCHEMES, partition.GIVEN),
    "optimizers": RegistrySection("optimizer", "optimizer.name", lambda: experiment.OPTIMIZERS),
    "sharpness": RegistrySection("sharpness", "optimizer.sharpness", lambda: local_training.SHARPNESS),
    "augmentations": RegistrySection("augmentation", "augment", lambda: pipeline.OPS),
    "adapters": RegistrySection("adapter", "adapter", lambda: adapters.ADAPTERS),
    "losses": RegistrySection("loss", "loss", lambda: experiment.LOSSES, ("logits", "y", "mask")),
    "regularizers": RegistrySection("regularizer", "regularizers", lambda: REGULARIZERS, ("features", "mask")),
    "rules": RegistrySection("rule", "aggregation.rule", lambda: robust_aggregation.RULES),
    "attacks": RegistrySection("attack", "adversary.attack", lambda: attacks.SENT | attacks.CRAFTED | poisoning.POISONS),
    "compressors": RegistrySection("compressor", "compression.uplink", lambda: compression.COMPRESSORS),
    "mechanisms": RegistrySection("mechanism", "privacy.mechanism", lambda: dp_mechanisms.MECHANISMS, dp_mechanisms.GIVEN),
    "profiles": RegistrySection("device profile", "devices.profile", lambda: devices.PROFILES, ("draws",)),
    "availabilities": RegistrySection("availability", "devices.availability", lambda: devices.AVAILABILITIES, ("draws",)),
    "schedules": RegistrySection("schedule", "schedule", lambda: devices.SCHEDULES),
    "samplers": RegistrySection("sampler", "cohort.sampling", lambda: client_sampling.SAMPLERS, client_sampling.GIVEN),
    "settings": RegistrySection("setting by client", "clients.epochs", lambda: client_values.VALUES, client_values.GIVEN),
    "tasks": RegistrySection("task", "task", lambda: experiment.TASKS),
    "scores": RegistrySection("score", "evaluation.scores", lambda: experiment.SCORES, ("outputs", "x", "y", "mask")),
    "callbacks": RegistrySection("callback", "callbacks", lambda: loggers.CALLBACKS),
}
FILES = {"configs": "config", "tables": "table"}  # found by bare name; see `config_flags.list_bundled`
FIELDS_KIND = "fields"


class Field(NamedTuple):
    """A field of a config.

    Attributes:
      default: in `configs/base.py`, variant "small".
      allowed: its values, in words; "" where the code that it names checks them.
    """

    name: str
    default: Any
    comment: str
    allowed: str


def read_fields() -> list[Field]:
    """Returns the fields that all configs have, in the order of `configs/base.py`, without options
    of the method."""
    config = own_packages.import_bundled("configs.base").get_config("small")
    comments = _read_comments((FOLDERS["config"] / "base.py").read_text(encoding="utf-8"))
    fields = []
    for name, comment in comments.items():
        group, last = find_group(config, name)
        allowed = (option_types.describe_mismatch(object(), FIELDS[name]) if name in FIELDS else None) or ""
        fields.append(Field(name, group[last], comment, re.sub(r" or None$", "; or None", allowed)))
    return fields


def describe_fields(part: str = "") -> str:
    """Returns a text on all fields, on those of a group such as "data", or on one."""
    more = "method.* are a method's own: fedjax-core list methods NAME"
    part = part.removeprefix("config.")
    if part.partition(".")[0] == "method":
        return more
    fields = read_fields()
    chosen = [field for field in fields if not part or field.name == part or field.name.startswith(f"{part}.")]
    if not chosen:
        groups = dict.fromkeys(field.name.partition(".")[0] for field in fields if "." in field.name)
        registry.check_choice("field", part, [*groups, *(field.name for field in fields)])
    lines = []
    for field in chosen:
        lines.append(f"{field.name} = {field.default!r}")
        texts = field.comment, field.allowed and f"allowed: {field.allowed}"
        lines += [line for text in texts for line in textwrap.wrap(text, 120, initial_indent=INDENT, subsequent_indent=INDENT)]
    return "\n".join([*lines, *([] if part else ["", more])])


def _read_comments(code: str) -> dict[str, str]:
    """Returns the comments above and behind each assignment of a field of `config` in `get_config`,
    joined, by field."""
    lines = code.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    body = next(node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef) and node.name == "get_config").body
    of_fields = {}
    for node in body:
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("config.")):
            continue
        if ast.unparse(node.value) == "ConfigDict()":
            continue
        above, line = [], node.lineno - 1
        while lines[line - 1].lstrip().startswith("#"):
            above.insert(0, comments[line])
            line -= 1
        behind = [comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments]
        of_fields[ast.unparse(node.targets[0]).removeprefix("config.")] = " ".join([*above, *behind])
    return of_fields


def read_defaults(kind: str, name: str, builder: Callable) -> dict[str, Any]:
    """Returns the defaults of a builder's options; `inspect.Parameter.empty` for one that is
    required."""
    is_network = isinstance(builder, type) and kind == "models" and not hasattr(builder, "_fields")
    hidden = {*FIXED_OPTIONS.get(name, ()), *(() if kind == "models" and not is_network else SECTIONS[kind].hidden)}
    parameters = inspect.signature(builder.__init__ if is_network else builder).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY or (not is_network and p.kind is p.POSITIONAL_OR_KEYWORD)]
    return {p.name: p.default for p in named if p.name not in hidden} | (INPUT_OPTIONS if is_network else {})


def spell_defaults(name: str, defaults: Mapping[str, Any]) -> str:
    """Returns the spec of a name with its options: name(required, option=default, ...)."""
    texts = [key if value is inspect.Parameter.empty else f"{key}={_spell_value(value)}" for key, value in defaults.items()]
    return f"{name}({', '.join(texts)})" if texts else name


def _spell_value(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def read_docstring(kind: str, builder: Callable) -> str:
    """Returns the docstring of a builder; of a method that of its module, which cites the paper."""
    owner = sys.modules[builder.__module__] if kind == "methods" else builder
    text = inspect.cleandoc(owner.__doc__ or "")
    is_record = dataclasses.is_dataclass(owner) or hasattr(owner, "_fields")
    is_generated = is_record and text.startswith(f"{getattr(owner, '__name__', '')}(")
    return "" if is_generated else text


def describe_kinds() -> str:
    """Returns a text on the kinds, with the number of names and the config's field of each."""
    counts = {FIELDS_KIND: (len(read_fields()), "config.*")}
    counts |= {kind: (len(find_builders(kind)), f"config.{section.field}") for kind, section in SECTIONS.items()}
    counts |= {
        kind: (len(list_bundled(what)), f"fedjax-core {'run' if what == 'config' else what} NAME") for kind, what in FILES.items()
    }
    lines = [f"  {kind:14} {number:4}  {field}" for kind, (number, field) in counts.items()]
    return "\n".join(["fedjax-core list KIND [NAME], with KIND one of", "", *lines])


def find_builders(kind: str) -> dict[str, Callable]:
    """Returns the builders of a kind by name: those built in, then those of installed packages."""
    section = SECTIONS[kind]
    points = registry.find_entry_points(section.what)
    return {**section.builders(), **{name: registry.load_entry_point(section.what, name)[0] for name in points}}


def describe_kind(kind: str) -> str:
    """Returns a line for each name of a kind: its spec, the first line of its docstring, and the
    package that it comes from."""
    if kind == FIELDS_KIND:
        return describe_fields()
    if kind in FILES:
        return "\n".join(list_bundled(FILES[kind]))
    lines, points = [], registry.find_entry_points(SECTIONS[kind].what)
    for name, builder in find_builders(kind).items():
        summary = read_docstring(kind, builder).partition("\n")[0]
        if name in points:
            summary += f" [{registry.load_entry_point(SECTIONS[kind].what, name)[1]}]"
        spec = name if kind == "methods" else spell_defaults(name, read_defaults(kind, name, builder))
        lines.append(f"{spec:16}  {summary}".rstrip() if len(spec) <= 16 else f"{spec}\n{'':16}  {summary}".rstrip())
    return "\n".join(lines)


def describe_name(kind: str, name: str) -> str:
    """Returns a text on one name: its spec with all options, and its docstrings."""
    if kind == FIELDS_KIND:
        return describe_fields(name)
    if kind in FILES:
        file = find_file(FILES[kind], name)
        text = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or file
        return text if kind == "configs" else f"{text}\n\n{_describe_labels(file)}"
    builders = find_builders(kind)
    if kind == "methods" and name not in builders:
        name = registry.spell_name(name)
    builder = builders[registry.check_choice(SECTIONS[kind].what, name, builders)]
    texts = [spell_defaults(name, read_defaults(kind, name, builder)), read_docstring(kind, builder)]
    if kind == "methods":
        texts.append(inspect.cleandoc(builder.__doc__ or ""))
    if isinstance(builder, type) and builder.__init__.__doc__ not in (object.__init__.__doc__, nnx.Module.__init__.__doc__):
        texts.append(inspect.cleandoc(builder.__init__.__doc__ or ""))
    if name in nn.MODULES:
        texts.append(INPUT_OPTIONS_TEXT)
    if kind == "sources" and name in CARDS:
        texts.append(CARDS[name].describe())
    if (other := REFERENCE.search(texts[1])) and other[1] in builders:
        texts.append(f"{other[1]}: {read_docstring(kind, builders[other[1]])}")
    return "\n\n".join(text for text in texts if text)


def _describe_labels(file: str) -> str:
    """Returns the rows and columns of a table's variant small, which `--only` and `--set` name."""
    from fedjax_core.commands.tables.definition import read_definition  # needed here alone

    table = read_definition(file, "small")
    labels = {"Rows": table.rows, "Columns": table.columns}
    return "\n".join(f"{what + ':':9} {'; '.join(part.label for part in parts)}" for what, parts in labels.items())


def _parser() -> console.Parser:
    parser = console.Parser("list", __doc__)
    parser.add_argument("kind", nargs="?", help=f"one of {', '.join([FIELDS_KIND, *SECTIONS, *FILES])}")
    parser.add_argument("name", nargs="?", help="one of the kind")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, prints. Returns 0, or 2 for a wrong command line."""
    try:
        given = _parser().parse_args(arguments)
        if given.kind is None:
            text = describe_kinds()
        else:
            registry.check_choice("kind", given.kind, [FIELDS_KIND, *SECTIONS, *FILES])
            text = describe_kind(given.kind) if given.name is None else describe_name(given.kind, given.name)
    except ValueError as error:
        return console.fail(error, 2)
    write_text(text)
    return 0


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.list_names", sys.argv[1:])
