"""Figures: drawn from the files of a run alone, with the same numbers beside them, wherever the code runs."""

import csv
import itertools
import json
import re
import runpy
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from fedjax_core.reporting import bootstrap
from fedjax_core.reporting.plots import (
    Difference,
    Panel,
    plot_attention,
    plot_contact_sheet,
    plot_contours,
    plot_costs,
    plot_curves,
    plot_differences,
    plot_dots,
    plot_heatmap,
    plot_partition,
    plot_run,
)
from fedjax_core.reporting.plots.score_curves import Line, draw_lines, group_by_seed
from fedjax_core.reporting.score_labels import describe_score
from fedjax_core.storage.json_files import JsonLinesFile, write_json
from fedjax_core.storage.workdir import WorkDir


def log(folder: Path, *records: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = JsonLinesFile(folder / "metrics.jsonl")
    lines.append(*records)
    lines.close()
    return folder


def rows(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def ink(path: Path) -> float:
    """Share of pixels that are not white."""
    with Image.open(path) as image:
        return float((np.asarray(image.convert("L")) < 250).mean())


RECORDS = [
    {"round": 1, "train/loss": 2.0},
    {"round": 2, "train/loss": 1.0, "test/global/accuracy": 0.5, "test/personal/own/accuracy/mean": 0.6},
    {"round": 3, "train/loss": float("nan")},
    {"round": 4, "train/loss": 0.5, "test/global/accuracy": 0.75, "test/personal/own/accuracy/lowest": 0.1},
]


def test_curves_of_several_runs(tmp_path):
    folders = [log(tmp_path / name / "seed0", *RECORDS) for name in ("fedavg", "scaffold")]
    figure = plot_curves(folders, "test/global/accuracy", tmp_path / "x.png")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["fedavg/seed0", "scaffold/seed0"]
    assert np.asarray(axes.get_lines()[0].get_xydata()).tolist() == [[2, 0.5], [4, 0.75]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("round", "test accuracy", "global model, all test data")
    assert rows(tmp_path / "x.csv") == [
        ["run", "round", "test/global/accuracy"],
        *([f"{name}/seed0", r, a] for name in ("fedavg", "scaffold") for r, a in (("2", "0.5"), ("4", "0.75"))),
    ]
    assert 0.01 < ink(tmp_path / "x.png") < 0.5


def seeds(tmp_path: Path, name: str, *accuracies: float, metric: str = "test/global/accuracy", **config) -> list[Path]:
    """Runs of one config with seeds 0, 1, ..., each with an accuracy in rounds 2 and 4."""
    made = []
    for seed, accuracy in enumerate(accuracies):
        made.append(log(tmp_path / f"{name}-seed{seed}", {"round": 2, metric: accuracy}, {"round": 4, metric: accuracy / 2}))
        write_json(
            made[-1] / "config.json", {"seed": seed, "data": {"seed": seed, "source": "x"}, "method": {"name": name}} | config
        )
    return made


def test_curves_over_simulated_time(tmp_path):
    """The time of seeds is averaged; the unit is chosen by the longest run."""
    folders = []
    for seed, seconds in enumerate((3600.0, 7200.0)):
        clock = [{"round": r, "test/global/accuracy": r / 10, "simulated_seconds_total": r * seconds} for r in (1, 2)]
        folders.append(log(tmp_path / f"a-seed{seed}", *clock))
        write_json(folders[-1] / "config.json", {"seed": seed})
    figure = plot_curves(folders, "test/global/accuracy", tmp_path / "x.png", axis="seconds")
    (axes,) = figure.axes
    assert np.asarray(axes.get_lines()[0].get_xydata()).tolist() == [[1.5, 0.1], [3.0, 0.2]]
    assert axes.get_xlabel() == "simulated hours"
    header, *values = rows(tmp_path / "x.csv")
    assert header == ["run", "round", "seconds", "test/global/accuracy", "standard_deviation", "seeds"]
    assert [row[:4] for row in values] == [["a", "1", "5400.0", "0.1"], ["a", "2", "10800.0", "0.2"]]
    with pytest.raises(ValueError, match=r"has no simulated time, for it ran without devices\.profile"):
        plot_curves(log(tmp_path / "b", *RECORDS), "test/global/accuracy", tmp_path / "y.png", axis="seconds")


def test_a_damaged_config_is_named(tmp_path):
    (folder,) = seeds(tmp_path, "fedavg", 0.2)
    for value, said in (
        ([], "config.json is a list, expected an object"),
        ({"data": 3}, "data of .*config.json is an int"),
    ):
        write_json(folder / "config.json", value)
        with pytest.raises(ValueError, match=said):
            plot_curves(folder, "test/global/accuracy", tmp_path / "x.png")


def test_runs_that_differ_in_their_seed_alone_are_one_line_with_a_band(tmp_path):
    folders = [
        *seeds(tmp_path, "fedavg", 0.2, 0.4, 0.9),
        *seeds(tmp_path, "moon", 0.5),
        *seeds(tmp_path, "more", 0.6, method="moon"),
    ]
    figure = plot_curves(folders, "test/global/accuracy", tmp_path / "x.png")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["fedavg", "moon-seed0", "more-seed0"]
    np.testing.assert_allclose(axes.get_lines()[0].get_xydata(), [[2, 0.5], [4, 0.25]])
    (band,) = axes.collections
    spread = np.std([0.2, 0.4, 0.9], ddof=1)
    edges = band.get_paths()[0].vertices
    np.testing.assert_allclose([edges[:, 1].min(), edges[:, 1].max()], [0.25 - spread / 2, 0.5 + spread], rtol=1e-6)
    assert axes.get_title() == "global model, all test data\nmean and standard deviation over seeds"
    found = rows(tmp_path / "x.csv")
    assert found[0] == ["run", "round", "test/global/accuracy", "standard_deviation", "seeds"]
    assert [float(cell) for cell in found[1][1:]] == pytest.approx([2, 0.5, spread, 3])
    assert found[3][3:] == ["", ""]


def test_seeds_may_be_placed_watched_and_summarised_differently(tmp_path):
    """Checks that seeds which a table counts as one cell are one line."""
    folders = seeds(tmp_path, "a", 0.2, 0.4, evaluation={"every": 2, "targets": [0.5], "last_k": 1}, callbacks=["x"])
    config = json.loads((folders[1] / "config.json").read_text())
    changes = {"evaluation": {"every": 2, "targets": [], "last_k": 3}, "callbacks": [], "plan": {"devices": 1}, "newer": None}
    write_json(folders[1] / "config.json", config | changes)
    assert len(group_by_seed(folders)) == 1
    write_json(folders[1] / "config.json", config | {"evaluation": {"every": 1}})
    assert len(group_by_seed(folders)) == 2


def test_a_copy_of_a_run_is_no_further_seed(tmp_path):
    folders = seeds(tmp_path, "fedavg", 0.2, 0.4)
    copy = shutil.copytree(folders[0], tmp_path / "copy")
    said = rf"{re.escape(str(folders[0]))} and {re.escape(str(copy))} have the same config, files and seed"
    with pytest.raises(ValueError, match=said):
        plot_curves([*folders, copy], "test/global/accuracy", tmp_path / "x.png")
    config = json.loads((copy / "config.json").read_text())
    write_json(copy / "config.json", config | {"data": config["data"] | {"seed": 7}})
    figure = plot_curves([*folders, copy], "test/global/accuracy", tmp_path / "x.png")
    assert len(figure.axes[0].get_lines()) == 1, "another partition is another seed"


def test_runs_of_edited_code_or_other_weights_are_no_seeds_of_one_experiment(tmp_path):
    folders = seeds(tmp_path, "fedavg", 0.2, 0.4)
    for folder, digest in zip(folders, ("a", "b"), strict=True):
        write_json(folder / "run.json", {"code": {"mine.py": digest}})
    assert len(group_by_seed(folders)) == 2
    write_json(folders[1] / "run.json", {"code": {"mine.py": "a"}, "weights": {"w.npz": "c"}})
    assert len(group_by_seed(folders)) == 2
    write_json(folders[1] / "run.json", {"code": {"mine.py": "a"}, "convolution": {"form": "auto"}})
    assert len(group_by_seed(folders)) == 1


def test_the_spread_of_a_single_evaluation_is_a_bar():
    axes = Figure().add_subplot()
    draw_lines(axes, [Line("a", [3], [0.5], [0.1]), Line("b", [3], [0.7])], "test/global/accuracy")
    (bar,) = [found for one in axes.containers if isinstance(one, ErrorbarContainer) for found in one.lines[2]]
    np.testing.assert_allclose(bar.get_segments(), [[[3, 0.4], [3, 0.6]]])


def test_names_of_lines(tmp_path):
    folders = [*seeds(tmp_path, "fedavg", 0.2, 0.4), *seeds(tmp_path, "moon", 0.5)]
    for labels in (["FedAvg", "MOON"], ["FedAvg", "FedAvg", "MOON"]):
        figure = plot_curves(folders, "test/global/accuracy", tmp_path / "x.png", labels)
        assert [line.get_label() for line in figure.axes[0].get_lines()] == ["FedAvg", "MOON"]
    for labels, said in (
        (["a"], "1 labels for 3 runs in 2 lines"),
        (["a", "b", "c"], "labels 'a', 'b' are of runs"),
        (["a", "a"], "each"),
    ):
        with pytest.raises(ValueError, match=said):
            plot_curves(folders, "test/global/accuracy", tmp_path / "y.png", labels)
    of_tens = [folder.rename(tmp_path / f"fedavg-seed1{i}") for i, folder in enumerate(folders[:2])]
    figure = plot_curves([*of_tens, folders[2]], "test/global/accuracy", tmp_path / "x.png")
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["fedavg", "moon-seed0"]
    folders[:2] = of_tens
    of_table = [
        folder.rename(tmp_path / f"{row}--iid--seed{i}--0123abcd")
        for i, (row, folder) in enumerate(zip("aab", folders, strict=True))
    ]
    figure = plot_curves(of_table, "test/global/accuracy", tmp_path / "x.png")
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["a", "b"]


def test_global_and_personal_models_in_one_figure(tmp_path):
    """Each run's own score, and its line says which."""
    own = "test/personal/own/accuracy/mean"
    folders = [*seeds(tmp_path, "fedavg", 0.2), *seeds(tmp_path, "local", 0.5, metric=own)]
    figure = plot_curves(folders, ("test/global/accuracy", own), tmp_path / "x.png")
    wanted = ["fedavg-seed0: global model, all test data", "local-seed0: personal models, own test rows"]
    assert [line.get_label() for line in figure.axes[0].get_lines()] == wanted


@pytest.mark.parametrize("count", [2, 9])
def test_a_legend_covers_no_line(tmp_path, count):
    folders = [log(tmp_path / f"a run with a long name {i}", *RECORDS) for i in range(count)]
    figure = plot_curves(folders, "test/global/accuracy", tmp_path / "x.png")
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert legend.y0 >= axes.y1
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_formats(tmp_path):
    folder = log(tmp_path / "run", *RECORDS)
    plot_curves(folder, "train/loss", tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"suffix \.xyz, not one of .*png"):
        plot_curves(folder, "train/loss", tmp_path / "x.xyz")
    with pytest.raises(ValueError, match=r"run has no score test/accuracy; it has train/loss, test/global/accuracy"):
        plot_curves(folder, "test/accuracy", tmp_path / "y.png")
    with pytest.raises(OSError, match=r"cannot read .*none/metrics\.jsonl"):
        plot_curves(tmp_path / "none", "train/loss", tmp_path / "y.png")
    with pytest.raises(OSError, match=r"cannot write .*none/y\.png"):
        plot_curves(folder, "train/loss", tmp_path / "none" / "y.png")
    assert not (tmp_path / "y.png").exists()


def test_areas_are_proportional_to_counts(tmp_path):
    counts = np.array([[100, 0], [25, 1], [0, 4]])
    figure = plot_partition(counts, tmp_path / "x.png", ["cat", "dog"])
    (circles,) = figure.axes[0].collections
    offsets = np.asarray(circles.get_offsets()).astype(int)
    areas = np.asarray(circles.get_widths()) ** 2  # pyright: ignore[reportAttributeAccessIssue]
    assert {tuple(at): round(100 * area / areas.max()) for at, area in zip(offsets.tolist(), areas, strict=True)} == {
        (0, 0): 100,
        (1, 0): 25,
        (1, 1): 1,
        (2, 1): 4,
    }
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["cat", "dog"]
    assert rows(tmp_path / "x.csv") == [["client", "cat", "dog"], ["0", "100", "0"], ["1", "25", "1"], ["2", "0", "4"]]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 100), (100, 2), (3400, 62)])
