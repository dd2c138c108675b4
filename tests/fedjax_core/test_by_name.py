import pytest

from fedjax_core import by_name


def _scheme(labels, seed, *, alpha, tries=3):
    return labels, seed, alpha, tries


def test_choose_returns_an_allowed_name_and_explains_another():
    assert by_name.choose("fruit", "plum", ("plum", "pear")) == "plum"
    with pytest.raises(ValueError, match=r"unknown fruit 'plumb'; allowed: plum, pear\. Did you mean 'plum'\?"):
        by_name.choose("fruit", "plumb", ("plum", "pear"))


def test_no_suggestion_where_nothing_is_close():
    assert by_name.did_you_mean("xyz", ("plum", "pear")) == ""


def test_call_passes_what_the_function_takes():
    given = {"labels": 1, "seed": 2, "unused": 3}
    assert by_name.call("f", _scheme, given, {"alpha": 4}) == (1, 2, 4, 3)


def test_call_refuses_unknown_missing_and_internal_options():
    with pytest.raises(TypeError, match=r"f has no option 'alhpa'; it takes: alpha, tries\. Did you mean 'alpha'\?"):
        by_name.call("f", _scheme, {"labels": 1, "seed": 2}, {"alhpa": 4})
    with pytest.raises(TypeError, match=r"f needs the option 'alpha'"):
        by_name.call("f", _scheme, {"labels": 1, "seed": 2}, {"tries": 4})
    with pytest.raises(TypeError, match=r"f has no option 'seed'"):
        by_name.call("f", _scheme, {"labels": 1, "seed": 2}, {"alpha": 4, "seed": 5})
