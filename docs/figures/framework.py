"""What the figures of all pages share: tables, graphs, candidates in turns, ranks as processes, the machine's name."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.bench.turns import Timing, in_turns
from dgcl.cli.info import describe_machine
from dgcl.graph import Graph, as_graph, read_graph
from dgcl.topology.table import Column, Table

HERE = Path(__file__).parent
LIMITS = {"error": 1e-4, "#wrong": 0.0, "loss differs by": 1e-4}
"""Columns that say whether results are right, and what they may hold at most."""


@dataclass(frozen=True)
class Figure:
    """A table of a page.

    Attributes:
        columns: The format of each column's values, by its heading; with braces a template.
        rows: Values; they may come one by one.
        before, after: Paragraphs around the table.
        small: Of a smaller table for the page, from a row's values: the name of its line, that of its column, and
            its text there. The JSON twin has all values.
    """

    columns: dict[str, str]
    rows: Iterable[Sequence[Any]]
    before: str = ""
    after: str = ""
    small: tuple[Callable[[dict[str, Any]], str], ...] | None = None

    def markdown(self, table: Table) -> str:
        """The table as the page has it."""
        if self.small is None:
            return table.markdown()
        line, column, text = self.small
        cells = {(line(row), column(row)): text(row) for row in table.json()}
        lines, columns = (list(dict.fromkeys(ends)) for ends in zip(*cells, strict=True))
        small = Table("", *columns)
        for name in lines:
            small.add(name, *(cells.get((name, each), "-") for each in columns))
        return small.markdown()

    def table(self) -> Table:
        """The table; rows are printed on stderr as they come.

        Raises:
            ValueError: A value is over the limit of its column: a result is wrong.
        """
        table = Table(
            *(Column(name, form.format if "{" in form else form) for name, form in self.columns.items())
        )
        for row in self.rows:
            table.add(*row)
            print(*table.cells(row), sep=" | ", file=sys.stderr, flush=True)
            for name, value in zip(self.columns, row, strict=True):
                if name in LIMITS and not value <= LIMITS[name]:
                    raise ValueError(f"{name} is {value:g}, and may be {LIMITS[name]:g} at most: {row}")
        return table


@dataclass(frozen=True)
class Run:
    """What a figure is made with.

    Attributes:
        graphs: Folder of graph files.
        quick: Show that it works, with the least that does.
        peers: Checkouts to compare with, by name.
    """

    graphs: Path
    quick: bool
    peers: dict[str, Path] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds in which candidates take turns."""
        return 1 if self.quick else 7

    def some(self, names: Sequence[Any]) -> Sequence[Any]:
        """All names, or the first alone."""
        return names[:1] if self.quick else names

    def path(self, name: str) -> Path:
        """The file of a graph; in a quick run of a small one."""
        return self.graphs / f"{'cora' if self.quick else name}.npz"

    def graph(self, name: str) -> Graph:
        """A graph as its file has it."""
        return read_graph(self.path(name)).graph


def both_ways(graph: Graph, loops: bool = True) -> Graph:
    """Every edge in both directions, once, and with ``loops`` a self loop at each vertex."""
    tails, heads = (ends.astype(np.int64) for ends in graph.edges())
    own, n = np.arange(graph.num_nodes * loops), graph.num_nodes
    keys = np.unique(np.concatenate([tails * n + heads, heads * n + tails, own * n + own]))
    return as_graph(np.stack([keys // n, keys % n]), n)


def communities(num_nodes: int, num_edges: int, size: int) -> Graph:
    """A drawn graph of which 80 % of the edges stay in communities of ``size`` vertices."""
    rng = np.random.default_rng(0)
    heads = rng.integers(0, num_nodes, num_edges)
    near = heads // size * size + rng.integers(0, size, num_edges)
    tails = np.where(rng.random(num_edges) < 0.8, near, rng.integers(0, num_nodes, num_edges))
    return as_graph(np.stack([tails, heads]), num_nodes=num_nodes)


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> Any:
    """Rank 0's result of a function that each of so many processes runs."""
    return dgcl.launch(function, ranks, *arguments, ranks="processes")[0]


def turns(comm: dgcl.Communicator, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """The times of candidates that take turns; each is called so often in a row that it takes 0.2 seconds."""
    return in_turns(calls, rounds, enough=0.2, control=comm.control)


def resident(field: str) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def machine() -> str:
    """Where and with what it was measured."""
    found = describe_machine()
    return (
        f"Measured on {found['cpu']}, {found['cores']} cores, {found['system']}; dgcl {dgcl.__version__}, torch"
        f" {torch.__version__}; load average {os.getloadavg()[0]:.1f} when it began."
    )


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


def write(name: str, page: str, mark: str, texts: list[str], tables: list[Table]) -> None:
    """Put tables into a page, and their values into the JSON file of the page's figures."""
    write_between(HERE.parent / page, mark, "\n\n".join(texts))
    path = HERE / f"{name}.json"
    twin = json.loads(path.read_text()) if path.exists() else {}
    twin[mark] = {"about": texts[0], "tables": [table.json() for table in tables]}
    path.write_text(json.dumps(twin, indent=1) + "\n", encoding="utf-8")
