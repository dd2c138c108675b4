"""Settings drawn by client: that a client's is its own, the distributions, and what is wrong with a file."""

import numpy as np
import pytest

from fedjax_core.devices import draw_profiles
from fedjax_core.devices.client_values import draw_values, find_values
from fedjax_core.devices.profiles import find_profile


def draw(spec, name: str = "epochs", population: int = 5000, seed: int = 3) -> np.ndarray:
    return draw_values(find_values(name, spec), name, population, seed)


def test_a_client_has_the_same_epochs_among_few_and_among_many():
    spec = "uniform(low=1, high=10)"
    np.testing.assert_array_equal(draw(spec, population=7), draw(spec)[:7])
    assert (draw(spec) != draw(spec, seed=4)).mean() > 0.5
    assert abs(np.corrcoef(draw(spec), draw(spec, "steps"))[0, 1]) < 0.05  # settings are drawn one by one


def test_ints_have_both_ends_alike():
    values, counts = np.unique(draw("uniform(low=1, high=4)"), return_counts=True)
    np.testing.assert_array_equal(values, [1, 2, 3, 4])
    np.testing.assert_allclose(counts / 5000, 0.25, atol=0.03)
    assert values.dtype == np.int32
    rates = draw("uniform(low=0.1, high=0.3)", "lr")
    assert (rates.min(), rates.max(), rates.mean()) == pytest.approx((0.1, 0.3, 0.2), abs=5e-3)


def test_tiers_of_settings_are_those_of_devices():
    epochs = draw("tiers(weights=(1, 3), values=(10, 2))")
    speeds = draw_profiles(find_profile("tiers(weights=(1, 3), examples_per_second=(400, 50))"), 5000, 3).examples_per_second
    np.testing.assert_array_equal(epochs == 10, speeds == 400)


def test_a_number_is_that_of_all_clients():
    np.testing.assert_array_equal(draw(3, population=4), [3, 3, 3, 3])
    np.testing.assert_array_equal(draw_values(3, "rank", 2, 0, most=3), [3, 3])
    with pytest.raises(ValueError, match="client 0 has 4, it must be an int of at least 1, at most the network's 3"):
        draw_values(4, "rank", 2, 0, most=3)


def test_a_file_has_a_column_for_each_setting(tmp_path):
    file = tmp_path / "clients.csv"
    file.write_text("epochs,lr\n3,0.1\n5,0.25\n")
    spec = f"from_csv(path={str(file)!r})"
    np.testing.assert_array_equal(draw(spec, population=2), [3, 5])
    np.testing.assert_array_equal(draw(spec, "lr", 2), [0.1, 0.25])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch\n1\n2\n", "line 1: the columns must be epochs and any of steps, seconds, batch, lr, rank, once each"),
        ("epochs\n1\n", "has 1 lines after the first, one for each client; 2 clients train"),
        ("epochs\n1\ntwo\n", "line 3, column 'epochs': 'two' must be a number"),
        ("epochs\n1\n2.5\n", "client 1 has 2.5, it must be an int of at least 1"),
        ("epochs\n1\n0\n", "client 1 has 0.0, it must be an int of at least 1"),
        ("epochs\n1\nnan\n", "client 1 has nan, it must be an int of at least 1"),
    ],
)
def test_files_that_cannot_be(text, message, tmp_path):
    file = tmp_path / "clients.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        draw(f"from_csv(path={str(file)!r})", population=2)


def test_a_function_from_outside(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n\ndef mine(*, draws, name, wrong=False):\n    return np.arange(1, draws.population + 1 + wrong)\n"
    )
    np.testing.assert_array_equal(draw(f"{file}:mine", population=3), [1, 2, 3])
    with pytest.raises(TypeError, match=r"must return 3 numbers, one for each client, it returned int64\[4\]"):
        draw(f"{file}:mine(wrong=True)", population=3)
