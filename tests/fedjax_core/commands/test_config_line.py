"""Command lines with a config: which words are the config, and which say another method."""

import warnings

import pytest

from fedjax_core.commands import config_line, run


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["fedavg", "--workdir=x"], ["--workdir=x"]),
        (["--workdir", "x", "fedavg"], ["--workdir", "x"]),
        (["--distributed", "fedavg", "--workdir=x"], ["--distributed", "--workdir=x"]),  # a flag that takes no value
        (["--fresh", "fedavg"], ["--fresh"]),
        (["--config", "fedavg", "--config.rounds", "3"], ["--config.rounds", "3"]),
    ],
)
def test_the_config_is_found_wherever_it_stands(words, rest):
    assert config_line.parted(words) == ("fedavg", rest)


@pytest.mark.parametrize(
    ("words", "rest", "said"),
    [
        (["--config.method.name=moon"], [], {"name": "moon"}),
        (["--config.method.name", "moon", "--workdir", "x"], ["--workdir", "x"], {"name": "moon"}),
        (["-config.method.name=moon", "--config.method.mu", "-1"], [], {"name": "moon", "mu": -1}),
        (["--config.method.name=fedbn", "--config.method.others", "--config.rounds=3"], ["--config.rounds=3"], None),
        (["--config.method.name=fedpft", "--config.method.contrast.on=True"], [], {"name": "fedpft", "contrast": {"on": True}}),
        (["--config.method.mu", "0.1"], ["--config.method.mu", "0.1"], {}),  # the config's own: the flags set it
    ],
)
def test_another_method_is_taken_out_of_the_line(words, rest, said):
    said = {"name": "fedbn", "others": True} if said is None else said
    assert config_line.other_method(["run", *words]) == (["run", *rest], said)


def reading(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        return config_line.read(arguments, "run", run._flags)


@pytest.mark.parametrize(
    ("words", "said", "epochs"),
    [
        (["--config.method.epochs=3", "--config.rounds=7"], {}, 3),
        (["--config.method.variant", "printed", "--config.rounds=7", "--config.method.epochs", "3"], {"variant": "printed"}, 3),
        (["--config.method.gda.on=False", "--config.rounds", "7"], {"gda": {"on": False}}, 5),
    ],
)
def test_options_that_a_config_does_not_list_are_flags(words, said, epochs):
    given, found = reading(["fedavg:smoke", *words])
    assert (given.config.rounds, given.config.method.epochs, found) == (7, epochs, said)


def test_a_listed_option_below_another_stays_with_the_config():
    given, found = reading(["fedskc:smoke", "--config.method.lcl.tau=0.5", "--config.method.lcl.more=1"])
    assert (given.config.method.lcl.tau, found) == (0.5, {"lcl": {"more": 1}})


@pytest.mark.parametrize("words", [["--config.roundz=7"], ["--config.roundz=7", "--config.method.mu=1"]])
def test_other_fields_must_be_there(words):
    with pytest.raises(AttributeError, match="roundz"):
        reading(["fedavg:smoke", *words])