def test_charts_of_every_size_are_legible(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes)) + 1
    figure = plot_partition(counts, tmp_path / "x.png")
    width, height = figure.get_size_inches()
    assert width <= 7.01
    assert height <= 9
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for labels, side in ((axes.get_xticklabels(), 0), (axes.get_yticklabels(), 1)):
        boxes = np.array([label.get_window_extent().get_points()[:, side] for label in labels if label.get_text()])
        assert (boxes[1:, 0] > boxes[:-1, 1]).all()  # no two labels touch
        assert (boxes >= 0).all()
    assert len(np.asarray(axes.collections[0].get_offsets())) == min(clients, 100) * classes
    assert ("100 of 3,400 shown" in axes.get_xlabel()) == (clients == 3400)
    assert len(rows(tmp_path / "x.csv")) == clients + 1


@pytest.mark.parametrize("draw", [plot_partition, plot_heatmap])
def test_long_class_names_fit(tmp_path, draw):
    """WordNet's have up to 120 letters; the figure's are cut, the CSV's are whole."""
    names = ["automobile and truck", "W", "cliff, drop, drop-off" * 6]
    figure = draw(np.ones((30, 3), int), tmp_path / "x.png", names)
    figure.draw_without_rendering()
    assert min(label.get_window_extent().x0 for label in figure.axes[0].get_yticklabels()) >= 0
    assert figure.axes[0].yaxis.label.get_window_extent().x0 >= 0
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [*names[:2], "cliff, drop, drop-o…"]
    assert rows(tmp_path / "x.csv")[0] == ["client", *names]


