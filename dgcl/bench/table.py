"""One table: rows of values that print as text or Markdown, become JSON, and write themselves into a page.

>>> table = Table(Column("ranks"), Column("time", ".1f", "us"))
>>> table.add(2, 18.25)
>>> print(table.markdown())
| ranks | time (us) |
| --- | --- |
| 2 | 18.2 |
>>> table.json()
[{'ranks': 2, 'time': 18.25}]
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgcl.planner.reading.render import table as aligned


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: Over it, and the key in JSON.
        form: How a value is written: a format specification, or a function. None is written as "-".
        unit: Of what is written.
        left: Whether it is flush left.
        width: At least this many characters, for tables that are printed row by row.
    """

    name: str
    form: str | Callable[[Any], str] = ""
    unit: str = ""
    left: bool = False
    width: int = 0

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def cell(self, value: Any) -> str:
        """A value as it is written."""
        if value is None:
            return "-"
        return format(value, self.form) if isinstance(self.form, str) else self.form(value)


class Table:
    """Columns, and rows of one value for each.

    Attributes:
        columns, rows: These.
    """

    def __init__(self, *columns: Column | str) -> None:
        self.columns = [Column(each) if isinstance(each, str) else each for each in columns]
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *values: Any) -> None:
        """Append a row.

        Raises:
            ValueError: There are more or fewer values than columns.
        """
        if len(values) != len(self.columns):
            raise ValueError(f"values must be {len(self.columns)}, one a column (got {len(values)})")
        self.rows.append(values)

    def cells(self, row: Sequence[Any]) -> list[str]:
        """A row's values as they are written."""
        return [column.cell(value) for column, value in zip(self.columns, row, strict=True)]

    def line(self, cells: Sequence[str]) -> str:
        """Cells at the columns' widths."""
        pairs = zip(self.columns, cells, strict=True)
        return " ".join(
            cell.ljust(column.width) if column.left else cell.rjust(column.width) for column, cell in pairs
        )

    def text(self) -> str:
        """Aligned columns under their titles."""
        left = [index for index, column in enumerate(self.columns) if column.left]
        return aligned([column.title for column in self.columns], list(map(self.cells, self.rows)), left)

    def markdown(self) -> str:
        """A Markdown table."""
        titles = [column.title for column in self.columns]
        lines = [titles, ["---"] * len(titles), *map(self.cells, self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def json(self) -> list[dict[str, Any]]:
        """A dictionary for each row, of the values themselves."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def write(self, page: str | os.PathLike[str], name: str) -> None:
        """Write the Markdown between a page's marks: :func:`write_between`."""
        write_between(page, name, self.markdown())


def write_between(page: str | os.PathLike[str], name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` in a page.

    Raises:
        ValueError: The page has not each of the two once, in this order.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = Path(page).read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1 or whole.index(begin) > whole.index(end):
        raise ValueError(f"{page}: must have {begin!r} and, after it, {end!r}, each once")
    before, rest = whole.split(begin)
    Path(page).write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")
