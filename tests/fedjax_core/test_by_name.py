"""Names and arguments from a configuration: what is refused, and how it is said."""

import pytest

from fedjax_core import by_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", ("iid", {})),
        (" mlp(widths=(20, 10), norm=None) ", ("mlp", {"widths": (20, 10), "norm": None})),
        ("npz(path='a(b).npz')", ("npz", {"path": "a(b).npz"})),
        ("empty()", ("empty", {})),
        ("tfds:cifar10", ("tfds:cifar10", {})),
    ],
)
def test_parse(text, expected):
    assert by_name.parse(text) == expected


@pytest.mark.parametrize("text", ["f(1)", "f(**{})", "f(a=b)", "f(a=1", "f(a=1))", "f(a=1)(b=2)", "f(a=__import__('os'))"])
def test_parse_takes_literals_only(text):
    with pytest.raises(ValueError, match="is not of the form name"):
        by_name.parse(text)


def test_choose():
    assert by_name.choose("colour", "red", ["red", "green"]) == "red"
    with pytest.raises(ValueError, match=r"unknown colour 'gren'; allowed: red, green\. Did you mean 'green'\?"):
        by_name.choose("colour", "gren", ["red", "green"])
    with pytest.raises(ValueError, match=r"allowed: red, green\.$"):
        by_name.choose("colour", "xyz", ["red", "green"])


def paint(colour, *, coats=1, thickness):
    return colour, coats, thickness


def test_call_passes_what_is_given_and_what_is_chosen():
    assert by_name.call("paint", paint, {"colour": "red", "unused": 0}, {"thickness": 2}) == ("red", 1, 2)


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
        by_name.call("paint", paint, {"colour": "blue"}, options)


def test_a_function_without_options():
    with pytest.raises(TypeError, match=r"nothing has no option 'x'; it takes: none\."):
        by_name.check("nothing", lambda: 0, (), ["x"])
