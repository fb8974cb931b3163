"""Formats a measurement: lines and footer in the style of nccl-tests, JSON, and fitted lines.

docs/bench.md derives every number.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.bench.records import Line, RankInfo, Settings, Timing

SCHEMA = "dgcl-bench/1"
_NAMES = {"float32": "float", "float64": "double", "float16": "half"}  # as nccl-tests calls them


def header(settings: Settings) -> str:
    """The three lines over the columns."""
    verb = f"{'time':>9} {'algbw':>7} {'busbw':>7} {'%copy':>6} {'#wrong':>7}"
    units = f"{'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6} {'':>7}"
    if settings.show_bound:
        verb, units = f"{verb} {'%bound':>7}", f"{units} {'':>7}"
    wide = _method_width(settings)
    left = f"#{'size':>11} {'count':>12} {'type':>9} {'width':>6}  {'method':<{wide}}"
    left_units = f"#{'(B)':>11} {'(elements)':>12} {'':>9} {'':>6}  {'':<{wide}}"
    titles = "".join(f"  {title:^{len(verb)}}" for title in ("forward", "backward"))
    lines = [f"#{'':{len(left) - 1}}{titles}", f"{left}  {verb}  {verb}", f"{left_units}  {units}  {units}"]
    return "\n".join(line.rstrip() for line in lines)


def _method_width(settings: Settings) -> int:
    return max(12, *map(len, settings.methods))


def row(line: Line, settings: Settings) -> str:
    """Format one line of the table, with its notes below."""
    count = line.halo_rows * line.width / settings.world_size
    kind = _NAMES.get(line.dtype, line.dtype)
    name = line.method.ljust(_method_width(settings))
    left = f"{round(line.size):>12} {round(count):>12} {kind:>9} {line.width:>6}  {name}"
    verbs = [_verb(line, timing, settings.show_bound) for timing in (line.forward, line.backward)]
    text = "  ".join([left, *verbs])
    if line.fraction < 1:
        text += f"  # {line.fraction:g} of the vertices"
    return f"{text}\n#   {line.method}: {line.note}" if line.note else text


def _verb(line: Line, timing: Timing, show_bound: bool) -> str:
    if line.method == "replication" or timing.wrong:  # nothing is sent; nothing that counts has arrived
        algbw = busbw = share = "-"
    else:
        algbw, busbw = (f"{value:.2f}" for value in (line.algbw(timing), line.busbw(timing)))
        share = f"{100 * timing.copy_seconds / timing.seconds:.1f}"
    text = f"{timing.seconds * 1e6:>9.2f} {algbw:>7} {busbw:>7} {share:>6} {timing.wrong:>7}"
    if show_bound:
        bound = line.bound_seconds
        text += f" {'-' if bound is None else f'{100 * bound / timing.seconds:.2f}':>7}"
    return text


def footer(lines: Sequence[Line]) -> str:
    """The verdict, the averages, and for fractions the fitted lines."""
    wrong = total_wrong(lines)
    verdict = "OK" if wrong == 0 else "FAILED"
    text = [f"# Out of bounds values : {wrong} {verdict}"]
    if wrong:
        return "\n".join([*text, "# Bandwidths of data that did not arrive mean nothing; none is averaged"])
    for method in dict.fromkeys(line.method for line in lines if line.method != "replication"):
        mine = [line for line in lines if line.method == method]
        each = [statistics.fmean(line.busbw(getattr(line, verb)) for line in mine) for verb in VERBS]
        both = f"(forward {each[0]:.3f}, backward {each[1]:.3f})"
        text.append(f"# Avg bus bandwidth    : {statistics.fmean(each):.3f} GB/s {method} {both}")
    for method, verb, fit in fits(lines):
        text.append(
            f"# Measured over modelled: {method} {verb}: {fit.intercept * 1e6:.1f} us +"
            f" {fit.slope:.3f} x modelled, R^2 {fit.r_squared:.4f} over {fit.points} points"
        )
    return "\n".join(text)


VERBS = ("forward", "backward")


def total_wrong(lines: Sequence[Line]) -> int:
    """Count the wrong elements of the whole run."""
    return sum(line.forward.wrong + line.backward.wrong for line in lines)


@dataclass(frozen=True)
class Fit:
    """A least-squares line through (modelled, measured) seconds.

    Attributes:
        slope, intercept: Of measured over modelled, in seconds.
        r_squared: The share of the variance that it explains.
        points: How many.
    """

    slope: float
    intercept: float
    r_squared: float
    points: int


def fits(lines: Sequence[Line]) -> list[tuple[str, str, Fit]]:
    """Fit measured against modelled time for each planned method and verb (the paper's Figure 10).

    Needs a run over fractions. The fit uses the median of the samples, so that one outlier does not change it.
    """
    found = []
    for method in dict.fromkeys(line.method for line in lines):
        mine = [line for line in lines if line.method == method and line.model_seconds is not None]
        if len({line.fraction for line in mine}) < 3:
            continue
        for verb in VERBS:
            modelled = np.array([line.model_seconds for line in mine])
            measured = np.array([getattr(line, verb).median for line in mine])
            found.append((method, verb, fit_line(modelled, measured)))
    return found


def fit_line(x: np.ndarray, y: np.ndarray) -> Fit:
    """The least-squares line through points that are not all at one x."""
    slope, intercept = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - slope * x - intercept) ** 2).sum())
    return Fit(float(slope), float(intercept), 1 - left / spread if spread > 0 else 1.0, len(x))


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
        "fits": [
            {"method": method, "verb": verb, **dataclasses.asdict(fit)} for method, verb, fit in fits(lines)
        ],
    }


def _line_json(line: Line) -> dict[str, Any]:
    value = dataclasses.asdict(line)
    for verb in VERBS:
        timing = getattr(line, verb)
        sound = timing.wrong == 0 and line.method != "replication"
        value[verb] |= {
            "algbw": line.algbw(timing) if sound else None,
            "busbw": line.busbw(timing) if sound else None,
        }
    return value
