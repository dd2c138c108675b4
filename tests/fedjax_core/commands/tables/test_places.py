import pytest

from fedjax_core.commands.tables import places

PAIRS = [
    (row, column)
    for row in ("FedAvg", "FedSKC (printed)", "LCL + GDA", "a/b")
    for column in ("CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2", "MNIST")
]
ROWS = ("FedAvg", "FedSKC (printed)", "LCL + GDA", "a/b")


@pytest.mark.parametrize("place", ["FedAvg", " fedavg ", "FEDAVG", "fedavg/*", "feda* / *", "fedavg*/*"])
def test_a_row(place):
    assert places.chosen(place, PAIRS) == [pair for pair in PAIRS if pair[0] == "FedAvg"]


@pytest.mark.parametrize("place", ["/MNIST", "/mnist", "*/mnist", "/mn*t"])
def test_a_column(place):
    assert places.chosen(place, PAIRS) == [(row, "MNIST") for row in ROWS]


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
    assert places.chosen(place, PAIRS) == [expected]


def test_a_star_does_not_eat_the_sign_before_it():
    of = lambda place: {column for _, column in places.chosen(place, PAIRS)}
    assert of("/cifar-10-*") == of("/CIFAR-10,*") == {"CIFAR-10, alpha 0.2"}
    assert of("/cifar-10*") == {"CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2"}
    assert of("*") == of("/*") == {"CIFAR-10, alpha 0.2", "CIFAR-100, alpha 0.2", "MNIST"}


def test_a_label_with_a_slash_is_a_row():
    assert {row for row, _ in places.chosen("a/b", PAIRS)} == {"a/b"}


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
def test_what_is_not_there_is_told(place, said):
    with pytest.raises(ValueError, match=said):
        places.chosen(place, PAIRS)


def test_several_with_commas_between():
    assert places.split("FedAvg, /CIFAR-10, alpha 0.2,a/b/MNIST", PAIRS) == ["FedAvg", "/CIFAR-10, alpha 0.2", "a/b/MNIST"]
    assert places.split("fed*,nobody", PAIRS) == ["fed*", "nobody"]
    assert places.split("", PAIRS) == []
