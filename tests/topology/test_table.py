"""Tables: as text, as Markdown, as JSON, and between the marks of a page."""

import pytest

from dgcl.topology.table import Column, Table
from docs.figures.framework import write_between


def example() -> Table:
    table = Table(
        Column("method", left=True, width=8), "ranks", Column("time", lambda s: f"{1e6 * s:.1f}", "us")
    )
    table.add("auto", 2, 1.25e-5)
    table.add("gloo", 16, None)
    return table


def test_text_is_aligned():
    assert example().text().splitlines() == [
        "method  ranks  time (us)",
        "auto        2       12.5",
        "gloo       16          -",
    ]


def test_rows_that_are_printed_one_by_one_have_the_declared_widths():
    table = example()
    assert table.line(table.cells(table.rows[0])) == "auto     2 12.5"


def test_markdown():
    assert example().markdown().splitlines() == [
        "| method | ranks | time (us) |",
        "| --- | --- | --- |",
        "| auto | 2 | 12.5 |",
        "| gloo | 16 | - |",
    ]


def test_json_has_the_values_themselves():
    assert example().json()[1] == {"method": "gloo", "ranks": 16, "time": None}


def test_records_fill_a_table():
    table = Table(Column("takes", ".1f", key="seconds", none="impossible"), "ranks")
    assert table.fill([{"ranks": 2, "seconds": 1.5}, {"ranks": 4}]).rows == [(1.5, 2), (None, 4)]
    assert table.text().splitlines()[1:] == ["       1.5      2", "impossible      4"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"values must be 3, one a column \(got 2\)"):
        example().add("auto", 2)


def test_a_text_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n<!-- y: begin --><!-- y: end -->\n"
    )
    write_between(page, "x", example().markdown())
    assert page.read_text() == (
        f"before\n<!-- x: begin -->\n\n{example().markdown()}\n\n<!-- x: end -->\nafter\n"
        "<!-- y: begin --><!-- y: end -->\n"
    )


@pytest.mark.parametrize(
    "text", ["", "<!-- x: end --><!-- x: begin -->", "<!-- x: begin -->" * 2 + "<!-- x: end -->"]
)
def test_a_page_without_its_marks_is_refused(tmp_path, text: str):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="'<!-- x: begin -->' and, after it, '<!-- x: end -->', each once"):
        write_between(page, "x", "new")
    assert page.read_text() == text
