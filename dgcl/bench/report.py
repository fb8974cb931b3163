"""Formats a measurement: lines and footer in the style of nccl-tests, JSON, and fitted lines.

docs/bench.md derives every number.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Line, RankInfo, Settings
from dgcl.bench.turns import Timing
from dgcl.topology.table import Column, Table

SCHEMA = "dgcl-bench/2"
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
# %bound: lower bound of any plan in the model of the topology, in percent of the time"""


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
    return Table(*columns, *[Column("%bound", ".2f", width=7)] * settings.show_bound)


def header(settings: Settings) -> str:
    """What the columns mean, and the two lines over them."""
    table = _table(settings)
    names = table.line([column.name for column in table.columns])
    units = table.line([f"({column.unit})" if column.unit else "" for column in table.columns])
    legend = f"{LEGEND}\n{BOUND_LEGEND}" if settings.show_bound else LEGEND
    return "\n".join([legend, "#", f"#{names[1:]}", f"#{units[1:]}".rstrip()])


def row(line: Line, settings: Settings) -> str:
    """Format a line for each verb, and with what fraction it sent."""
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
            bound = line.bound_seconds
            values.append(None if bound is None else 100 * bound / timing.seconds)
        fraction = f"  # {line.fraction:g} of the vertices" if line.fraction < 1 else ""
        text.append(table.line(table.cells(values)) + fraction)
    return "\n".join(text)


def short_size(num_bytes: float) -> str:
    """Four digits at most, and K, M or G for powers of 1024; whole multiples in their unit."""
    unit = 0
    while unit < 3 and (num_bytes >= 9999.5 or (num_bytes >= 1024 and num_bytes % 1024 == 0)):
        num_bytes, unit = num_bytes / 1024, unit + 1
    return f"{num_bytes:.0f}{' KMG'[unit].strip()}"


def footer(lines: Sequence[Line]) -> str:
    """The verdict, the averages, and for fractions the fitted lines."""
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
    text += [
        f"# Measured over modelled: {fit['method']} {fit['verb']}: {fit['intercept'] * 1e6:.1f} us +"
        f" {fit['slope']:.3f} x modelled, R^2 {fit['r_squared']:.4f} over {fit['points']} points"
        for fit in fits(lines)
    ]
    return "\n".join(text)


def total_wrong(lines: Sequence[Line]) -> int:
    """Count the wrong elements of the whole run."""
    return sum(line.forward.wrong + line.backward.wrong + line.copy.wrong for line in lines)


def fits(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Fit measured against modelled time for each planned method and verb (the paper's Figure 10).

    Needs a run over fractions. The fit uses the median of the samples, so that one outlier does not change it.
    """
    fitted = []
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method and line.model_seconds is not None]
        if len({line.fraction for line in mine}) < 3:
            continue
        modelled = np.array([line.model_seconds for line in mine])
        for verb in VERBS:
            line = fit_line(modelled, np.array([getattr(line, verb).median for line in mine]))
            fitted.append({"method": method, "verb": verb, **line, "points": len(mine)})
    return fitted


def fit_line(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The least-squares line through points that are not all at one x, and the share of the variance it explains."""
    slope, intercept = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - slope * x - intercept) ** 2).sum())
    share = 1 - left / spread if spread > 0 else 1.0
    return {"slope": float(slope), "intercept": float(intercept), "r_squared": share}


def to_json(
    lines: Sequence[Line], settings: Settings, ranks: Sequence[RankInfo], machine: dict[str, Any]
) -> dict[str, Any]:
    """The whole run as JSON values; times in seconds, bandwidths in GB/s (1e9 bytes)."""
    wrong = total_wrong(lines)
    options = dataclasses.asdict(settings) | {"topology": settings.topology.name}
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": options,
        "ranks": [dataclasses.asdict(rank) for rank in ranks],
        "lines": [_line_json(line) for line in lines],
        "wrong": wrong,
        "fits": fits(lines),
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
        value[verb] |= {
            "algbw": line.algbw(timing) if sound else None,
            "busbw": line.busbw(timing) if sound else None,
            "message_rate": line.message_rate(timing) if sound else None,
        }
    return value
