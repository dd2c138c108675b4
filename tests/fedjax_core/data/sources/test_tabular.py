"""Tables by what they can do: fakes of the libraries' objects, which are not installed here."""

import decimal
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedjax_core.data import sources


class Frame:
    """What a pandas frame shows of itself here; a column is a Series."""

    def __init__(self, **columns):
        self.columns, self._held = list(columns), columns

    def __getitem__(self, name):
        return self._held[name]


class Series(list):
    pass


class Categorical(Series):
    """A Series of categories."""

    class cat:
        categories = ("owl", "cat", "dog")


class Names:
    names = ("plane", "car")


class HuggingFace:
    """A `datasets.Dataset`: columns by name, features that know their names."""

    def __init__(self, columns, features):
        self.column_names, self.features, self._held = list(columns), features, columns

    def __getitem__(self, name):
        return iter(self._held[name])


def test_a_hugging_face_dataset_of_images():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    rows = {"img": [Image.fromarray(p) for p in pixels], "label": [0, 1, 1, 0]}
    data = HuggingFace(rows, {"img": object(), "label": Names()})
    mine = sources.from_table(data, data, x="img", y="label", name="mine")
    np.testing.assert_array_equal(mine.train.x, pixels)
    assert (mine.name, mine.class_names, mine.test.y.tolist()) == ("mine", ("plane", "car"), [0, 1, 1, 0])
    rows["img"] = [image.convert("L") for image in rows["img"]]
    assert sources.from_table(data, data, x="img", y="label").train.x.shape == (4, 5, 6, 1)
    rows["img"][0] = rows["img"][0].convert("RGB")
    assert sources.from_table(data, data, x="img", y="label").train.x.shape == (4, 5, 6, 3)


def test_images_of_16_bits_are_scaled_by_their_depth():
    deep = np.arange(4 * 30, dtype=np.uint16).reshape(4, 5, 6) * 500
    rows = {"img": [Image.fromarray(p) for p in deep], "label": [0, 1, 1, 0]}
    mine = sources.from_table(rows, rows, x="img", y="label")
    np.testing.assert_array_equal(mine.train.x[..., 0], np.round(deep / 257))
    rows["img"][1] = Image.fromarray(deep[1].astype(np.float32))
    with pytest.raises(ValueError, match="train: row 1 of column 'img' is an image of mode 'F'"):
        sources.from_table(rows, rows, x="img", y="label")


class OfNumbers:
    """A `datasets.Array2D`, or with `feature` a list of values."""

    def __init__(self, dtype, shape=None, feature=None):
        self.dtype = dtype
        self.__dict__ |= {} if shape is None else {"shape": shape}
        self.__dict__ |= {} if feature is None else {"feature": feature}


@pytest.mark.parametrize(
    ("feature", "found"),
    [
        (OfNumbers("uint8", (2, 3)), np.uint8),
        (OfNumbers("list", feature=OfNumbers("list", feature=OfNumbers("uint8"))), np.uint8),
        ([[OfNumbers("uint8")]], np.uint8),
        (OfNumbers("int64", (2, 3)), np.int32),
        (OfNumbers("list", feature=OfNumbers("list", feature=OfNumbers("float32"))), np.int32),
        (None, np.int32),
    ],
)
def test_hugging_face_says_which_numbers_are_bytes(feature, found):
    """Its cells are plain lists, whatever their type."""
    data = HuggingFace({"x": [[[1, 2, 3], [250, 5, 6]]] * 4, "label": [0, 1, 1, 0]}, {"x": feature, "label": Names()})
    assert sources.from_table(data, data, x="x", y="label").train.x.dtype == found


def test_a_frame_of_numbers_with_categories_is_split_by_class():
    y = ["owl", "cat"] * 5
    frame = Frame(
        age=Series(range(10)), height=Series([0.5] * 10), animal=Categorical(y), site=Series(["north"] * 4 + ["south"] * 6)
    )
    mine = sources.from_table(frame, x=["height", "age"], y="animal", domains="site", clients="site", test_fraction=0.4)
    assert mine.class_names == ("owl", "cat", "dog")
    assert mine.domain_names == ("north", "south")
    assert np.bincount(mine.test.y).tolist() == [2, 2]
    both = np.concatenate([mine.train.x, mine.test.x])
    assert both[:, 0].tolist() == [0.5] * 10
    for x, y in (mine.train, mine.test):
        assert y.tolist() == [int(age) % 2 for age in x[:, 1]]
    assert mine.train_clients is not None
    assert mine.train_clients.tolist() == [int(age >= 4) for age in mine.train.x[:, 1]]


