"""Hostile values in every field of a config and every option of every method: one line that names it, or it builds."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import base
from fedjax_core import experiment, registry
from fedjax_core.experiment.schema import FIELDS

INF = float("inf")
HOSTILE = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    INF,
    2**70,
    "",
    "x\ny",
    "f(" * 9000,
    "no_such.module:f",
    (),
    (1,),
    ("a",),
]
SPECS = {
    "models": "model",
    "optimizer.name": "optimizer",
    "method.name": "method",
    "data.source": "data set",
    "data.partition": "partition",
    "compression.uplink": "compressor",
    "cohort.sampling": "sampler",
}
ADAPTED = {"models": ("vit(patch=4, width=4, depth=1, heads=1)",), "train": "head", "adapter": "lora(rank=1)"}
CLIP = {"models": ("clip(prompts=1)",), "train": "prompts", "normalise": "clip"}
NEEDS = {  # settings of methods that cannot train a plain network
    "pfedpg": {"models": ("vit(patch=4, width=4, depth=1, heads=1, prompts=2, deep=False)",)},
    **dict.fromkeys(("fedex_lora", "fedsa_lora", "ffa_lora", "flexlora", "flora", "hetlora"), ADAPTED),
    **dict.fromkeys(("fedtpg", "promptfl"), CLIP),
}


def refusal(config, step=experiment.resolve) -> str:
    try:
        step(config)
    except (ValueError, TypeError, OSError) as error:
        return str(error)
    return ""


def asked(name="fedavg", **options):
    config = base.get_config("smoke")
    config.method = dict(name=name, **options)
    return config.copy_and_resolve_references()


@settings(derandomize=True, deadline=None, max_examples=400, database=None)
@given(st.sampled_from(sorted(FIELDS)), st.sampled_from(HOSTILE))
def test_every_field(field, value):
    config = asked()
    *above, last = field.split(".")
    place = config
    for name in above:
        place = place[name]
    with config.ignore_type():
        place[last] = value
    said = refusal(config)
    assert "\n" not in said
    assert len(said) < 4000
    assert not said or field.split(".")[-1] in said or SPECS.get(field, field.split(".")[0]) in said


@functools.cache
def digits():
    return experiment.dataset(asked())


@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(st.sampled_from(sorted(experiment.method_summaries())), st.data())
def test_every_option_of_every_method(name, data):
    takes = [
        option for option in registry.read_parameters(experiment.method_builder(name))[0] if option not in ("task", "optimizer")
    ]
    option, value = data.draw(st.sampled_from(takes)), data.draw(st.sampled_from([v for v in HOSTILE if v is not None]))
    config = asked(name, **{option: value})
    config.update(NEEDS.get(name, {"models": ("mlp(widths=(4,))",)}))
    config.public = "digits(examples=9)" if name in ("fedmd", "feddf") else None
    said = refusal(config)
    assert "\n" not in said
    assert not said or f"method.{option}=" in said
    if not said:  # then its method is built, which checks what an annotation cannot say
        said = refusal(config, lambda config: experiment.build(config, digits()))
        assert "\n" not in said
        assert not said or option in said


@pytest.mark.parametrize(
    ("field", "value"), [("evaluation.targets", ("a",)), ("checkpoint.seconds", float("nan")), ("seed", 2**70)]
)
def test_late_errors_are_early(field, value):
    config = asked()
    *above, last = field.split(".")
    place = config[above[0]] if above else config
    with config.ignore_type():
        place[last] = value
    assert f"{field}=" in refusal(config)


def with_fields(config, **changes):
    """`changes` by dotted name, with two underscores for the dot."""
    for field, value in changes.items():
        *above, last = field.split("__")
        place = config[above[0]] if above else config
        with config.ignore_type():
            place[last] = value
    return config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": (1,)}, "models=(1,) must be a tuple, each a string"),
        ({"optimizer__momentum": -0.5}, "optimizer.momentum=-0.5 must be in [0, 1)"),
        ({"optimizer__momentum": float("nan")}, "optimizer.momentum=nan must be a finite number, in [0, 1)"),
        ({"optimizer__momentum": 1.5}, "optimizer.momentum=1.5 must be in [0, 1)"),
        ({"optimizer__momentum": 1.0}, "optimizer.momentum=1.0 must be in [0, 1)"),
        ({"method": {"name": "fedavg", "epochs": 0}}, "method.epochs=0 trains nothing"),
        ({"method": {"name": "fedbabu", "epochs": 0}}, "method.epochs=0 trains nothing"),  # it only fine-tunes for scores
        (
            {"method": {"name": "fedrep", "head_epochs": 0, "body_epochs": 0}},
            "method.head_epochs=0, method.body_epochs=0 trains nothing",
        ),
        ({"optimizer__weight_decay": -0.1}, "optimizer.weight_decay=-0.1 must be at least 0"),
        ({"method": {"name": "fedopt", "tau": INF}}, "method.tau=inf must be a finite number"),
        ({"method": {"name": "moon", "tau": INF}}, "method.tau=inf must be a finite number"),
        ({"method": {"name": "fedrcl", "lam": INF}}, "method.lam=inf must be a finite number"),
        ({"method": {"name": "ditto", "lam": INF}}, "method.lam=inf must be a finite number"),
        ({"method": {"name": "fedamp", "sigma": INF}}, "method.sigma=inf must be a finite number"),
    ],
)
def test_values_that_annotations_alone_refuse(changes, said):
    assert said in refusal(with_fields(asked(), **changes))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "pfedpt", "epochs": 0, "prompt_epochs": 1},
        {"name": "fedrep", "head_epochs": 0, "body_epochs": 2},
        {"name": "fedavg"},
    ],
    ids=lambda method: method["name"],
)
def test_a_method_that_trains_in_some_phase_is_allowed(method):
    assert refusal(with_fields(asked(), method=method)) == ""


def test_fedskc_refuses_an_infinite_temperature():
    """Its options stand in mappings, which are checked when it is made, before any data are divided."""
    with pytest.raises(ValueError, match=r"^lcl\.tau=inf must be a finite number, positive$"):
        experiment.method_builder("fedskc")(None, optimizer=None, lcl={"tau": INF})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mlp(widths=(0,))", "widths=(0,) must be a tuple, each in [1, 2**20]"),
        ("mlp(widths=(100000000000,))", "widths=(100000000000,) must be a tuple, each in [1, 2**20]"),
        ("cnn(widths=(0,))", "widths=(0,) must be a tuple, each in [1, 2**20]"),
        ("cnn(dense=0)", "dense=0 must be in [1, 2**20]"),
        ("cnn(kernel=0)", "kernel=0 must be in [1, 2**20]"),
        ("cnn(padding='same')", "padding='same' must be one of 'VALID', 'SAME'"),
        ("cnn(dropout=1.5)", "dropout=1.5 must be in [0, 1)"),
        ("cnn(head_dropout=1.0)", "head_dropout=1.0 must be in [0, 1)"),
        ("resnet8(width=0)", "width=0 must be in [1, 2**20]"),
        ("resnet8(features=0)", "features=0 must be in [1, 2**20]"),
        ("vit(width=100000000000)", "width=100000000000 must be in [1, 2**20]"),
        ("vit(depth=100000000000)", "depth=100000000000 must be in [1, 2**20]"),
        ("vit(patch=0)", "patch=0 must be in [1, 2**20]"),
        ("vit(mlp=1e30)", "mlp=1e+30 must be in (0, 2**10]"),
        ("vit(prompts=-1)", "prompts=-1 must be in [0, 2**20]"),
        ("vit(epsilon=0)", "epsilon=0 must be positive"),
    ],
)
def test_sizes_of_networks(model, said):
    assert said in refusal(with_fields(asked(), models=(model,)))


def test_every_field_of_the_base_config_is_checked():
    def flat(config, above=""):
        for name, value in config.items():
            yield from flat(value, f"{above}{name}.") if isinstance(value, dict) else (f"{above}{name}",)

    own = {"method", "optimizer"}  # their options are checked by the signatures of what they name
    assert {field for field in flat(base.get_config().to_dict()) if field.partition(".")[0] not in own} <= FIELDS.keys()
