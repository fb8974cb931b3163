"""Runs of ``dgcl bench`` from their JSON: a picture of one, and two of them side by side."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgcl.bench.report import SCHEMA, VERBS
from dgcl.topology.plot import new_figure, save_figure
from dgcl.topology.table import Column, Table


def plot_run(run: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw time and bandwidth over size, a line for each method and verb; dotted is the roof of plain copies."""
    figure = new_figure(path, (10.0, 4.2))
    left, right = figure.subplots(1, 2)
    lines = sorted(run["lines"], key=lambda line: line["size"])
    for method in dict.fromkeys(line["method"] for line in lines):
        mine = [line for line in lines if line["method"] == method]
        sizes = [line["size"] for line in mine]
        for verb in VERBS:
            colour = None
            for key, style, name in (("seconds", "o-", f"{method} {verb}"), ("copy_seconds", ":", None)):
                times = [line[verb][key] for line in mine]
                rates = [line["busiest"] / time / 1e9 for line, time in zip(mine, times, strict=True)]
                colour = left.plot(sizes, times, style, label=name, color=colour)[0].get_color()
                right.plot(sizes, rates, style, color=colour)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="bytes a rank receives",
        ylabel="s; dotted: plain copies of as much",
    )
    right.set(
        xscale="log", xlabel="bytes a rank receives", ylabel="busbw, GB/s; dotted: plain copies of as much"
    )
    left.legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON of a run.

    Raises:
        ValueError: It is none.
    """
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise ValueError(f"must be what `dgcl bench --json-file` wrote, of schema {SCHEMA!r}")
    return run


def against(run: dict[str, Any], other: dict[str, Any]) -> Table:
    """Compare the lines that two runs have in common: medians of both, and the other's over this one's."""
    theirs = dict(_times(other))
    micro = [Column(name, lambda seconds: f"{1e6 * seconds:.2f}", "us") for name in ("this", "other")]
    columns = Column("size", ".0f", "B"), Column("method", left=True), Column("verb", left=True)
    table = Table(*columns, *micro, Column("other / this", ".3f"))
    for key, seconds in _times(run):
        if key in theirs:
            table.add(*key[:3], seconds, theirs[key], theirs[key] / seconds)
    return table


def _times(run: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], float]]:
    """The median of each line and verb, by what it is of."""
    for line in run["lines"]:
        for verb in VERBS:
            rest = (line[name] for name in ("name", "fraction", "dtype", "width"))
            yield (line["size"], line["method"], verb, *rest), line[verb]["median"]
