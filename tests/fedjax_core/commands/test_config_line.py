"""Command lines with a config: which words are the config, and which say another method."""

import pytest

from fedjax_core.commands import config_line


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