def test_rows_of_tokens():
    rows = [{"tokens": [1, 2, 3], "y": 0}, {"tokens": [4, 5, 6], "y": 1}]
    mine = sources.from_table(rows, rows, x="tokens", y="y", class_names=("no", "yes"))
    assert (mine.train.x.dtype, mine.train.x.tolist(), mine.class_names) == (np.int32, [[1, 2, 3], [4, 5, 6]], ("no", "yes"))


def test_labels_may_be_arrays_of_texts():
    """As pandas has the lists of a Parquet file."""
    tags = [np.array(of, object) for of in (["sea"], ["sea", "sun"], [])]
    mine = sources.from_table(*[Frame(a=[1.0, 2.0, 3.0], tags=Series(tags))] * 2, x="a", y="tags", targets="labels")
    assert (mine.class_names, mine.train.y.tolist()) == (("sea", "sun"), [[1, 0], [1, 1], [0, 0]])


GOOD: dict[str, Any] = {"x": [[1, 2], [3, 4]], "y": ["a", "b"], "z": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        ({}, {"y": "label"}, "train has no column 'label'; it has: x, y, z"),
        ({"x": [[1], [1, 2]]}, {}, r"train: row 1 of column 'x' has shape \[2\]: must be as the first, \[1\]; pad"),
        ({"x": ["a", "b"]}, {}, "train: row 0 of column 'x' is 'a': must be numbers of one shape"),
        ({}, {"x": ["x", "z"]}, r"train: row 0 of column 'x' has shape \[2\]: must be one number"),
        ({"y": ["a", None]}, {}, r"train: row 1 of column 'y' is missing \(None\); missing='drop' leaves such rows out"),
        ({}, {"class_names": ("a", "c")}, "column 'y' has 'b', which has no name among a, c"),
        ({}, {"class_names": ("a", "b", "b")}, "class_names has 'b' more than once"),
        ({}, {"x": []}, r"x=\[\]: must be a column, or several"),
        ({}, {"x": ["z", "z"]}, "x has the column 'z' twice"),
        ({}, {"y": ["y", "y"], "targets": "labels"}, "y has the column 'y' twice"),
        ({"y": [["a"], ["b", None]]}, {"targets": "labels"}, "train: row 1 of column 'y' has the label None: must be a text"),
        ({"y": ["a"]}, {}, r"train: columns have 2 \(x\), 1 \(y\) rows"),
        ({}, {"test": None}, "test_fraction=None with no test table: give one of them"),
        ({}, {"test_fraction": 0.5}, "test_fraction=0.5 with a test table: give one of them"),
        ({}, {"test_fraction": "x", "test": None}, "test_fraction='x': must lie between 0 and 1"),
    ],
)
def test_what_is_no_table_of_examples(change, asked, message):
    table = GOOD | change
    with pytest.raises(ValueError, match=message):
        sources.from_table(**{"train": table, "test": table, "x": "x", "y": "y"} | asked)


def test_what_is_no_table():
    with pytest.raises(TypeError, match="train is int: must be a Hugging Face dataset, a pandas frame, a mapping"):
        sources.from_table(5, 5, x="x", y="y")
    with pytest.raises(ValueError, match="row 1 has no column 'x'; it has: y"):
        sources.from_table([{"x": 1, "y": 1}, {"y": 1}], test_fraction=0.5, x="x", y="y")
    splits = HuggingFace({}, {})
    splits.column_names = {"train": ["x"], "test": ["x"]}
    with pytest.raises(ValueError, match="train holds several tables, train, test: give one of them"):
        sources.from_table(splits, test_fraction=0.5, x="x", y="y")


def test_a_missing_label_is_named_by_its_row():
    y = [None if i == 7 else i % 2 for i in range(12)]
    table = {"x": [i / 2 for i in range(12)], "y": y}
    with pytest.raises(ValueError, match=r"train: row 7 of column 'y' is missing \(None\); missing='drop' leaves such rows out"):
        sources.from_table(table, x="x", y="y", test_fraction=0.25)
    mine = sources.from_table(table, x="x", y="y", test_fraction=0.25, missing="drop")
    assert sorted(np.concatenate([mine.train.x, mine.test.x])[:, 0].tolist()) == [i / 2 for i in range(12) if i != 7]


