"""Hostile values in every field of a config and every option of every method: one line that names it, or it builds."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import base
from fedjax_core import by_name, experiment
from fedjax_core.experiment.asked import OF_METHODS
from fedjax_core.experiment.fields import FIELDS

HOSTILE = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
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
}
NEEDS = {"pfedpg": ("vit(patch=4, width=4, depth=1, heads=1, prompts=2, deep=False)",)}


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
@given(st.sampled_from(sorted(experiment.names())), st.data())
def test_every_option_of_every_method(name, data):
    takes = [option for option in by_name.parameters(experiment.method(name))[0] if option not in OF_METHODS]
    option, value = data.draw(st.sampled_from(takes)), data.draw(st.sampled_from([v for v in HOSTILE if v is not None]))
    config = asked(name, **{option: value})
    config.models = NEEDS.get(name, ("mlp(widths=(4,))",))
    config.public = "digits(examples=9)" if name == "fedmd" else None
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
