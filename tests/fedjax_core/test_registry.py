"""Names and arguments from a configuration: what is refused, and how it is said."""

import gc
import importlib.util
import inspect
import math
import sys
import weakref

import pytest

from fedjax_core import registry
from fedjax_core.option_types import AtLeastOne


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", ("iid", {})),
        (" mlp(widths=(20, 10), norm=None) ", ("mlp", {"widths": (20, 10), "norm": None})),
        ("npz(path='a(b).npz')", ("npz", {"path": "a(b).npz"})),
        ("empty()", ("empty", {})),
        ("tfds:cifar10", ("tfds:cifar10", {})),
        ("only(of='a/mine.py:f(a=1)', classes=(0,))", ("only", {"of": "a/mine.py:f(a=1)", "classes": (0,)})),
        ("a/mine.py:f(of='b.py:g')", ("a/mine.py:f", {"of": "b.py:g"})),
    ],
)
def test_parse(text, expected):
    assert registry.parse_spec(text) == expected


@pytest.mark.parametrize(
    "text", ["f(1)", "f(**{})", "f(a=b)", "f(a=1", "f(a=1))", "f(a=1)(b=2)", "f(a=__import__('os'))", "f(a={[]: 1})"]
)
def test_parse_takes_literals_only(text):
    with pytest.raises(ValueError, match="is not of the form name"):
        registry.parse_spec(text)


def test_choose():
    assert registry.check_choice("colour", "red", ["red", "green"]) == "red"
    with pytest.raises(ValueError, match=r"unknown colour 'gren'; allowed: red, green\. Did you mean 'green'\?"):
        registry.check_choice("colour", "gren", ["red", "green"])
    with pytest.raises(ValueError, match=r"allowed: red, green\.$"):
        registry.check_choice("colour", "xyz", ["red", "green"])


def paint(colour, *, coats=1, thickness):
    return colour, coats, thickness


def test_call_passes_what_is_given_and_what_is_chosen():
    assert registry.call_checked("paint", paint, {"colour": "red", "unused": 0}, {"thickness": 2}) == ("red", 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thickness": 1, "coat": 2}, r"paint has no option 'coat'; it takes: coats, thickness\. Did you mean 'coats'\?"),
        ({"coats": 1}, r"paint needs the option 'thickness'; it takes: coats, thickness\."),
        ({"thickness": 1, "colour": "red"}, "paint has no option 'colour'"),
    ],
)
def test_call_refuses(options, message):
    with pytest.raises(TypeError, match=message):
        registry.call_checked("paint", paint, {"colour": "blue"}, options)


def test_a_switch_without_an_annotation_is_no_string():
    def paint(shiny=True, colour="blue", coats=1):
        return shiny, colour, coats

    assert registry.call_checked("paint", paint, {}, {"shiny": False, "coats": "two"}) == (False, "blue", "two")
    with pytest.raises(ValueError, match="shiny='false' must be True or False"):
        registry.call_checked("paint", paint, {}, {"shiny": "false"})


def test_a_function_without_options():
    with pytest.raises(TypeError, match=r"nothing has no option 'x'; it takes: none\."):
        registry.check_call("nothing", lambda: 0, (), {"x": 1})


@pytest.mark.parametrize("spec", [f"f(a={'(' * 5000})", f"f(a={'-' * 15000}1)", "f(" * 50_000, "x" * 100_000, 1, None, ("f",)])
def test_malformed_specs_end_in_one_line(spec):
    with pytest.raises(ValueError, match=r"^models: ") as caught:
        registry.parse_spec(spec, "models")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_option_is_given_once():
    with pytest.raises(ValueError, match=r"'dirichlet\(alpha=0.5, alpha=0.6\)' has the option 'alpha' twice"):
        registry.parse_spec("dirichlet(alpha=0.5, alpha=0.6)")
    with pytest.raises(ValueError, match="has the option 'coats', which is also given beside it"):
        registry.resolve_spec("brush", "paint(coats=2)", {"paint": paint}, options={"coats": 3})


