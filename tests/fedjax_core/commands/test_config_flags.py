"""Command lines with a config: which words are the config, and which say another method."""

import sys
import warnings

import pytest

from fedjax_core.commands import config_flags, main, run


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["fedavg", "--workdir=x"], ["--workdir=x"]),
        (["--workdir", "x", "fedavg"], ["--workdir", "x"]),
        (["--distributed", "fedavg", "--workdir=x"], ["--distributed", "--workdir=x"]),  # a flag that takes no value
        (["--fresh", "fedavg"], ["--fresh"]),
        (["--config", "fedavg", "--config.rounds", "3"], ["--config.rounds=3"]),
        (["--config.drop_last", "False", "fedavg"], ["--config.drop_last=False"]),
    ],
)
def test_the_config_is_named_anywhere_in_the_line(words, rest):
    assert config_flags.split_config(words) == ("fedavg", rest)


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
    assert config_flags._take_method(["run", *words]) == (["run", *rest], said)


def reading(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        return config_flags.parse_flags(arguments, "run", run._flags)


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


def test_a_value_after_a_space_is_that_of_a_field_that_may_be_true():
    words = ["--config.drop_last", "False", "--config.optimizer.nesterov", "False", "--config.data.validation", "0.1"]
    given, found = reading(["fedavg:smoke", *words, "--config.method.gda.on", "False"])
    config = given.config
    assert (config.drop_last, config.optimizer.nesterov, config.data.validation) == (False, False, 0.1)
    assert found == {"gda": {"on": False}}


@pytest.mark.parametrize("words", [["--", "--config.rounds=7"], ["-"]])
def test_words_that_absl_leaves_are_refused(words):
    with pytest.raises(ValueError, match=f"unexpected '{words[-1]}'"):
        reading(["fedavg:smoke", *words])


@pytest.mark.parametrize("words", [["--config.roundz=7"], ["--config.roundz=7", "--config.method.mu=1"]])
def test_other_fields_must_be_there(words):
    with pytest.raises(AttributeError, match="roundz"):
        reading(["fedavg:smoke", *words])


OURS = "from configs import fedavg\nfrom ml_collections import ConfigDict\nmade = fedavg.get_config('smoke')\n"
BROKEN = [  # what a config of one's own does, the status, and the line that says it
    ("def get_config(variant=None): return None", 2, "mine.py is None; get_config() must return a config"),
    (
        "def get_config(variant=None): return {'rounds': 3}",
        2,
        "mine.py is a dict, it must be an ml_collections.ConfigDict; begin with",
    ),
    (f"{OURS}def get_config(variant=None): return ConfigDict()", 2, "mine.py has no field 'seed', nor 3"),
    (
        f"{OURS}del made.evaluation\ndef get_config(variant=None): return made",
        2,
        "mine.py has no field 'evaluation.every', nor 5 others; ",
    ),
    (
        f"{OURS}del made.method\ndef get_config(variant=None): return made",
        2,
        "mine.py has no field 'method.name'; begin with one that has",
    ),
    (
        f"{OURS}made.privacy.mechansim = 'gaussian'\ndef get_config(variant=None): return made",
        2,
        "mine.py sets 'privacy.mechansim', and there is no such field; fedjax-core list fields shows all. Did you mean "
        "'privacy.mechanism'?\n",
    ),
    ("rounds = 3", 2, "mine.py has no function get_config(variant) that returns a config"),
    (
        "def get_config(variant=None): return of(3)\ndef of(x):\n    raise ValueError('one: first\\ntwo: last')",
        2,
        "ValueError in of of mine.py, line 3: one: first two: last\n",
    ),
    (f"{OURS}def get_config(variant=None):\n    made.optimizr.lr = 1.0", 2, "AttributeError in get_config of mine.py, line 5: "),
    (
        "def get_config(variant=None): return 1 // 0",
        1,
        "ZeroDivisionError: integer division or modulo by zero (in get_config of mine.py",
    ),
    ("import sys\ndef get_config(variant=None): sys.exit(0)", 1, "sys.exit(0) was called in get_config of mine.py, line 2\n"),
    ("raise SystemExit('no data')", 1, "sys.exit('no data') was called in mine.py, line 1\n"),
    (
        "def get_config(variant=None): raise BaseException('no')",
        1,
        "BaseException: no was raised in get_config of mine.py, line 1\n",
    ),
]


def command(capsys, *arguments: str) -> tuple[int, str]:
    """Returns the status of `fedjax-core run`, and the one line that it says."""
    sys.modules.pop("config_config", None)  # into which ml_collections loads one file after another
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        status = main.run_command("fedjax_core.commands.run", arguments)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    return status, found.err


@pytest.mark.parametrize(("code", "status", "said"), BROKEN)
def test_a_config_that_is_none_or_fails_gets_one_line_with_its_file(code, status, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended, line = command(capsys, "--config=mine.py", "--workdir=run")
    assert ended == status, line
    assert line.startswith(f"error: {said}")
    assert not (tmp_path / "run").exists()


COHORT = "cohort is a group of fields, such as cohort.fraction, cohort.size, cohort.sampling"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--config.cohort=50", f"{COHORT}; did you mean --config.cohort.size=50?"),
        ("--config.cohort=0.5", f"{COHORT}; did you mean --config.cohort.fraction=0.5?"),
        ("--rounds=3", "Unknown command line flag 'rounds'; did you mean --config.rounds?"),
        ("--config.optimizer=adam", "did you mean --config.optimizer.name=adam?"),
        ("--config.evaluation=3", "--config.evaluation=3: evaluation is a group of fields, such as evaluation.every, "),
        ("--config.models[0]=cnn", "models is given as a whole, such as --config.models=\"('one', 'another')\", not by index"),
        ("--config.models=mlp,cnn", "--config.models=mlp,cnn: several are given as --config.models=\"('mlp', 'cnn')\""),
        ("--config.evaluation.scopes=global, own", "several are given as --config.evaluation.scopes=\"('global', 'own')\""),
        (
            "--config.evaluation.scopes=('own','all'",
            "scopes=('own','all' must be a tuple, such as --config.evaluation.scopes=\"('one', 'another')",
        ),
    ],
)
def test_a_group_and_a_place_of_a_tuple_are_named(flag, said, capsys):
    status, line = command(capsys, "fedavg:smoke", "--workdir=run", flag)
    assert status == 2
    assert said in line