class NAType:
    """What pandas.NA is called; it has no truth value."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None


@pytest.mark.parametrize("nothing", [None, float("nan"), np.float32("nan"), NAType(), "", " "])
def test_whatever_a_library_has_for_nothing(nothing):
    table = {"x": [0.0, nothing, 4.0, 5.0], "y": [0, 1, 0, 1], "who": ["a", "b", "b", "a"]}
    with pytest.raises(ValueError, match=r"train: row 1 of column 'x' is missing .*, missing='mean' puts the training rows' mean"):
        sources.from_table(table, table, x="x", y="y", clients="who")
    mine = sources.from_table(table, table, x="x", y="y", clients="who", missing="mean")
    assert mine.train.x[:, 0].tolist() == [0, 3, 4, 5]
    mine = sources.from_table(table, table, x="x", y="y", clients="who", missing="drop")
    assert mine.train_clients is not None
    assert (mine.train.y.tolist(), mine.train_clients.tolist()) == ([0, 0, 1], [0, 1, 0])


@pytest.mark.parametrize(("y", "targets"), [("s", "numbers"), (["t", "s"], "numbers"), (["t", "s"], "labels")])
def test_missing_targets_among_numbers_in_texts(y, targets):
    table = {"x": [[1.0], [2.0], [3.0], [4.0]], "s": ["1", "NA", "0", ""], "t": [1, 0, 1, 0]}
    with pytest.raises(ValueError, match=r"train: row 1 of column 's' is missing \('NA'\); missing='drop' leaves such rows out\.$"):
        sources.from_table(table, table, x="x", y=y, targets=targets)
    mine = sources.from_table(table, table, x="x", y=y, targets=targets, missing="drop")
    assert mine.train.x[:, 0].tolist() == [1, 3]
    assert mine.train.y[:, -1].tolist() == [1, 0]


@pytest.mark.parametrize("missing", ["error", "drop", "mean"])
@pytest.mark.parametrize(("column", "value", "told"), [("a", float("inf"), "inf"), ("y", "-1e39", "'-1e39'")])
def test_an_infinite_cell_is_named(missing, column, value, told):
    table = {"a": [0.5, 1.5, 2.5], "b": [1, 2, 3], "y": ["1", "2", "3"]}
    table[column][2] = value
    with pytest.raises(ValueError, match=rf"train: row 2 of column '{column}' is {told}: must be finite"):
        sources.from_table(table, table, x=["a", "b"], y="y", targets="numbers", missing=missing)


def test_missing_places_of_lists():
    table = {"x": [[1.0, 2.0], [None, 4.0], [3.0, 6.0]], "y": [0, 1, 0]}
    with pytest.raises(ValueError, match=r"train: row 1 of column 'x' is missing \(\[None, 4.0\]\)"):
        sources.from_table(table, table, x="x", y="y")
    assert sources.from_table(table, table, x="x", y="y", missing="mean").train.x[1].tolist() == [2.0, 4.0]


def test_a_row_that_is_left_out_leaves_integers_integers():
    table = {"x": [[1, 2], None, [3, 4]], "y": [0, 1, 1]}
    mine = sources.from_table(table, table, x="x", y="y", missing="drop")
    whole = sources.from_table({"x": [[1, 2], [3, 4]], "y": [0, 1]}, table | {"x": [[1, 2]] * 3}, x="x", y="y")
    assert mine.train.x.dtype == whole.train.x.dtype
    assert mine.train.x.tolist() == [[1, 2], [3, 4]]


def test_a_column_without_a_value_has_no_mean():
    table = {"a": [None, None], "b": [1.0, 2.0], "y": [0, 1]}
    with pytest.raises(ValueError, match="column 'a' has no value of which missing='mean' could be the mean"):
        sources.from_table(table, table, x=["b", "a"], y="y", missing="mean")
    with pytest.raises(ValueError, match="train: every row has a missing cell, in a"):
        sources.from_table(table, table, x=["b", "a"], y="y", missing="drop")


@pytest.mark.parametrize(
    ("y", "names", "codes"),
    [
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([np.True_, np.False_, np.True_], ("False", "True"), [1, 0, 1]),
        ([1.0, 0.0, 2.0], ("0", "1", "2"), [1, 0, 2]),
        ([decimal.Decimal(1), decimal.Decimal(0), decimal.Decimal(1)], ("0", "1"), [1, 0, 1]),
    ],
)
def test_labels_that_count_without_being_integers(y, names, codes):
    table = {"x": [decimal.Decimal("0.5"), "2.5", " 1e3 "], "y": y}
    mine = sources.from_table(table, table, x="x", y="y")
    assert (mine.class_names, mine.train.y.tolist(), mine.train.x[:, 0].tolist()) == (names, codes, [0.5, 2.5, 1000])


def test_labels_of_different_kinds_name_the_odd_one():
    table = {"x": [1.0, 2.0, 3.0], "y": ["a", "b", 3]}
    with pytest.raises(ValueError, match="row 2 of column 'y' is 3: must be a text, as row 0"):
        sources.from_table(table, table, x="x", y="y")
    with pytest.raises(ValueError, match=r"row 0 of column 'y' is 0.5: must be an integer or a text"):
        sources.from_table(*[table | {"y": [0.5, 1, 2]}] * 2, x="x", y="y")
    with pytest.raises(ValueError, match=rf"row 1 of column 'y' is {2**80}: must be from 0 to {2**31 - 1}"):
        sources.from_table(*[table | {"y": [0, 2**80, 2]}] * 2, x="x", y="y", class_names=("a", "b", "c"))


def test_codes_are_names_of_classes_and_domains(caplog):
    table = {"x": [1.0, 2.0, 3.0, 4.0], "y": [1, -1, -1, 1], "year": [2019, 2020, 2020, 2019]}
    mine = sources.from_table(table, table, x="x", y="y", domains="year")
    assert (mine.class_names, mine.train.y.tolist()) == (("-1", "1"), [1, 0, 0, 1])
    assert mine.train_domains is not None
    assert (mine.domain_names, mine.train_domains.tolist()) == (("2019", "2020"), [0, 1, 1, 0])
    (line,) = caplog.messages
    assert line.startswith("column 'y' has 2 integers from -1 to 1 that do not count from 0: each is a class")
    assert sources.from_table(table, x="x", y="year", test_fraction=0.5).class_names == ("2019", "2020")


@pytest.mark.parametrize(("targets", "y"), [("classes", "b"), ("labels", ["a", "c"])])
def test_a_column_is_no_input_beside_its_being_the_label(targets, y):
    """Such as x of all columns of a frame: accuracies were 1."""
    table = {name: [0, 1, 1] for name in "abc"}
    with pytest.raises(ValueError, match=r"x has the column '[ab]', which is also y: a network would read what it is to predict"):
        sources.from_table(table, table, x=["a", "b"], y=y, targets=targets)
    assert sources.from_table(table, table, x=["a", "b"], y=["a", "b"], targets="numbers").train.y.shape == (3, 2), "reconstructed"


@pytest.mark.parametrize(("one", "other"), [("True", "true"), ("Me\u0301dium", "M\u00e9dium")])
def test_classes_that_look_alike_are_told(caplog, one, other):
    """Single letters, whose capitals are other classes, are not."""
    table = {"x": [1.0, 2.0, 3.0], "y": [other, one, "zero"]}
    assert sorted(sources.from_table(table, table, x="x", y="y").class_names) == sorted([one, other, "zero"])
    differ = "which differ in capitals or in the encoding of accents alone: each counts for itself"
    assert caplog.messages == [f"column 'y' has both {one!r} and {other!r}, {differ}"]
    sources.from_table(*[table | {"y": ["a", "A", "b"]}] * 2, x="x", y="y")
    assert len(caplog.messages) == 1


class Index(list):
    """Stands in for an index of pandas, or an array of names."""

    def __bool__(self):
        raise ValueError("The truth value of an Index is ambiguous")


def test_columns_may_be_an_index():
    table = {"a": [1.0, 2.0], "b": [3, 4], "y": [0, 1]}
    mine = sources.from_table(table, table, x=Index(["a", "b"]), y=Index(["y"]), categorical=Index(["b"]))
    assert mine.train.x.tolist() == [[1, 1, 0], [2, 0, 1]]


def test_clients_may_have_any_integers_for_names():
    table = {"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "who": [2**80, -3, 2**80, 7]}
    mine = sources.from_table(table, table, x="x", y="y", clients="who")
    assert mine.train_clients is not None
    assert (mine.client_names, mine.train_clients.tolist()) == (("-3", "7", str(2**80)), [2, 0, 2, 1])


def encoded(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def test_encoded_images_in_cells():
    """As the Hugging Face hub keeps them, and as bytes alone; grey if all are."""
    colours = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    greys = colours[..., 0]
    for pixels in (colours, greys):
        wanted = pixels if pixels.ndim == 4 else pixels[..., None]
        blobs = [encoded(p) for p in pixels]
        for cells in (blobs, [{"bytes": blob, "path": None} for blob in blobs], [Image.fromarray(p) for p in pixels]):
            table = {"img": cells, "y": [0, 1, 0, 1]}
            np.testing.assert_array_equal(sources.from_table(table, table, x="img", y="y").train.x, wanted)
            assert sources.from_table(table, table, x="img", y="y", size=3).train.x.shape == (4, 3, 3, wanted.shape[-1])
            lacking = table | {"img": [cells[0], None, *cells[2:]]}
            dropped = sources.from_table(lacking, lacking, x="img", y="y", missing="drop")
            np.testing.assert_array_equal(dropped.train.x, wanted[[0, 2, 3]])
            with pytest.raises(
                ValueError, match=r"row 1 of column 'img' is missing \(None\); missing='drop' leaves such rows out\.$"
            ):
                sources.from_table(lacking, lacking, x="img", y="y", missing="mean")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"bytes": None, "path": "a.png"}, "row 1 of column 'img' has the path 'a.png' of an image and no bytes"),
        (b"no image", "train: row 1 of column 'img' cannot be decoded"),
        (3, "row 1 of column 'img' is int: must be an image, as others are"),
    ],
)
def test_cells_that_are_no_images(cell, message):
    table = {"img": [encoded(np.zeros((4, 4), np.uint8)), cell], "y": [0, 1]}
    with pytest.raises(ValueError, match=message):
        sources.from_table(table, table, x="img", y="y")


def test_numbers_are_categories_where_they_are_said_to_be():
    table = {"ward": [30, 4, 30], "age": ["31", None, "40"], "y": [0, 1, 0]}
    mine = sources.from_table(table, table, x=["ward", "age"], y="y", categorical=["ward"], missing="mean")
    assert mine.train.x.tolist() == [[0, 1, 31], [1, 0, 35.5], [0, 1, 40]]
    with pytest.raises(ValueError, match=r"categorical=\('y',\): 'y' must be one of the columns x, ward, age"):
        sources.from_table(table, table, x=["ward", "age"], y="y", categorical=("y",))


def test_a_category_is_one_value_whether_a_table_has_it_as_a_text_or_a_number():
    train = {"ward": ["1", "2", "x"], "y": [0, 1, 0]}
    test = {"ward": [2.0, np.nan, np.float32(1)], "y": [0, 1, 0]}  # as pandas reads a file without the x
    mine = sources.from_table(train, test, x=["ward"], y="y", categorical=["ward"], missing="drop")
    assert mine.train.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert mine.test.x.tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_a_fraction_is_of_every_client(targets):
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(6), [10, 20, 10, 40, 30, 10])
    y = rng.integers(3, size=120) if targets == "classes" else rng.normal(size=120)
    table = {"x": rng.normal(size=120), "y": y, "who": clients}
    mine = sources.from_table(table, x="x", y="y", clients="who", targets=targets, test_fraction=0.2)
    assert np.abs(np.bincount(mine.test_clients, minlength=6) - 0.2 * np.bincount(clients)).max() <= 1
    if targets == "classes":
        assert np.abs(np.bincount(mine.test.y) - 0.2 * np.bincount(y)).max() <= 1


def test_a_client_with_one_example_of_each_class_is_tested():
    """Within each class another client has the larger remainder."""
    y, who = np.tile(np.arange(10), 5), np.repeat([0, 1], [10, 40])
    mine = sources.from_table({"x": np.arange(50), "y": y, "who": who}, x="x", y="y", clients="who", test_fraction=0.2)
    assert np.bincount(mine.test_clients).tolist() == [2, 8]
    assert np.bincount(mine.test.y).tolist() == [1] * 10


def test_tables_that_number_their_classes_differently_are_refused():
    class Fewer:
        names = ("car",)

    def table(kind, y):
        return HuggingFace({"x": [0.5] * len(y), "y": y}, {"y": kind})

    with pytest.raises(
        ValueError, match=r"column 'y' numbers its classes differently: in train 'plane, car', and in test 'car'; cast"
    ):
        sources.from_table(table(Names, [0, 1]), table(Fewer, [0, 0]), x="x", y="y")
    mine = sources.from_table(table(Names, [0, 1]), table(Names, [1, 1]), x="x", y="y")
    assert (mine.class_names, mine.test.y.tolist()) == (("plane", "car"), [1, 1])
    given = sources.from_table(table(Names, [0, 1]), table(Fewer, [0, 0]), x="x", y="y", class_names=("a", "b"))
    assert given.class_names == ("a", "b")