def dye(*, depth: AtLeastOne, tone: float = 0.5, wash: bool = False):
    return depth, tone, wash


def test_find_checks_names_and_values():
    found = registry.resolve_spec("colour", "dye(depth=2)", {"dye": dye}, options={"wash": True})
    assert (found.origin, found.options, found()) == (registry.BUILT_IN, {"depth": 2, "wash": True}, (2, 0.5, True))
    for spec, message in {
        "dy(depth=1)": r"unknown colour 'dy'; allowed: dye\. Did you mean 'dye'\?",
        "dye": "colour 'dye' needs the option 'depth'",
        "dye(depth=1, deep=2)": "colour 'dye' has no option 'deep'",
        "dye(depth=0)": "colour 'dye': depth=0 must be at least 1",
        "dye(depth='x')": "colour 'dye': depth='x' must be an int, at least 1",
        "dye(depth=1, tone=1e999)": "colour 'dye': tone=inf must be a finite number",
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            registry.resolve_spec("colour", spec, {"dye": dye})


def test_a_prefix_may_be_followed_by_more():
    readers = {"tfds": dye, "digits": paint}
    assert registry.find_builder("data set", "tfds:mnist/x", readers, ("tfds",)) == (dye, registry.BUILT_IN)
    with pytest.raises(ValueError, match="data set 'digits:x'"):
        registry.find_builder("data set", "digits:x", readers, ("tfds",))


MODULE = """
import math
LEVEL = 3
def dye(depth: int, tone=0.5):
    return depth, tone, math.pi
class Dyed:
    pass
"""


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """A module, the same as a file in a folder with brackets, and both as a package's entry points."""
    (tmp_path / "dyes_of_mine.py").write_text(MODULE)
    (tmp_path / "dyes (1)").mkdir()
    (tmp_path / "dyes (1)" / "broken.py").write_text("import nothing_like_it\n")
    (tmp_path / "dyes (1)" / "own.py").write_text(MODULE)
    information = tmp_path / "dyes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: dyes\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[fedjax_core.methods]\nindigo = dyes_of_mine:dye\nlost = dyes_of_mine:no\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    registry.find_entry_points.cache_clear()
    yield tmp_path
    registry.find_entry_points.cache_clear()
    sys.modules.pop("dyes_of_mine", None)


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ("dyes_of_mine:dye(depth=2)", "dyes_of_mine"),
        ("dyes (1)/own.py:dye(depth=2)", "dyes (1)/own.py"),
        ("indigo(depth=2)", "dyes_of_mine:dye of dyes"),
    ],
)
def test_names_from_outside(brought, spec, origin):
    found = registry.resolve_spec("method", spec, {"fedavg": paint})
    assert (found(), found.origin) == ((2, 0.5, math.pi), origin)
    with pytest.raises(ValueError, match=r"depth='x' must be an int"):
        registry.resolve_spec("method", spec.replace("2", "'x'"), {})


def test_lookups_are_recorded_by_all_around_them(brought):
    """A module that a config names may resolve a config while it is imported."""
    with registry.record_lookups() as outer:
        with registry.record_lookups() as inner:
            dye, _ = registry.find_builder("method", "dyes_of_mine:dye", {})
        dyed, _ = registry.find_builder("method", "dyes_of_mine:Dyed", {})
    assert inner == [(dye, "dyes_of_mine")]
    assert outer == [(dye, "dyes_of_mine"), (dyed, "dyes_of_mine")]


