"""Digests of what is given in Python."""

import dataclasses
import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.experiment import given_code
from fedjax_core.training import losses
from tests.fedjax_core.test_given import config, run

CELL = """
import functools, jax.numpy as jnp
from flax import linen
from fedjax_core.training import losses
GAMMA = 2.0
def scale(x):
    return GAMMA * x
def loss(logits, y, mask):
    return scale(losses.cross_entropy(logits, y, mask))
class Net(linen.Module):
    classes: int
    width: int = 3
    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.classes)(linen.relu(linen.Dense(self.width)(x)))
class Score:
    def __init__(self, of=0):
        self.of = of
    def __call__(self, outputs, x, y, mask):
        return jnp.sum(mask & (y == self.of))
"""


def digest(each):
    (found,) = given_code.digest_given([(each, given_code.GIVEN)]).values()
    return found


def notebook(*changes):
    """Returns what a notebook's cell defines, after changes to its text; no file holds it."""
    text = CELL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    module = types.ModuleType("a_notebook")
    exec(compile(text, "<cell>", "exec"), vars(module))
    return module


@pytest.fixture
def as_module(monkeypatch):
    def register(*changes):
        module = notebook(*changes)
        monkeypatch.setitem(sys.modules, "a_notebook", module)
        return module

    return register


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("loss", ("return scale(", "return -scale(")),
        ("loss", ("GAMMA * x", "GAMMA + x")),
        ("loss", ("GAMMA = 2.0", "GAMMA = 3.0")),
        ("Net", ("width: int = 3", "width: int = 4")),
        ("Net", ("linen.relu(", "linen.gelu(")),
        ("Score", ("y == self.of", "y != self.of")),
    ],
)
def test_an_edit_of_a_cell_is_seen_and_nothing_else_is(as_module, name, change, caplog):
    before, again = (digest(getattr(as_module(), name)) for _ in range(2))
    assert before == again
    assert digest(getattr(as_module(change), name)) != before
    assert digest(getattr(as_module(("import functools", "import json")), name)) == before  # it reads neither
    assert not caplog.text


def test_values_that_an_object_holds_are_seen(as_module, caplog):
    cell = as_module()

    def made(gamma):
        return lambda logits, y, mask: gamma * losses.cross_entropy(logits, y, mask)

    @dataclasses.dataclass
    class Scaled:
        by: np.ndarray

    pairs = [
        (made(1.0), made(2.0)),
        (functools.partial(cell.loss, 1), functools.partial(cell.loss, 2)),
        (functools.partial(cell.loss, w=jnp.zeros(3)), functools.partial(cell.loss, w=jnp.ones(3))),
        (Scaled(np.zeros(2)), Scaled(np.ones(2))),
        (cell.Score(1), cell.Score(2)),
        (cell.Net(3), cell.Net(4)),
        (jax.jit(made(1.0)), jax.jit(made(2.0))),
    ]
    for one, other in pairs:
        assert digest(one) == digest(one) != digest(other)
    assert digest(made(1.0)) == digest(made(1.0))
    assert digest(functools.partial(cell.Net, 3)) == digest(functools.partial(cell.Net, 3))
    assert not caplog.text
    digest(functools.partial(cell.loss, iter([])))
    assert "'loss', given in Python, holds objects of builtins.list_iterator, which cannot be compared" in caplog.text


def test_an_edited_loss_of_a_notebook_is_another_run(as_module, tmp_path):
    run(tmp_path / "run", config(1), loss=as_module().loss)
    with pytest.raises(ValueError, match=r"holds a run with other given_code_py\d+ \(.*loss: .* take another directory"):
        run(tmp_path / "run", config(1), loss=as_module(("GAMMA = 2.0", "GAMMA = 3.0")).loss)
    run(tmp_path / "run", config(1), loss=as_module().loss)


def test_what_another_notebook_had_is_to_be_given_again(tmp_path, monkeypatch):
    loss = notebook().loss
    loss.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "loss", loss, raising=False)
    run(tmp_path / "run", config(1), loss=loss)
    monkeypatch.delattr(sys.modules["__main__"], "loss")
    with pytest.raises(ValueError, match=r"loss '__main__:loss' was given in Python, in another .*load\(\.\.\., loss=\.\.\.\)"):
        experiment.load(tmp_path / "run")
    experiment.load(tmp_path / "run", loss=loss)