@pytest.mark.parametrize("counts", [[1, 2], [[]], [[-1]], [["a"]], [[float("nan")]]])
def test_what_is_no_label_table(tmp_path, counts):
    with pytest.raises(ValueError, match=r"must be counts \[clients, classes\], found"):
        plot_partition(counts, tmp_path / "x.png")
    with pytest.raises(ValueError, match="3 class names for 2 classes"):
        plot_partition(np.ones((4, 2)), tmp_path / "x.png", ["a", "b", "c"])


def test_a_table_of_nothing_is_drawn(tmp_path):
    plot_partition(np.zeros((3, 2), int), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


def test_contact_sheets(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"bytes": rng.integers(0, 256, (3, 4, 4, 3)).astype(np.uint8), "floats": rng.normal(size=(2, 4, 4, 1))}
    figure = plot_contact_sheet(rows, tmp_path / "x.png")
    shown = [axes.get_images() for axes in figure.axes]
    assert list(map(len, shown)) == [1, 1, 1, 1, 1, 0]  # the shorter row ends early
    np.testing.assert_array_equal(shown[1][0].get_array(), rows["bytes"][1])
    np.testing.assert_allclose(shown[4][0].get_array(), np.clip(rows["floats"][1, ..., 0], 0, 1), rtol=1e-6)
    assert [axes.texts[0].get_text() for axes in figure.axes[::3]] == ["bytes", "floats"]
    assert ink(tmp_path / "x.png") > 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    for wrong in ({}, {"a": np.zeros((2, 4, 4, 2))}, {"a": np.zeros((4, 4, 3))}, {"a": np.zeros((0, 4, 4, 3))}):
        with pytest.raises(ValueError, match="contact sheet"):
            plot_contact_sheet(wrong, tmp_path / "y.png")


def test_plots_of_a_run(tmp_path):
    with WorkDir.open(tmp_path, {}) as run:
        log(run.path, *RECORDS)
        run.record("partition", {"hash": "ab", "label_table": [[3, 1], [0, 2]], "class_names": ["cat", "dog"]})
    written = plot_run(tmp_path)
    assert [path.name for path in written] == ["accuracy.png", "accuracy.csv", "partition.png", "partition.csv"]
    assert rows(tmp_path / "accuracy.csv") == [
        ["round", "train/loss", "test/global/accuracy", "test/personal/own/accuracy/mean"],
        ["1", "2.0", "", ""],
        ["2", "1.0", "0.5", "0.6"],
        ["3", "nan", "", ""],
        ["4", "0.5", "0.75", ""],
    ]
    assert rows(tmp_path / "partition.csv")[0] == ["client", "cat", "dog"]
    assert all(ink(path) > 0.01 for path in written if path.suffix == ".png")
    assert not list(tmp_path.glob(".writing-*"))


def test_plots_of_a_run_with_little_to_show(tmp_path):
    assert plot_run(log(tmp_path / "nothing")) == []
    assert [p.name for p in plot_run(log(tmp_path / "loss", RECORDS[0]))] == ["accuracy.png", "accuracy.csv"]
    with pytest.raises(OSError, match=r"cannot read .*metrics\.jsonl"):
        plot_run(tmp_path / "none")


def test_in_a_thread_without_pyplot(tmp_path):
    folder = log(tmp_path / "run", *RECORDS)
    before = "matplotlib.pyplot" in sys.modules
    thread = threading.Thread(target=plot_run, args=[folder])
    thread.start()
    thread.join()
    assert (folder / "accuracy.png").exists()
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_attention_has_a_row_per_example_and_a_column_per_token(tmp_path):
    weights = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    figure = plot_attention(weights, tmp_path / "x.png", ["cat", "dog"])
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), weights)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["f", "p1", "p2"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cat", "dog"]
    assert rows(tmp_path / "x.csv") == [["example", "f", "p1", "p2"], ["cat", "0.5", "0.25", "0.25"], ["dog", "0.0", "1.0", "0.0"]]
    assert ink(tmp_path / "x.png") > 0.05
    plot_attention(np.full((30, 41), 1 / 41), tmp_path / "many.png")
    for wrong, labels, said in ((np.zeros(3), None, "found shape \\(3,\\)"), (weights, ["cat"], "1 labels for 2 examples")):
        with pytest.raises(ValueError, match=said):
            plot_attention(wrong, tmp_path / "y.png", labels)


def test_the_key_of_differences_names_the_level_of_the_intervals(monkeypatch):
    monkeypatch.setattr(bootstrap, "LEVEL", 0.9)
    key = runpy.run_path(str(sys.modules["fedjax_core.reporting.plots.forest_plot"].__file__))["KEY"]
    assert key[0] == "90 % interval"


def test_differences_have_a_key_beside_the_axis_and_a_row_for_the_method_at_0(tmp_path):
    methods = [Difference("A", 2.0, 1.0, 3.0, "personal model", True)]
    methods += [Difference("Zero", 0.0, 0.0, 0.0, "reference", False, is_reference=True)]
    methods += [Difference("B", -1.0, -2.0, 0.5, "global model", False)]
    figure = plot_differences([Panel("digits", "own rows", methods)], tmp_path / "x.pdf", "Zero", "points")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "minus Zero [points]"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "Zero", "B"]
    (mark,) = [line for line in axes.lines if line.get_marker() == "|"]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([0], [1])
    key, kinds = ([text.get_text() for text in legend.get_texts()] for legend in figure.legends)
    assert kinds == ["personal model", "global model"]
    assert key == ["95 % interval", "0 is not in it", "0 is in it", "bold: tied with the best"]
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in figure.legends] + [axes.xaxis.label.get_window_extent()]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
    assert [line[2] for line in rows(tmp_path / "x.csv")[1:]] == ["A", "B"]
    pdf = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"/Subtype /Image" not in pdf


