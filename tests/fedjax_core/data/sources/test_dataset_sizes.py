"""Known sizes of published sets: those of what a reader's options ask for."""

import pytest

from fedjax_core.data.sources import find_reader
from fedjax_core.data.sources.dataset_sizes import published_size


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("cifar100", (50_000, 10_000, (32, 32, 3), 100)),
        ("cifar100(labels='coarse')", (50_000, 10_000, (32, 32, 3), 20)),
        ("tfds:cifar100", (50_000, 10_000, (32, 32, 3), 100)),
        ("tfds(path='cifar100', label='coarse_label')", (50_000, 10_000, (32, 32, 3), 20)),
        ("tfds(path='cifar10', size=64, train='train')", (50_000, 10_000, (64, 64, 3), 10)),
        ("tfds(path='cifar10', train='train[:1000]')", None),
        ("tfds(path='mnist', test='train[:10%]')", None),
        ("tfds:emnist", (697_932, 116_323, (28, 28, 1), 62)),
        ("tfds:emnist/letters", (88_800, 14_800, (28, 28, 1), 37)),
        ("tfds:food101", None),
        ("emnist(split='letters')", (124_800, 20_800, (28, 28, 1), 26)),
        ("emnist", (112_800, 18_800, (28, 28, 1), 47)),
        ("flair", (345_879, 43_960, (64, 64, 3), 17)),
        ("flair(most=2, size=32)", (82_262, 43_960, (32, 32, 3), 17)),
    ],
)
def test_sizes_are_those_of_the_options(spec, wanted):
    reader = find_reader(spec)
    size = published_size(reader.name, reader.options)
    assert (size and size[:4]) == wanted
