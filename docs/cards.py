"""Makes the pages of data sources and networks when the site is built: from the code, a page each.

Licences, places and citations are in `fedjax_core/data/sources/dataset_cards.py`, sizes in
`dataset_sizes.py` beside it.
"""

import functools
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from gallery import expand_navigation
from markup import escape, format_docstring, format_prose, format_shape, format_table

from fedjax_core import experiment, nn, registry
from fedjax_core.algorithm import targets_of
from fedjax_core.commands import list_names
from fedjax_core.commands.config_flags import list_bundled
from fedjax_core.data import sources
from fedjax_core.data.sources import dataset_cards, dataset_sizes

SOURCES = """---
hide: [toc]
---

# Data sources

What `config.data.source` may name. Files are read from `--config.data.dir=DIR`, else from `$FEDJAX_DATA`; nothing is downloaded.
Licences are those that owners or distributors state: check them there before you use the data.

"""
NETWORKS = """---
hide: [toc]
---

# Networks

What `config.models` may name: written here, in JAX, under this library's licence (Apache 2.0). [Your own](../your-model.md) take
the same place, and [public weights](../pretrained.md) fit some of them.

"""
DERIVED = ("unseen", "unseen_domain", "only", "resplit", "rotated")  # sources that are made of others
SMALL, LARGE, TEXT = ("CIFAR-10", (32, 32, 3), 10), ("ImageNet", (224, 224, 3), 1000), ("Shakespeare", (80,), 90)
PATCH = 16  # pixels, from which on a network is made for large images


@functools.cache
def find_uses() -> dict[str, dict[str, list[str]]]:
    """Returns, by "source" and "model", the configs whose paper variant names each spec."""
    uses: dict[str, dict[str, list[str]]] = {"source": {}, "model": {}}
    for name in list_bundled("config"):
        config = experiment.load_config(f"{name}:paper")
        for kind, specs in (("source", [config.data.source]), ("model", config.models)):
            for spec in dict.fromkeys(specs):
                uses[kind].setdefault(spec, []).append(name)
    return uses


def _list_uses(kind: str, name: str) -> list[str]:
    """Returns a table of the published settings that name a source or a network."""
    rows = []
    for spec, configs in sorted(find_uses()[kind].items()):
        own, options = registry.parse_spec(spec)
        inner = registry.parse_spec(str(options["of"]))[0] if "of" in options else None
        if name in (own.partition(":")[0], inner):
            links = [f"[{c}](../methods/{c}.md)" if c in experiment.method_summaries() else f"`{c}`" for c in configs]
            rows.append([f"`{spec}`", ", ".join(links)])
    text = "Variants `paper` of these configs, each a published setting (`fedjax-core list configs NAME` names its paper):"
    return ["## Published use", "", *([text, "", *format_table(["as", "configs"], rows)] if rows else ["No config's `paper`."]), ""]


def measure_source(name: str) -> dataset_sizes.Size | None:
    """Returns the size of a published set or of one that needs no file; None where files decide."""
    if (size := dataset_sizes.published_size(name, {})) is not None:
        return size
    if name not in dataset_sizes.WITHOUT_FILES or name == "text":
        return None
    data = sources.load(name)
    x = data.train.x
    targets = targets_of(data.train.y)
    return dataset_sizes.Size(len(x), len(data.test.x), x.shape[1:], len(data.class_names), None, targets, str(x.dtype))


def render_source(name: str, builder: Any) -> str:
    """Returns the page of a data source."""
    size, card = measure_source(name), dataset_cards.CARDS.get(name)
    rows = []
    if size is not None:
        rows += [["an example", f"{format_shape(size.shape)}, {size.dtype}"]]
        rows += [["targets", f"{size.classes:,} {'classes' if size.targets == 'classes' else size.targets}"]]
        rows += [["examples", f"{size.rows:,} to train on, {size.test_rows:,} to test"]]
        rows += [["natural clients", f"{size.users:,}"]] if size.users else []
    else:
        rows += [["an example, targets, examples", "as the files or the other source have them"]]
    if card is not None:
        rows += [["licence", format_prose(card.licence)], ["where to get it", format_prose(card.where)]]
        rows += [["cite", format_prose(card.citation)]]
    else:
        rows += [["licence", "that of the source that it is made of" if name in DERIVED else "that of the files"]]
    summary = list_names.read_docstring("sources", builder).partition("\n")[0]
    run = f"`fedjax-core run fedavg --workdir=DIR --config.data.source={name}`"
    lines = [f"# {name}", "", format_prose(summary), "", *format_table(["", ""], rows), ""]
    lines += [f"{run} trains on it." if card is not None else "", "", *_list_uses("source", name)]
    return "\n".join([*lines, *_describe("sources", name)])


