"""Makes a table once, and writes it as aligned text, as Markdown and as JSON.

>>> table = Table(Column("ranks"), Column("time", ".1f", "us"))
>>> table.add(2, 18.25)
>>> table.json(), table.markdown().splitlines()
([{'ranks': 2, 'time': 18.25}], ['| ranks | time (us) |', '| --- | --- |', '| 2 | 18.2 |'])

Called by `show`, `planner/reading/render`, `dgcl/bench/bench_report`, `dgcl/cli/topo`, `dgcl/cli/simulate` and others.
Free to change while text is aligned, and JSON has the values before rounding (`tests/topology/test_table.py`).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: Over it, and the key in JSON.
        form: How a value is written: a format specification, or a function.
        unit: Of what is written.
        left: Whether it is flush left.
        width: At least this many characters, for tables that are printed row by row.
        key: What a record (:meth:`Table.fill`) calls the value; default: the name.
        none: How None is written.
    """

    name: str
    form: str | Callable[[Any], str] = ""
    unit: str = ""
    left: bool = False
    width: int = 0
    key: str = ""
    none: str = "-"

    @property
    def title(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def cell(self, value: Any) -> str:
        """A value as it is written."""
        if value is None:
            return self.none
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

    def fill(self, records: Iterable[Mapping[str, Any]]) -> "Table":
        """Append a row for each record, and return the table; what a record has not is None."""
        for record in records:
            self.add(*(record.get(column.key or column.name) for column in self.columns))
        return self

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


def plural(count: int, noun: str) -> str:
    """Return so many of something in words: ``2 switches``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending if count != 1 else ''}"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> str:
    """Return rows of text under a header, the columns in ``left`` flush left, the others flush right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