def test_a_folder_does_not_hide_an_installed_module(brought, monkeypatch):
    """`new method NAME`, installed as editable, is found from the folder above it."""
    project = brought / "above" / "dyes_of_mine"
    project.mkdir(parents=True)
    file = (brought / "dyes_of_mine.py").rename(project / "dyes_of_mine.py")

    class EditableFinder:  # setuptools appends one like it
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_file_location(name, file) if name == "dyes_of_mine" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    monkeypatch.chdir(project.parent)
    monkeypatch.syspath_prepend(str(project.parent))
    assert registry.resolve_spec("method", "indigo(depth=2)", {})()[0] == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dyes_of_mine:dy", r"dyes_of_mine has no 'dy'; it has: dye, Dyed\. Did you mean 'dye'\?"),
        ("dyes_of_mine:LEVEL", "LEVEL of dyes_of_mine is 3, not a function or class"),
        ("no_such_module.x:f", "there is no module 'no_such_module'; looked on Python's path and in "),
        ("dyes (1)/none.py:f", "there is no file '.*none.py'"),
        ("dyes (1)/broken.py:f", "importing .*broken.py failed: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("lost", "its entry point 'dyes_of_mine:no' cannot be loaded: AttributeError"),
        (
            "indgo",
            r"allowed: fedavg, indigo, lost\. Did you mean 'indigo'\? Looked in .*'fedjax_core.methods'; others are named 'pack",
        ),
    ],
)
def test_what_is_not_outside(brought, spec, message):
    with pytest.raises(ValueError, match=message) as caught:
        registry.resolve_spec("method", spec, {"fedavg": paint})
    assert "\n" not in str(caught.value)


def test_a_folder_may_look_like_a_call(brought):
    folder = brought / "runs(seed=1)"
    folder.mkdir()
    (folder / "own.py").write_text(MODULE)
    assert registry.resolve_spec("method", "runs(seed=1)/own.py:Dyed", {}).origin == "runs(seed=1)/own.py"


def test_a_file_is_read_once_until_it_changes(brought):
    file = brought / "dyes (1)" / "own.py"
    first, again = (registry.import_member("method", f"{file}:Dyed")[0] for _ in range(2))
    assert first is again
    file.write_text(MODULE + "# changed\n")
    assert registry.import_member("method", f"{file}:Dyed")[0] is not first


def test_a_signature_is_read_once_and_keeps_nothing_alive(monkeypatch):
    def dye(*, depth: int = 1):
        return depth

    read, signature = [], inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda function, **how: read.append(None) or signature(function, **how))
    for _ in range(2):
        registry.check_call("dye", dye, (), {"depth": 2})
        registry.read_parameters(dye)[0].clear()
    assert len(read) == 1
    with pytest.raises(ValueError, match="dye: depth='deep' must be an int"):
        registry.check_call("dye", dye, (), {"depth": "deep"})
    alive = weakref.ref(dye)
    del dye
    gc.collect()
    assert alive() is None


def test_what_is_passed_by_place_has_any_names():
    def any_names(z, targets, real, *, gamma: float = 2.0):
        return z, targets, real, gamma

    def with_defaults(logits, y=None, mask=None, gamma=2.0):
        return logits, y, mask, gamma

    names = ("logits", "y", "mask")
    assert registry.positional_names("loss", any_names, names) == ("z", "targets", "real")
    assert registry.positional_names("loss", with_defaults, names) == names
    assert registry.positional_names("loss", lambda *rows: rows, names) == ()
    assert registry.positional_names("loss", lambda z, *rest: rest, names) == ("z",)
    assert registry.positional_names("loss", max, names) == names  # has no signature
    assert registry.positional_names("loss", lambda a, b, c, /: a, names) == ("a", "b", "c")
    found = registry.resolve_spec("loss", "any(gamma=1.0)", {"any": any_names}, placed=names)
    assert found.options == {"gamma": 1.0}
    with pytest.raises(TypeError, match="loss 'any' has no option 'real'; it takes: gamma"):
        registry.resolve_spec("loss", "any(real=1)", {"any": any_names}, placed=names)


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda logits, y: 0, "logits, y"),
        (lambda: 0, "none"),
        (lambda logits, y, *, mask: 0, "logits, y"),
        (lambda logits, y, gamma=2.0: 0, r"logits, y, gamma=2.0\. One with a default must .*"),  # the mask would land on gamma
    ],
)
def test_what_does_not_take_what_is_passed_by_place(function, takes):
    message = rf"loss 'mine' is called with \(logits, y, mask\) by position; it takes by position: {takes}\.$"
    with pytest.raises(TypeError, match=message):
        registry.resolve_spec("loss", "mine", {"mine": function}, placed=("logits", "y", "mask"))
