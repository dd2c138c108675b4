"""Functions of staleness by hand, and schedules that are refused."""

import numpy as np
import pytest

from fedjax_core.devices import parse_schedule

U = np.arange(12)


@pytest.mark.parametrize(
    ("spec", "weights", "mixes"),
    [
        ("fedbuff", (1 + U) ** -0.5, False),
        ("fedbuff(staleness='constant', server_lr=0.7)", np.full(12, 0.7), False),
        ("fedbuff(staleness='polynomial(a=2.0)', server_lr=0.5)", 0.5 / (1 + U) ** 2, False),
        ("fedasync(staleness='constant')", np.full(12, 0.6), True),
        ("fedasync(alpha=0.9, staleness='polynomial(a=0.5)')", 0.9 / np.sqrt(1 + U), True),
        ("fedasync(alpha=0.9, staleness='hinge(a=10, b=4)')", [0.9 * (1 if u <= 4 else 1 / (10 * (u - 4) + 1)) for u in U], True),
    ],
)
def test_weights_by_hand(spec, weights, mixes):
    schedule = parse_schedule(spec)
    np.testing.assert_allclose(schedule.weight_fn(U), weights, rtol=1e-12)
    assert (schedule.mixes_models, schedule.max_staleness) == (mixes, None)


def test_whether_there_are_weights():
    assert parse_schedule("fedbuff").has_weights
    assert parse_schedule("fedbuff(staleness='constant', server_lr=0.5)").has_weights
    assert not parse_schedule("fedbuff(staleness='constant')").has_weights


def test_a_function_of_staleness_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def halve(base=2.0):\n    return lambda u: base**-u\n\ndef bad():\n    return lambda u: 1 - u\n")
    np.testing.assert_array_equal(parse_schedule(f"fedbuff(staleness='{file}:halve')").weight_fn(U), 0.5**U)
    with pytest.raises(ValueError, match="must give a finite number of at least 0 for each staleness"):
        parse_schedule(f"fedbuff(staleness='{file}:bad')")
    file.write_text("def one():\n    return lambda u: 1.0 if u < 3 else 0.5\n")
    with pytest.raises(
        ValueError, match="must return a function of an array of staleness, float64; it raised ValueError: The truth"
    ):
        parse_schedule(f"fedbuff(staleness='{file}:one')")


def test_the_buffer_of_a_schedule_of_ones_own_is_checked(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from fedjax_core.devices.schedules import Schedule\n\ndef own(buffer):\n    return Schedule('own', buffer, abs)\n"
    )
    for buffer in (0, 2.5):
        with pytest.raises(ValueError, match=rf"schedule: buffer={buffer} must be a fraction in \(0, 1\), or an int of at least 1"):
            parse_schedule(f"{file}:own(buffer={buffer})")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedbuf", "unknown schedule 'fedbuf'; allowed: fedbuff, fedasync. Did you mean 'fedbuff'?"),
        ("fedbuff(buffer=0)", "buffer=0 must be a fraction in"),
        ("fedasync(buffer=3)", "schedule 'fedasync' has no option 'buffer'"),
        ("fedasync(alpha=1.5)", r"alpha=1.5 must be in \(0, 1\]"),
        ("fedbuff(max_staleness=-1)", "max_staleness=-1 must be at least 0"),
        ("fedbuff(staleness='linear')", "unknown staleness 'linear'; allowed: constant, polynomial, hinge"),
        ("fedbuff(staleness='hinge(a=0)')", "a=0 must be positive"),
    ],
)
def test_what_is_refused(spec, message):
    with pytest.raises((ValueError, TypeError), match=message):
        parse_schedule(spec)
