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

from dgcl.bench.patterns import DTYPES
from dgcl.bench.records import Line, RankInfo, Settings, Timing

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


def header(settings: Settings) -> str:
    """What the columns mean, and the two lines over them."""
    left = f"#{'size':>10} {'count':>11} {'type':>8} {'width':>6}  {'method':<{_method_width(settings)}} "
    units = f"#{'(B)':>10} {'(elements)':>11} {'':>8} {'':>6}  {'':<{_method_width(settings)}} "
    left += f"{'verb':<8}" + "".join(f" {name:>9}" for name in ("time", "min", "p50", "p95", "max"))
    units += f"{'':<8}" + f" {'(us)':>9}" * 5
    for name, unit in (("kmsg/s", ""), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("own", "(B)")):
        left, units = f"{left} {name:>7}", f"{units} {unit:>7}"
    left, units = f"{left} {'%copy':>6} {'#wrong':>7}", f"{units} {'':>6} {'':>7}"
    legend = LEGEND
    if settings.show_bound:
        left, units, legend = f"{left} {'%bound':>7}", f"{units} {'':>7}", f"{legend}\n{BOUND_LEGEND}"
    return "\n".join([legend, "#", left, units.rstrip()])


def _method_width(settings: Settings) -> int:
    return max(8, *map(len, settings.methods))


def row(line: Line, settings: Settings) -> str:
    """Format a line for each verb, with its notes below."""
    count = line.size / DTYPES[line.dtype].itemsize
    kind = _NAMES.get(line.dtype, line.dtype)
    name = line.method.ljust(_method_width(settings))
    left = f"{round(line.size):>11} {round(count):>11} {kind:>8} {line.width:>6}  {name}"
    fraction = f"  # {line.fraction:g} of the vertices" if line.fraction < 1 else ""
    text = [
        f"{left} {verb:<8} {_verb(line, getattr(line, verb), settings.show_bound)}{fraction}"
        for verb in VERBS
    ]
    return "\n".join([*text, f"#   {line.method}: {line.note}"] if line.note else text)


def _verb(line: Line, timing: Timing, show_bound: bool) -> str:
    times = (timing.seconds, *(timing.percentile(percent) for percent in PERCENTILES.values()))
    text = " ".join(f"{time * 1e6:>9.2f}" for time in times)
    if not is_bandwidth(line, timing):
        rate = algbw = busbw = own = share = "-"
    else:
        per_second = line.message_rate(timing)
        rate = "-" if per_second is None else f"{per_second / 1e3:.1f}"
        algbw, busbw = (f"{value:.2f}" for value in (line.algbw(timing), line.busbw(timing)))
        own, share = short_size(line.own), f"{100 * timing.copy_seconds / timing.seconds:.1f}"
    text += f" {rate:>7} {algbw:>7} {busbw:>7} {own:>7} {share:>6} {timing.wrong:>7}"
    if show_bound:
        bound = line.bound_seconds
        text += f" {'-' if bound is None else f'{100 * bound / timing.seconds:.2f}':>7}"
    return text


def is_bandwidth(line: Line, timing: Timing) -> bool:
    """Whether a bandwidth means anything: rows were sent, and all have arrived as they should."""
    return line.method != "replication" and timing.wrong == 0


def short_size(num_bytes: float) -> str:
    """Four digits at most, and K, M or G for powers of 1024; whole multiples in their unit."""
    unit = 0
    while unit < 3 and (num_bytes >= 9999.5 or (num_bytes >= 1024 and num_bytes % 1024 == 0)):
        num_bytes, unit = num_bytes / 1024, unit + 1
    return f"{num_bytes:.0f}{' KMG'[unit].strip()}"


def histogram(line: Line) -> str:
    """How the times of calls are spread, for each verb: bins of equal width on a scale of logarithms."""
    text, num_bins = [], 10
    for verb in VERBS:
        times = np.array(getattr(line, verb).calls) * 1e6
        times = np.maximum(times, 1e-3)  # the clock's own step
        edges = np.geomspace(times.min(), max(times.max(), times.min() * 1.001), num_bins + 1)
        counts = np.bincount(
            np.clip(np.searchsorted(edges, times, "right") - 1, 0, num_bins - 1), minlength=num_bins
        )
        text.append(f"#   {line.method} {verb}: {len(times)} calls")
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            bar = "#" * -(-40 * int(count) // int(counts.max()))
            text.append(f"#   {low:>12.2f} to {high:>12.2f} us {count:>6} {bar}".rstrip())
    return "\n".join(text)


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
        sound = is_bandwidth(line, timing)
        value[verb] |= {name: timing.percentile(percent) for name, percent in PERCENTILES.items()}
        value[verb] |= {
            "algbw": line.algbw(timing) if sound else None,
            "busbw": line.busbw(timing) if sound else None,
            "message_rate": line.message_rate(timing) if sound else None,
        }
    return value