def texts(figure: Figure) -> list[str]:
    """All that stands in a figure, once it is drawn."""
    return [found.get_text() for found in figure.findobj(Text)]


def test_a_figure_of_costs_says_what_it_scores(tmp_path):
    runs = [
        log(tmp_path / "a", RECORDS[0] | {"test/global/accuracy": 0.5}),
        log(tmp_path / "b", RECORDS[0] | {"test/personal/own/accuracy/mean": 0.6}),
    ]
    for run in runs:
        write_json(run / "summary.json", {"facts": {"bytes_up": 1e6}})
    scores = ["test/global/accuracy", "test/personal/own/accuracy/mean"]
    both = [text for text in texts(plot_costs(runs, scores, tmp_path / "s.png")) if text.startswith(("a: ", "b: "))]
    assert [text.partition(": ")[2] for text in both] == [describe_score(name) for name in scores]
    assert describe_score(scores[1]) in texts(plot_costs(runs[1:], scores[1], tmp_path / "s.png"))
    write_json(runs[1] / "summary.json", {"facts": {"bytes_up": 0.0}})
    axes = plot_costs(runs, scores, tmp_path / "s.png").axes[0]
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "--"], "one that sends nothing is horizontal"


def test_a_heatmap_of_some_clients_says_of_how_many(tmp_path):
    figure = plot_heatmap(np.ones((300, 2)), tmp_path / "h.png", clients=range(0, 3000, 10))
    assert any("shown" in text and "of 2,991" in text for text in texts(figure))


