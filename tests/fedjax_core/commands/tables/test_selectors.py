import pytest

from fedjax_core.commands.tables import definition

PAIRS = [
    (row, column)
    for row in ("FedAvg", "FedSKC (printed)", "LCL + GDA", "a/b")
    for column in ("CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2", "MNIST")
]
ROWS = ("FedAvg", "FedSKC (printed)", "LCL + GDA", "a/b")


@pytest.mark.parametrize("place", ["FedAvg", " fedavg ", "FEDAVG", "fedavg/*", "feda* / *", "fedavg*/*"])
def test_a_row(place):
    assert definition.select_pairs(place, PAIRS) == [pair for pair in PAIRS if pair[0] == "FedAvg"]


@pytest.mark.parametrize("place", ["/MNIST", "/mnist", "*/mnist", "/mn*t"])
def test_a_column(place):
    assert definition.select_pairs(place, PAIRS) == [(row, "MNIST") for row in ROWS]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("LCL + GDA/CIFAR-10, alpha 0.2", ("LCL + GDA", "CIFAR-10, alpha 0.2")),
        ("lcl-gda/cifar-10-alpha-0.2", ("LCL + GDA", "CIFAR-10, alpha 0.2")),
        ("fedskc*/cifar-100*", ("FedSKC (printed)", "CIFAR-100, alpha 0.2")),
        ("fedavg / mnist", ("FedAvg", "MNIST")),
        ("FEDSKC (PRINTED) / MNIST", ("FedSKC (printed)", "MNIST")),
        ("a/b/MNIST", ("a/b", "MNIST")),
        ("a-b/mnist", ("a/b", "MNIST")),
    ],
)
def test_one_cell(place, expected):
    assert definition.select_pairs(place, PAIRS) == [expected]


def test_a_star_does_not_eat_the_sign_before_it():
    of = lambda place: {column for _, column in definition.select_pairs(place, PAIRS)}
    assert of("/cifar-10-*") == of("/CIFAR-10,*") == {"CIFAR-10, alpha 0.2"}
    assert of("/cifar-10*") == {"CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2"}
    assert of("*") == of("/*") == {"CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2", "MNIST"}


def test_a_label_with_a_slash_is_a_row():
    assert {row for row, _ in definition.select_pairs("a/b", PAIRS)} == {"a/b"}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("fedaavg", "unknown row 'fedaavg'.*'fedavg'"),
        ("fedprox*", r"unknown row 'fedprox\*'"),
        ("fedavg/mmist", "unknown column 'mmist'.*'mnist'"),
        ("/mmist", "unknown column 'mmist'.*'mnist'"),
        ("/", "unknown column ''"),
        ("fedavg/", "unknown column ''"),
        ("", "unknown row ''"),
    ],
)
def test_unknown_places_are_reported(place, said):
    with pytest.raises(ValueError, match=said):
        definition.select_pairs(place, PAIRS)


def test_several_with_commas_between():
    assert definition.split_selectors("FedAvg, /CIFAR-10, alpha 0.2,a/b/MNIST", PAIRS) == [
        "FedAvg",
        "/CIFAR-10, alpha 0.2",
        "a/b/MNIST",
    ]
    assert definition.split_selectors("fed*,nobody", PAIRS) == ["fed*", "nobody"]
    assert definition.split_selectors("", PAIRS) == []
