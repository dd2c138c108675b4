"""The installed command: its parts by name, and what `list` shows."""

import importlib.util
import inspect
import re
from importlib import metadata
from pathlib import Path

import pytest

import fedjax_core
from fedjax_core import own_packages, registry
from fedjax_core.commands import config_flags, list_names, main

ROOT = Path(__file__).parents[3]


def ended(capsys, *arguments: str) -> tuple[int, str, str]:
    """(exit status, what was printed, what was said)."""
    with pytest.raises(SystemExit) as end:
        main.main(arguments)
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_the_commands_are_listed(capsys):
    status, out, err = ended(capsys, "--help")
    assert (status, err) == (0, "")
    assert all(f"  {name} " in out for name in ("run", "table", "analyse", "predict", "plan", "export", "list"))
    assert ended(capsys, "--version")[1] == f"fedjax-core {fedjax_core.__version__}\n"
    status, out, err = ended(capsys, "tabel")
    assert (status, out) == (2, "")
    assert err == "error: there is no command 'tabel'; there are run, table, analyse, audit, predict, plan, export, new, list\n"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_command_has_a_module(name):
    assert importlib.util.find_spec(main.MODULES.get(name, f"fedjax_core.commands.{name}")) is not None


def test_configs_and_tables_have_bare_names():
    assert config_flags.find_file("config", "fedavg") == str(ROOT / "configs" / "fedavg.py")
    assert config_flags.find_file("config", "LG-FedAvg") == str(ROOT / "configs" / "lg_fedavg.py")
    assert config_flags.find_file("table", "fedskc/table1") == str(ROOT / "configs" / "tables" / "fedskc" / "table1.py")
    assert "base" not in config_flags.list_bundled("config")
    assert {"first", "fedskc/table1", "fedhpl/own"} <= set(config_flags.list_bundled("table"))
    with pytest.raises(ValueError, match=r"there is no config 'fedav'.* Did you mean 'fedavg'\?"):
        config_flags.find_file("config", "fedav")
    with pytest.raises(ValueError, match=r"there is no config 'FedSMOO'; .*ends in \.py\.$"):
        config_flags.find_file("config", "FedSMOO")  # not FedSAM
    with pytest.raises(ValueError, match=r"there is no table file 'mine/x.py'"):
        config_flags.find_file("table", "mine/x.py")


def test_names_of_ours_are_not_a_users_packages(tmp_path, monkeypatch):
    """A folder with packages `methods` and `configs`, first on the path as with `python -m`."""
    import sys

    for name in own_packages.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True")
        for other in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, other)
    monkeypatch.syspath_prepend(tmp_path)
    import configs  # the user's

    assert configs.mine
    own_packages.import_bundled_packages()
    assert Path(str(sys.modules["configs"].__file__)) == ROOT / "configs" / "__init__.py"
    assert Path(str(sys.modules["methods"].__file__)) == ROOT / "methods" / "__init__.py"
    from configs import fedavg

    assert fedavg.get_config("smoke").method.name == "fedavg"


@pytest.mark.parametrize("kind", [*list_names.SECTIONS, *list_names.FILES])
def test_all_of_a_kind_are_listed(capsys, kind):
    status, out, _ = ended(capsys, "list", kind)
    assert status == 0
    names = (
        list_names.SECTIONS[kind].builders() if kind in list_names.SECTIONS else config_flags.list_bundled(list_names.FILES[kind])
    )
    assert names
    lines = out.splitlines()
    assert all(any(line.partition("(")[0].split()[:1] == [name] for line in lines) for name in names)


def test_a_table_is_listed_with_its_rows_and_columns(capsys):
    out = ended(capsys, "list", "tables", "fedskc/table1")[1]
    assert out.startswith("FedSKC, Table I")
    assert "\nRows:     FedAvg; FedProx; SCAFFOLD; " in out
    assert "\nColumns:  CIFAR-10, alpha 0.05; CIFAR-10, alpha 0.2; " in out


def test_options_are_listed_with_their_defaults(capsys):
    assert "\ndirichlet(alpha, min_size=1, " in ended(capsys, "list", "partitions")[1]
    models = ended(capsys, "list", "models")[1]
    assert "resnet8(stem='cifar', width=64, " in models
    assert [line.partition("(")[0] for line in models.splitlines() if "dtype=" in line] == ["pretrained", "clip"]
    status, out, _ = ended(capsys, "list", "methods", "fedprox")
    assert status == 0
    assert out.startswith("fedprox(mu")
    assert "Li" in out
    assert list_names.read_defaults("sources", "unseen", list_names.SECTIONS["sources"].builders()["unseen"]) == dict.fromkeys(
        ("of", "classes"), inspect.Parameter.empty
    )


@pytest.mark.parametrize("kind", ["methods", "models", "sources", "partitions", "optimizers", "scores", "callbacks"])
def test_the_docstrings_say_what_options_mean(kind, monkeypatch):
    builders = list_names.find_builders(kind)
    monkeypatch.setattr(list_names, "find_builders", lambda kind: builders)  # once, not for each name
    for name, builder in builders.items():
        said = list_names.describe_name(kind, name)
        for option in list_names.read_defaults(kind, name, builder):
            assert re.search(rf"^ *(\w+, )*{option}(, \w+)*: ", said, re.MULTILINE), (name, option)


def test_every_kind_that_packages_announce_is_listed(capsys):
    assert {kind.what for kind in list_names.SECTIONS.values()} >= set(registry.ENTRY_POINT_GROUPS)
    out = ended(capsys, "list", "callbacks", "wandb")[1]
    assert out.startswith(
        "wandb(project='fedjax', name='', mode='', directory='')\n\nLogs records as metrics by round to Weights & Bias"
    )
    assert 'mode: "online", "offline" or "disabled"' in out


def test_what_is_not_there_is_one_line(capsys):
    kinds = ", ".join([list_names.FIELDS_KIND, *list_names.SECTIONS, *list_names.FILES])
    said = f"error: unknown kind 'method'; allowed: {kinds}. Did you mean 'methods'?\n"
    assert ended(capsys, "list", "method") == (2, "", said)
    status, _, err = ended(capsys, "list", "models", "resnet9")
    assert status == 2
    assert "resnet8" in err
    assert ended(capsys, "list", "methods", "LG-FedAvg") == ended(capsys, "list", "methods", "lg_fedavg")
    assert "Did you mean" not in ended(capsys, "list", "methods", "FedSMOO")[2]


def brought(task, optimizer, *, strength: float = 0.5):
    """A method that a package brings."""


def test_what_packages_announce_is_listed(capsys, monkeypatch):
    point = metadata.EntryPoint("fedmine", f"{__name__}:brought", registry.ENTRY_POINT_GROUPS["method"])
    monkeypatch.setattr(registry, "find_entry_points", lambda what: {"fedmine": point} if what == "method" else {})
    line = next(line for line in ended(capsys, "list", "methods")[1].splitlines() if line.startswith("fedmine "))
    assert line.endswith(f"[{__name__}:brought of a package]")
    assert ended(capsys, "list", "methods", "fedmine")[1].startswith("fedmine(strength=0.5)\n")
