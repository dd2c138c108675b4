"""Folding of lines and tables."""

import io

from fedjax_core.reporting.terminal import align_columns, find_columns, fit_lines


def test_only_terminals_have_columns():
    assert find_columns(io.StringIO()) is None
    assert find_columns(None) is None
    assert fit_lines("a b " * 50, None) == "a b " * 50


def test_a_long_line_continues_below_its_text():
    assert fit_lines("  name   one two three four five", 20) == "  name   one two\n         three four\n         five"
    assert fit_lines("one two three", 9) == "one two\nthree"
    assert fit_lines("  fedjax-core run fedavg --workdir=runs", 26) == "  fedjax-core run fedavg \\\n      --workdir=runs"


def test_full_lines_of_prose_are_filled_anew():
    first = "word " * 19 + "end"  # 98 columns
    folded = fit_lines(f"{first}\nand more.\n\nArgs:\n  x: short.", 50, is_prose=True).splitlines()
    assert folded == [
        ("word " * 10).strip(),
        "word word word word word word word word word end",
        "and more.",
        "",
        "Args:",
        "  x: short.",
    ]
    assert "end\n" in fit_lines(f"{first}\nand more.", 50) + "\n"


def test_a_wide_table_follows_below_in_parts():
    rows = [["", "left", "right"], ["row", "1", "2"]]
    assert align_columns(rows) == ["     left  right", "row  1     2"]
    assert align_columns(rows, 12, align=str.rjust) == ["     left", "row     1", "", "     right", "row      2"]
    assert fit_lines("| | left | right |\n| --- | --- | --- |\n| row | 1 | 2 |", 12).splitlines() == align_columns(rows, 12)
    assert fit_lines("| a | b |\n| no table: one cell |", 12).splitlines() == ["| a | b |", "| no table:", "one cell |"]
