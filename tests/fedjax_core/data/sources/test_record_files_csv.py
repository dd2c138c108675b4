"""Delimited texts: how columns are read, and what a file that is none says."""

import codecs

import numpy as np
import pytest

from fedjax_core.data import federated_data, sources

HEAD = "hospital,age,ward,dose,ill\n"
ROWS = [f"hospital_{i % 3:02},{30 + i},{('north', 'south', 'east')[i % 3]},{i / 4},{('no', 'yes')[i % 2]}" for i in range(24)]
SPEC = "csv(path='t.csv', x=('age', 'dose'), y='ill', clients='hospital', test_fraction=0.25{})"


def load(folder, text, more="", encoding="utf-8", mark=b""):
    (folder / "t.csv").write_bytes(mark + text.encode(encoding))
    return sources.load(SPEC.format(more), folder)


def every_row(data):
    return np.concatenate([data.train.x, data.test.x])


def test_numbers_texts_and_clients(tmp_path):
    data = load(tmp_path, HEAD + "\n".join(ROWS))
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("hospital_00", "hospital_01", "hospital_02")
    assert sorted(every_row(data)[:, 0].tolist()) == list(range(30, 54))
    assert data.train.x.dtype == np.float32
    for (age, _), client in zip(data.train.x, data.train_clients, strict=True):
        assert (age - 30) % 3 == client


@pytest.mark.parametrize(
    ("change", "more", "encoding", "mark"),
    [
        (lambda text: text, "", "utf-8", codecs.BOM_UTF8),
        (lambda text: text, "", "utf-16-le", codecs.BOM_UTF16_LE),
        (lambda text: text.replace("north", "nörd"), ", encoding='latin-1'", "latin-1", b""),
        (lambda text: text.replace(",", ";"), "", "utf-8", b""),
        (lambda text: text.replace(",", "\t"), ", delimiter='\\t'", "utf-8", b""),
        (lambda text: text.replace(",", ";").replace(".", ","), ", decimal=','", "utf-8", b""),
        (lambda text: text.replace("\n", "\r\n").replace(",", ", ") + "\r\n\r\n", "", "utf-8", b""),
        (lambda text: text.replace("north", '"north, or ""so"""'), "", "utf-8", b""),
    ],
)
def test_however_it_is_written(tmp_path, change, more, encoding, mark):
    wanted = load(tmp_path, HEAD + "\n".join(ROWS))
    found = load(tmp_path, change(HEAD + "\n".join(ROWS)), more, encoding, mark)
    np.testing.assert_array_equal(found.train.x, wanted.train.x)
    assert (found.class_names, found.client_names) == (wanted.class_names, wanted.client_names)


def test_categories_are_features_of_their_own(tmp_path):
    (tmp_path / "t.csv").write_text(HEAD + "\n".join(ROWS))
    spec = "csv(path='t.csv', x=('age', 'ward', 'dose'), categorical='ward', y='ill', test_fraction=0.25)"
    rows = every_row(sources.load(spec, tmp_path))
    assert rows.shape == (24, 5)
    for age, *ward, dose in rows.tolist():
        i = round(4 * dose)
        assert age == 30 + i
        assert ward == [float(name == ("north", "south", "east")[i % 3]) for name in ("east", "north", "south")]


def with_holes():
    rows = [row.split(",") for row in ROWS]
    rows[5][1], rows[9][2], rows[11][3] = "", "NA", "n/a"
    return HEAD + "\n".join(map(",".join, rows))


def test_missing_cells_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"t.csv: train: row 5 of column 'age' is missing \(None\); missing='drop' leaves"):
        load(tmp_path, with_holes())
    with pytest.raises(ValueError, match=r"row 3 of column 'ill' is missing.*'drop' leaves such rows out\.$"):
        load(tmp_path, HEAD + "\n".join(ROWS).replace(ROWS[3], ROWS[3].replace("yes", "?")), ", missing='mean'")


def test_rows_with_missing_cells_are_left_out(tmp_path, caplog):
    data = load(tmp_path, with_holes(), ", missing='drop'")
    assert sorted(every_row(data)[:, 0].tolist()) == [age for age in range(30, 54) if age not in (35, 41)]
    assert "train: 2 of 24 rows are left out, since cells are missing: age (1), dose (1)" in caplog.text


