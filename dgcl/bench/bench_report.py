"""Formats the results of ``dgcl bench``: lines and a footer in the style of nccl-tests, JSON, and two runs compared.

docs/bench.md derives every number; the legend of the columns is `LEGEND` here. A verb with wrong elements gets no
bandwidth, and the run no average.

Called by `dgcl/cli/bench`. Free to change while columns and JSON have the numbers of docs/bench.md; a change of the
JSON's fields needs another ``SCHEMA``, since ``--against`` reads files of earlier runs
(`tests/dgcl/bench/test_report.py`).
"""

import dataclasses
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Line, RankInfo, Settings
from dgcl.bench.turns import Timing
from dgcl.topology.table import Column, Table

SCHEMA = "dgcl-bench/3"
VERBS = ("forward", "backward")
PERCENTILES = {"min": 0.0, "p50": 50.0, "p95": 95.0, "max": 100.0}  # of the times of calls
_NAMES = {"float32": "float", "float64": "double", "float16": "half"}  # as nccl-tests calls them


LEGEND = """\
# size:   bytes that a rank receives, on average over ranks; of alltoall and allgather with the rank's own block, as
#         in nccl-tests. time: mean of all calls; min, p50, p95, max: of single calls, each until the last rank is done
# kmsg/s: 1000 messages (stage, sender, receiver) of all ranks in a second
# algbw:  size / time. busbw: bytes that the busiest rank receives from others (backward: sends back) / time; in
#         alltoall and allgather of n ranks algbw x (n-1)/n, as in nccl-tests
# own:    bytes of its own rows that a rank copies into its result; they are in no bandwidth
# %copy:  time of plain copies of all that is written, own rows included, in percent of the time
# #wrong: elements that are not what they must be, over all calls and ranks"""
BOUND_LEGEND = """\
# %model: time that the model of the topology predicts, in percent of the time; %bound: its lower bound of any plan"""


def _table(settings: Settings) -> Table:
    """The columns of a line of one verb."""

    def microseconds(name: str) -> Column:
        return Column(name, lambda seconds: f"{1e6 * seconds:.2f}", "us", width=9)

    columns = [
        Column("size", unit="B", width=11),
        Column("count", unit="elements", width=11),
        Column("type", width=8),
        Column("width", width=6),
        Column("method", width=max(9, *map(len, settings.methods)), left=True),
        Column("verb", width=8, left=True),
        *map(microseconds, ("time", *PERCENTILES)),
        Column("kmsg/s", ".1f", width=7),
        Column("algbw", ".2f", "GB/s", width=7),
        Column("busbw", ".2f", "GB/s", width=7),
        Column("own", short_size, "B", width=7),
        Column("%copy", ".1f", width=6),
        Column("#wrong", width=7),
    ]
    return Table(
        *columns, *[Column(name, ".2f", width=7) for name in ("%model", "%bound") if settings.show_bound]
    )


def header(settings: Settings) -> str:
    """What the columns mean, and the two lines over them."""
    table = _table(settings)
    names = table.line([column.name for column in table.columns])
    units = table.line([f"({column.unit})" if column.unit else "" for column in table.columns])
    legend = f"{LEGEND}\n{BOUND_LEGEND}" if settings.show_bound else LEGEND
    return "\n".join([legend, "#", f"#{names[1:]}", f"#{units[1:]}".rstrip()])


def row(line: Line, settings: Settings) -> str:
    """Format a line for each verb."""
    table, text = _table(settings), []
    count, kind = line.size / DTYPES[line.dtype].itemsize, _NAMES.get(line.dtype, line.dtype)
    for verb in VERBS:
        timing: Timing = getattr(line, verb)
        values = [round(line.size), round(count), kind, line.width, line.method, verb, timing.seconds]
        values += [timing.percentile(percent) for percent in PERCENTILES.values()]
        rates = [line.message_rate(timing) / 1e3, line.algbw(timing), line.busbw(timing)]
        shares = [line.own, 100 * line.copy.seconds / timing.seconds]
        values += [*rates, *shares] if timing.wrong == 0 else [None] * 5
        values.append(timing.wrong)
        if settings.show_bound:
            priced = line.model_seconds, line.bound_seconds
            values += [None if each is None else 100 * each / timing.seconds for each in priced]
        text.append(table.line(table.cells(values)))
    return "\n".join(text)


def short_size(num_bytes: float) -> str:
    """Four digits at most, and K, M or G for powers of 1024; whole multiples in their unit."""
    unit = 0
    while unit < 3 and (num_bytes >= 9999.5 or (num_bytes >= 1024 and num_bytes % 1024 == 0)):
        num_bytes, unit = num_bytes / 1024, unit + 1
    return f"{num_bytes:.0f}{' KMG'[unit].strip()}"


def footer(lines: Sequence[Line]) -> str:
    """The verdict and the averages."""
    wrong = total_wrong(lines)
    verdict = "OK" if wrong == 0 else "FAILED"
    text = [f"# Out of bounds values : {wrong} {verdict}"]
    if wrong:
        return "\n".join([*text, "# Bandwidths of data that did not arrive mean nothing; none is averaged"])
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method]
        each = [statistics.fmean(line.busbw(getattr(line, verb)) for line in mine) for verb in VERBS]
        both = f"(forward {each[0]:.3f}, backward {each[1]:.3f})"
        text.append(f"# Avg bus bandwidth    : {statistics.fmean(each):.3f} GB/s {method} {both}")
    return "\n".join(text)


def total_wrong(lines: Sequence[Line]) -> int:
    """Count the wrong elements of the whole run."""
    return sum(line.forward.wrong + line.backward.wrong + line.copy.wrong for line in lines)


def to_json(
    lines: Sequence[Line], settings: Settings, ranks: Sequence[RankInfo], machine: dict[str, Any]
) -> dict[str, Any]:
    """The whole run as JSON values; times in seconds, bandwidths in GB/s (1e9 bytes)."""
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": dataclasses.asdict(settings) | {"topology": settings.topology.name},
        "ranks": [dataclasses.asdict(rank) for rank in ranks],
        "lines": [_line_json(line) for line in lines],
        "wrong": total_wrong(lines),
    }


def _line_json(line: Line) -> dict[str, Any]:
    value = dataclasses.asdict(line)
    del value["copy"]
    for verb in VERBS:
        timing: Timing = getattr(line, verb)
        sound = timing.wrong == 0
        value[verb] |= {name: getattr(timing, name) for name in ("seconds", "best", "median")}
        value[verb] |= {"copy_seconds": line.copy.seconds, "copy_samples": line.copy.samples}
        value[verb] |= {name: timing.percentile(percent) for name, percent in PERCENTILES.items()}
        rates = {"algbw": line.algbw, "busbw": line.busbw, "message_rate": line.message_rate}
        value[verb] |= {name: rate(timing) if sound else None for name, rate in rates.items()}
    return value


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
            rest = (line[name] for name in ("name", "dtype", "width"))
            yield (line["size"], line["method"], verb, *rest), line[verb]["median"]
