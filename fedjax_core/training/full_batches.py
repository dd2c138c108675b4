"""Local training on full minibatches only: `drop_last=True`, for any method."""

from collections.abc import Callable

from fedjax_core.algorithm import Algorithm, Remainder, map_built
from fedjax_core.task import Task


def with_full_batches(build: Callable[[Task], Algorithm]) -> Callable[[Task], Algorithm]:
    """Returns the method, whose local training drops the last, incomplete minibatch of each epoch.

    These are other examples each time. Scores and means of features see all examples. Where a method
    trains on a part of them that is smaller than a minibatch, that part is one.
    """
    return map_built(build, _drop_remainders)


def _drop_remainders(inner: Algorithm, _: Task) -> Algorithm:
    def drop(train: Callable) -> Callable:
        return lambda sent, client, data, key: train(sent, client, data._replace(remainder=Remainder.DROP), key)

    return inner._replace(
        client_update=drop(inner.client_update),
        prepare=inner.prepare and drop(inner.prepare),
        personalise=inner.personalise and drop(inner.personalise),
    )