def test_missing_cells_become_the_mean_of_the_training_rows(tmp_path):
    """Of a category they become the share of each value; test examples count for nothing."""
    (tmp_path / "t.csv").write_text(with_holes())
    spec = "csv(path='t.csv', x=('age', 'ward', 'dose'), categorical='ward', y='ill', test_fraction=0.25, missing='mean')"
    data = sources.load(spec, tmp_path)
    rows = every_row(data)
    told = {round(4 * row[-1]): row for row in rows if row[-1] * 4 == round(4 * row[-1])}
    age = [row[0] for row in data.train.x.tolist() if round(4 * row[-1]) != 5]
    np.testing.assert_allclose(told[5][0], np.mean(age), rtol=1e-6)
    ward = np.array([row[1:4] for row in data.train.x.tolist() if max(row[1:4]) == 1])
    np.testing.assert_allclose(told[9][1:4], ward.mean(0), rtol=1e-6)


def test_codes_with_a_leading_zero_stay_texts(tmp_path):
    (tmp_path / "t.csv").write_text("code,a,y\n" + "\n".join(f"0{i % 2}067,{i},{i % 2}" for i in range(10)))
    data = sources.load("csv(path='t.csv', x='a', y='y', clients='code', test_fraction=0.2)", tmp_path)
    assert data.client_names == ("00067", "01067")


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (("1e3", "1000", "12"), ("1000", "12", "1e3")),
        (("true", "1", "0"), ("0", "1", "true")),
        (("0.5", "1.5", "NA"), ("0.5", "1.5")),
        (("9007199254740993", "9007199254740992", "5.0"), ("5", "9007199254740992", "9007199254740993")),
    ],
)
def test_labels_are_numbers_where_all_are_integers(tmp_path, written, names):
    (tmp_path / "t.csv").write_text("who,a\n" + "\n".join(f"{written[i % 3]},{i}" for i in range(12)))
    spec = "csv(path='t.csv', x='a', y='who', clients='who', missing='drop', test_fraction=0.25)"
    data = sources.load(spec, tmp_path)
    assert data.client_names == data.class_names == names


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("", "", "t.csv: has no header line"),
        (HEAD, "", "t.csv: has no rows"),
        ("age,age\n1,2", "", "the header has the column 'age' twice"),
        (HEAD + "a,1,2\n", "", r"line 2: has 3 cells, the header 5, with delimiter=','"),
        (HEAD + 'a,"1,2\n', "", "line 2: cannot be read with delimiter=','"),
        (HEAD + "\n".join(ROWS), ", delimiter=';'", "has no column 'age'; it has: hospital,age,ward,dose,ill"),
        (
            HEAD + "\n".join(ROWS).replace("31", "old"),
            "",
            r"row 1 of column 'age' is 'old': must be numbers.*categorical=\('age',\)",
        ),
        (HEAD + "\n".join(ROWS), ", delimiter=',,'", "delimiter=',,' must be one character"),
        (HEAD + "\n".join(ROWS), ", encoding='rot13'", "encoding='rot13' must be an encoding that Python knows"),
        (HEAD + "\n".join(ROWS), ", missing='zero'", "missing='zero' must be one of 'error', 'mean', 'drop'"),
        (HEAD + "\n".join(ROWS), ", categorical='ward'", "categorical='ward': 'ward' must be one of the columns x, age, dose"),
    ],
)
def test_a_wrong_file_ends_in_one_line(tmp_path, text, more, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text, more)