def test_a_dollar_is_a_dollar(tmp_path):
    """And no label of ours needs formulas, such as ticks on a scale of powers."""
    names = ["$5_$10", "$10 & more", "a_b$c^$"]
    counts = np.arange(6).reshape(2, 3)
    drawn = [
        plot_partition(counts, tmp_path / "b.png", names),
        plot_heatmap(counts, tmp_path / "h.pdf", names),
        plot_dots({"$a_$b": {"0": 0.5}, "x^$y$": {"0": 0.6}}, tmp_path / "d.svg", "client", "accuracy"),
    ]
    assert all(any("$" in text for text in texts(figure)) for figure in drawn)
    steps = np.linspace(-1, 1, 5)
    for loss in (1 + steps[:, None] ** 2 + steps**2, np.exp(9 * (steps[:, None] ** 2 + steps**2))):
        assert not any("$" in text for text in texts(plot_contours(steps, loss, tmp_path / "c.png", marks={"a": [[0, 1]]})))
    run = log(tmp_path / "run", *RECORDS)
    write_json(run / "summary.json", {"facts": {"bytes_up": 1e6}})
    assert not any("$" in text for text in texts(plot_costs([run], "test/global/accuracy", tmp_path / "s.png")))


def test_labels_that_begin_with_a_line_are_in_the_legend(tmp_path):
    folders = [log(tmp_path / name, *RECORDS) for name in ("_a", "_b", "c")]
    shown = lambda figure: [text.get_text().strip("\u200b") for legend in figure.legends for text in legend.get_texts()]
    assert shown(plot_curves(folders, "test/global/accuracy", tmp_path / "x.png")) == ["_a", "_b", "c"]
    assert shown(plot_curves(folders[:2], "test/global/accuracy", tmp_path / "x.png", ["", "_"])) == ["", "_"]
    assert shown(plot_dots({"_a": {"0": 0.5}, "b": {"0": 0.6}}, tmp_path / "x.png", "client", "accuracy")) == ["_a", "b"]


def test_a_name_does_not_stand_in_place_of_the_first_column(tmp_path):
    for chart in (plot_partition, plot_heatmap):
        chart([[1, 2], [3, 4]], tmp_path / "x.png", ["client", "owl"])
        assert rows(tmp_path / "x.csv") == [["client", "client (class)", "owl"], ["0", "1", "2"], ["1", "3", "4"]]
    plot_dots({"class": {"cat": 0.5}, "b": {"cat": 0.25}}, tmp_path / "x.png", "class", "accuracy")
    assert rows(tmp_path / "x.csv") == [["class", "class (run)", "b"], ["cat", "0.5", "0.25"]]