def _describe(kind: str, name: str) -> list[str]:
    text = list_names.describe_name(kind, name)
    return ["## Options", "", f"As `fedjax-core list {kind} {name}` shows them:", "", "~~~text", text, "~~~", ""]


@functools.cache
def measure_network(name: str) -> list[str]:
    """Returns cells on a network with its defaults: data, input, classes, parameters, features, MB."""
    is_text = name in nn.TEXT_MODULES
    data, shape, classes = TEXT if is_text else LARGE if nn.FIXED_OPTIONS.get(name, {}).get("patch", 0) >= PATCH else SMALL
    scale = {"mean": None, "std": None} if is_text else {}
    net = jax.eval_shape(nn.build(name, classes, shape, **scale).init, jax.random.key(0))
    count, features = nn.count_parameters(net.params), net.params["head"]["kernel"].shape[0]
    return [data, format_shape(shape), f"{classes:,}", f"{count:,}", f"{features:,}", f"{4e-6 * count:,.2f}"]


def render_network(name: str, builder: Any) -> str:
    """Returns the page of a network."""
    summary = list_names.read_docstring("models", builder).partition("\n")[0]
    lines = [f"# {name}", "", format_prose(summary), ""]
    if name in nn.MODULES:
        heads = ["as for", "input", "classes", "parameters", "features D", "MB in float32"]
        lines += ["With its default options:", "", *format_table(heads, [measure_network(name)]), ""]
        module = sys.modules[builder.__module__]
        lines += ["## Paper", "", *format_docstring(inspect.cleandoc(module.__doc__ or "")), ""]
    return "\n".join([*lines, *_list_uses("model", name), *_describe("models", name)])


def _render_overview(head: str, kind: str, builders: Mapping[str, Any]) -> str:
    rows = []
    for name, builder in builders.items():
        summary = list_names.read_docstring(kind, builder).partition("\n")[0]
        extra = []
        if kind == "sources":
            size, card = measure_source(name), dataset_cards.CARDS.get(name)
            extra = [
                f"{format_shape(size.shape)}; {size.classes:,}; {size.rows:,}" if size else "",
                escape(card.licence) if card else "",
            ]
        else:
            cells = measure_network(name) if name in nn.MODULES else []
            extra = [f"{cells[3]} ({cells[0]})" if cells else "those of its files"]
        rows.append([f"[{name}]({name}.md)", format_prose(summary), *extra])
    more = ["example; classes; to train on", "licence"] if kind == "sources" else ["parameters (as for)"]
    return head + "\n".join(format_table(["name", "what it is", *more], rows)) + "\n"


def render_pages(networks: bool = True) -> dict[str, str]:
    """Returns the text of each page, by its path on the site; those of networks take seconds."""
    builders = {kind: list_names.SECTIONS[kind].builders() for kind in ("sources", "models")}
    pages = {"sources/index.md": _render_overview(SOURCES, "sources", builders["sources"])}
    pages |= {f"sources/{name}.md": render_source(name, builder) for name, builder in builders["sources"].items()}
    if networks:
        pages["networks/index.md"] = _render_overview(NETWORKS, "models", builders["models"])
        pages |= {f"networks/{name}.md": render_network(name, builder) for name, builder in builders["models"].items()}
    return pages


def on_config(config: Any) -> Any:
    """Lists the pages below their overviews in the navigation; mkdocs calls this."""
    for folder, kind in (("sources", "sources"), ("networks", "models")):
        names: Sequence[str] = list(list_names.SECTIONS[kind].builders())
        expand_navigation(config.nav, f"{folder}/index.md", [{name: f"{folder}/{name}.md"} for name in names])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages; mkdocs calls this."""
    from mkdocs.structure.files import File

    for path, content in render_pages().items():
        files.append(File.generated(config, path, content=content))
    return files
