"""Annotations of options: which values they allow, and how it is said."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fedjax_core import option_types
from fedjax_core.option_types import AtLeastOne, AtLeastZero, BelowOne, Fraction, People, Positive, Seed, one_of

Weights = Annotated[str, one_of("samples", "uniform")]
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("wanted", "allowed", "refused", "words"),
    [
        (float, (1, 0.5, np.float32(2)), (True, "1", None, INF, NAN, 10**400, (1,)), "a finite number"),
        (float, (2**62, 1e38), (2**70, -(2**63), 1e39), "a number of 32 bits"),
        (int, (3, -1, np.int64(2)), (1.0, True, "1", 2**70, None), "an int"),
        (bool, (True, False), (1, 0, None, "True"), "True or False"),
        (str, ("", "x"), (1, None, ("x",)), "a string"),
        (Positive, (0.1, 3), (0, -1.0), "positive"),
        (Positive, (), ("x", INF), "a finite number, positive"),
        (Fraction | None, (None, 0, 1.0), (1.1, -0.1), r"in \[0, 1\] or None"),
        (BelowOne, (0, 0.9), (1,), r"in \[0, 1\)"),
        (Seed, (0, 2**32 - 1), (2**32, -1), r"in \[0, 2\*\*32\)"),
        (AtLeastOne, (1, 2**31 - 1), (2**31, 2**62), r"below 2\*\*31$"),  # jax's own OverflowError names no field
        (AtLeastZero, (0,), (2**31,), r"below 2\*\*31$"),
        (AtLeastOne, (), ("x",), "an int, at least 1$"),
        (People, (8 * 10**9,), (0,), "at least 1"),
        (Weights, ("samples",), ("sample", "xyz"), "one of 'samples', 'uniform'"),
        (Literal["a", 1], ("a", 1), ("b", True, 1.0), "one of 'a', 1"),
        (tuple[float, float], ((0.1, 1), [0, 1]), (0.5, (1,), ("a", 1)), "a tuple"),
        (Sequence[AtLeastOne], ((), (1, 2)), (5, "12", (0,), (1.5,)), "a tuple, each "),
        (Mapping[str, Any] | None, (None, {}), (1, "x"), "a mapping of options or None"),
        (Callable[..., Any] | None, (None, len), (5, "x"), "a function or None"),
        (np.ndarray, (np.zeros(2), object()), (1, "x", (1,)), "ndarray"),
        (Any, (1, None, "x", INF), (), ""),
    ],
)
def test_check(wanted, allowed, refused, words):
    for value in allowed:
        assert option_types.check_value("field", value, wanted) is value
    for value in refused:
        with pytest.raises(ValueError, match=rf"^field=.* must be {words}"):
            option_types.check_value("field", value, wanted)


def test_values_are_shown_on_one_short_line():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no\nname")

    for value in ("x" * 10_000, 10**5000, "a\nb", Odd(), np.zeros((3, 100))):
        text = option_types.shorten(value)
        assert "\n" not in text
        assert len(text) < 2 * option_types.LONGEST