def test_an_unknown_field_is_named_beside_a_known_one_of_its_last_name(capsys):
    status, line = command(capsys, "fedavg:smoke", "--workdir=run", "--config.evaluation.every=5", "--config.checkpoint.every=5")
    assert (status, line.strip()) == (2, "error: the config has no field --config.checkpoint.every")


def test_an_empty_workdir_is_not_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, line = command(capsys, "fedavg:smoke", "--workdir=", "--fresh")
    assert status == 2
    assert "give --workdir=DIR" in line
    assert main.run_command("fedjax_core.commands.table", ["fair", "--workdir="]) == 2
    assert "--workdir='' names no directory; . is this folder" in capsys.readouterr().err
    assert main.run_command("fedjax_core.commands.table", ["fair", "--workdir=run", "--only="]) == 2
    assert "--only= names no row; leave it out for all of them" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_none_is_given_where_a_field_may_be_that():
    given, _ = reading(
        ["fedavg:smoke", "--config.data.examples=5", "--config.data.examples=None", "--config.optimizer.momentum=None"]
    )
    assert given.config.data.examples is None
    assert given.config.optimizer.momentum is None
    assert reading(["fedavg:smoke", "--config.data.examples=None", "--config.data.examples=5"])[0].config.data.examples == 5
    with pytest.raises(Exception, match=r"rounds='None'|invalid literal"):
        reading(["fedavg:smoke", "--config.rounds=None"])
    with pytest.raises(ValueError, match=r"no field --config.optimizer.momntum. Did you mean 'optimizer.momentum'\?"):
        reading(["fedavg:smoke", "--config.optimizer.momntum=None"])


def test_a_fraction_of_clients_is_not_hidden_by_their_number():
    with pytest.raises(ValueError, match=r"cohort.fraction=0.01 has no effect beside cohort.size=10; set cohort.size=None, too"):
        reading(["fedopt_femnist:paper", "--config.cohort.fraction=0.01"])
    given, _ = reading(["fedopt_femnist:paper", "--config.cohort.fraction=0.01", "--config.cohort.size=None"])
    assert (given.config.cohort.fraction, given.config.cohort.size) == (0.01, None)
    assert reading(["fedavg:smoke", "--config.cohort.size=3"])[0].config.cohort.size == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workdir=a", "--workdir", "b"], "--workdir is given 2 times; give it once"),
        (["--workdir=a", "--seeds=0", "--seeds=1"], "--seeds is given 2 times"),
        (["--workdir=a", "--seeds=0,1", "--config.seed", "7"], "--seeds=0,1 and --config.seed=7 choose seeds; give one of them"),
    ],
)
def test_flags_that_say_two_things_are_refused(words, said, capsys):
    status, line = command(capsys, "fedavg:smoke", *words)
    assert status == 2
    assert said in line