def test_another_encoding_is_named(tmp_path):
    (tmp_path / "t.csv").write_bytes("a,y\nmaß,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"is no text in UTF-8 .*give its own, such as encoding='latin-1'"):
        sources.load("csv(path='t.csv', x='a', y='y', test_fraction=0.5)", tmp_path)


def test_texts_are_read_word_by_word(tmp_path):
    (tmp_path / "t.csv").write_text(
        "says,mood\n" + "\n".join(f'"the cat, {"sat" if i % 2 else "ran"}",{"ab"[i % 2]}' for i in range(8))
    )
    data = sources.load("csv(path='t.csv', x='says', y='mood', test_fraction=0.25, words=5, length=4)", tmp_path)
    assert data.train.x.shape == (6, 4)


def test_all_natural_clients_take_part(tmp_path):
    data = load(tmp_path, HEAD + "\n".join(ROWS))
    divided = federated_data.federate(data, "natural", seed=0)
    assert (divided.clients, divided.client_names) == (3, data.client_names)
    assert "hospital_02" in federated_data.format_summary(divided)


def test_points_of_thousands_are_no_decimal_points(tmp_path):
    rows = "\n".join(f"{income};{30 + i};{('no', 'yes')[i % 2]}" for i, income in enumerate(("1.234", "987", "12.500", "740") * 2))
    (tmp_path / "t.csv").write_text("income;age;ill\n" + rows)
    spec = "csv(path='t.csv', x=('age', 'income'), y='ill', test_fraction=0.25, decimal=','{})"
    with pytest.raises(ValueError, match=r"t.csv: column 'income' has '1.234', which is no number with decimal=','"):
        sources.load(spec.format(""), tmp_path)
    assert every_row(sources.load(spec.format(", categorical='income'"), tmp_path)).shape == (8, 5)
    assert every_row(sources.load(spec.format("").replace("('age', 'income')", "'age'"), tmp_path)).shape == (8, 1)


def test_a_category_is_the_same_in_a_file_of_numbers_and_in_one_of_texts(tmp_path):
    (tmp_path / "t.csv").write_text("age,code,ill\n" + "\n".join(f"{i},{(10115, 80331)[i % 2]},{i % 2}" for i in range(8)))
    (tmp_path / "u.csv").write_text("age,code,ill\n1,10115,0\n2,80331,1\n3,01067,1\n")
    data = sources.load("csv(path='t.csv', test='u.csv', x=('age', 'code'), categorical='code', y='ill')", tmp_path)
    np.testing.assert_array_equal(data.train.x[:2, 1:], [[0, 1, 0], [0, 0, 1]])  # 01067, 10115, 80331
    np.testing.assert_array_equal(data.test.x[:, 1:], [[0, 1, 0], [0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("train", "test", "lit"),
    [
        (("true", "false", "unknown"), ("true", "false"), [1, 0]),
        (("38", "38.5", "unknown"), ("38.5", "38"), [1, 0]),
        (("1", "2", "10"), ("10.0", "NA"), [2]),
        (("True", "False", "unknown"), ("unknown", "True"), [2, 1]),
    ],
)
def test_a_category_has_one_feature_in_both_files(tmp_path, train, test, lit):
    for name, cells in (("t", train * 2), ("u", test)):
        (tmp_path / f"{name}.csv").write_text("age,kind,ill\n" + "\n".join(f"{i},{cell},{i % 2}" for i, cell in enumerate(cells)))
    spec = "csv(path='t.csv', test='u.csv', x=('age', 'kind'), categorical='kind', y='ill', missing='drop')"
    data = sources.load(spec, tmp_path)
    assert data.train.x.shape == (6, 4), "the age and three categories, each of which is in the training rows"
    assert data.test.x[:, 1:].argmax(1).tolist() == lit
    assert data.train.x[:, 1:].any(0).all()


def test_clients_and_classes_are_the_same_in_both_files(tmp_path):
    """A postcode with a zero in front, or a class that is no number, is in the first file alone."""
    (tmp_path / "train.csv").write_text("a,y,plz\n1,1,01067\n2,x,80331\n3,2,80331\n")
    (tmp_path / "test.csv").write_text("a,y,plz\n1,1,80331\n2,2,80331\n")
    mine = sources.load("csv(path='train.csv', test='test.csv', x=('a',), y='y', clients='plz')", tmp_path)
    assert (mine.class_names, mine.client_names) == (("1", "2", "x"), ("01067", "80331"))
    assert (mine.train.y.tolist(), mine.test.y.tolist()) == ([0, 2, 1], [0, 1])
    assert (mine.train_clients.tolist(), mine.test_clients.tolist()) == ([0, 1, 1], [1, 1])
