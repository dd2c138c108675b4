"""A task rebinds its arrays and its round, and leaves itself alone."""

import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.task import Task, of_model, width
from tests import toy


def test_a_bound_task_reads_the_given_arrays():
    task = Task(lambda frozen: ("model over", frozen), 3, 8, frozen="weights", public="images")
    assert task.held == ("weights", "images")
    bound = task.bind(("traced weights", "traced images"), 7)
    assert bound.model == ("model over", "traced weights")
    assert (bound.public, bound.round, bound.classes, bound.population) == ("traced images", 7, 3, 8)
    assert (task.model, task.public, task.round) == (("model over", "weights"), "images", 0)


def test_of_model_freezes_nothing():
    model, public = toy.model(), Examples(np.zeros(2), np.zeros(2))
    task = of_model(model, classes=3, population=8, public=public)
    assert task.model is model
    assert task.held == ((), public)
    assert task.bind(task.held, 1).model is model


def test_width_is_the_number_of_features():
    assert [width(toy.model(hidden)) for hidden in (6, 7)] == [6, 7]
