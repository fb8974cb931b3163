"""Where the time of an exchange goes, and how much of it the machine's memory needs at least."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

import torch
from performance_terms import GRAPHS, VERBS, WIDTH, pick, table

import dgcl
from dgcl.bench.flags import Flags
from dgcl.bench.lanes import ExchangeLane
from dgcl.bench.problems import load_problem
from dgcl.bench.records import Line
from dgcl.bench.transports import Baseline, HaloCalls, Measured
from dgcl.ranks.context import context
from dgcl.topology import Topology
from dgcl.transport.shared_memory.tasks import CallRecord

PARTS = ("around the call", "sending", "copying own rows", "waiting", "adding")


class Traffic(NamedTuple):
    """Bytes of rows that programs and kernel read and write, all ranks together, in halo (H) and owned (O) bytes.

    Attributes:
        least: Each row read where it is and written where it must be, once.
        ours, kept, plain: What this library does, Gloo with kept buffers, and Gloo in plain torch. A socket is one
            copy into the kernel and one out of it.
    """

    least: int
    ours: int
    kept: int
    plain: int


def traffic(line: Line, halo_only: bool, verb: str) -> Traffic:
    """The bytes of one call.

    Forward: pack 2H, send 2H, receive 2H, against a gather of 2H. Backward: send 2H, receive 2H, add 3H (the arrived
    row, the owner's row, the sum), against a copy of 2H and the same addition; least, were peers' gradients in
    shared memory, the addition alone. [owned, halo] adds a copy of 2O; backward that copy is the addition's own
    pass. Plain torch makes the halo contiguous (2H), concatenates (2H), and clears the new pages that the kernel
    gives it for results (O + H, or O).
    """
    row = line.width * 4
    halo, owned = line.halo_rows * row, (line.local_rows - line.halo_rows) * row
    if verb == VERBS[0]:
        both = 0 if halo_only else 2 * owned
        return Traffic(2 * halo + both, 2 * halo + both, 6 * halo + both, 8 * halo + both + owned + halo)
    if halo_only:
        return Traffic(3 * halo, 5 * halo, 7 * halo, 7 * halo)
    both = 2 * owned
    return Traffic(halo + both, 3 * halo + both, 7 * halo + both, 9 * halo + both + owned)


def profile(path: Path, topology: Topology, samples: int) -> dict[str, dict[str, float]]:
    """For each exchange and verb the seconds that a rank spends in each of :data:`PARTS`: medians over samples of means
    over ranks. Collective."""
    control = context.require_control()
    problem = load_problem(path) if control.rank == 0 else None
    comm = dgcl.build_comm_info(problem and problem.graph, topology, part=problem and problem.part)
    flags = Flags(control, 300.0)
    exchanges: dict[str, Measured] = {"halo": HaloCalls(comm), "auto": Baseline(comm)}
    records: list[CallRecord] = []
    found: dict[str, list[list[float]]] = {}
    for name, exchange in exchanges.items():
        lane = ExchangeLane(comm, exchange, flags)
        lane.prepare(WIDTH, torch.float32, 1)
        for sample in range(samples + 2):
            for number, verb in enumerate(VERBS):
                records.clear()
                comm.transport.runtime.record_calls(records.append)
                times = lane.run(number, sample, 1)
                (record,) = records
                assert times.wrong == 0
                sent = float((record.sends[:, 1] - record.sends[:, 0]).sum())
                around = record.begin - times.begin + times.end - record.end
                inside = record.arrived - record.begin
                adding = record.end - record.arrived
                spent = [around, sent, record.copied, inside - sent - record.copied, adding]
                means = [
                    sum(column) / comm.world_size / 1e9
                    for column in zip(*control.exchange(spent), strict=True)
                ]
                if sample >= 2:
                    found.setdefault(f"{name} {verb}", []).append(means)
    comm.transport.runtime.record_calls(None)
    flags.close()
    comm.close()
    return {
        key: dict(zip(PARTS, map(statistics.median, zip(*samples, strict=True)), strict=True))
        for key, samples in found.items()
    }


def bound(line: Line, other: Line, halo_only: bool, verb: str) -> tuple[float, float]:
    """(seconds that our traffic takes at the rate of plain copies, how many times faster than ``other`` that is):
    medians over samples. A plain copy of n bytes is traffic of 2n."""
    ours = traffic(line, halo_only, verb).ours
    mine, theirs = getattr(line, verb), getattr(other, verb)
    least = [copy * ours / (2 * line.moved) for copy in mine.copy_samples]
    ratios = [slow / fast for slow, fast in zip(theirs.samples, least, strict=True)]
    return statistics.median(least), statistics.median(ratios)


def traffic_table(lines: list[Line]) -> list[str]:
    """Bytes of each side, and what the memory makes of them."""
    rows = []
    for name, title in GRAPHS.items():
        for ours, theirs, what in (("halo", "gloo-halo", "halo rows"), ("auto", "gloo", "[owned, halo]")):
            line, other = pick(lines, ours, name), pick(lines, theirs, name)
            for verb in VERBS:
                moved = traffic(line, ours == "halo", verb)
                least, most = bound(line, other, ours == "halo", verb)
                gloo = moved.kept if ours == "halo" else moved.plain
                taken = getattr(line, verb).median
                cells = (f"{size / 1e6:.0f} MB" for size in (moved.least, moved.ours, gloo))
                seconds = (f"{each * 1e6:,.0f}" for each in (least, taken))
                rows.append((title, what, verb, *cells, *seconds, f"{least / taken:.0%}", f"{most:.1f}x"))
    header = (
        "graph",
        "what",
        "verb",
        "least",
        "ours",
        "Gloo",
        "ours at the rate of copies (us)",
        "found (us)",
    )
    return table((*header, "reached", "faster than Gloo at that rate"), rows)


def profile_table(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What a rank does meanwhile."""
    rows = []
    for name, profiles in found.items():
        for key, parts in profiles.items():
            method, verb = key.split()
            cells = (f"{parts[part] * 1e6:,.0f}" for part in PARTS)
            rows.append((GRAPHS[name], f"`{method}`", verb, *cells))
    return table(("graph", "method", "verb", *(f"{part} (us)" for part in PARTS)), rows)


def why_missed(
    lines: list[Line], profiles: dict[str, dict[str, float]], name: str, ours: str, verb: str
) -> str:
    """What stands between an exchange and its goal, in words and numbers."""
    theirs = {"halo": "gloo-halo", "auto": "gloo"}[ours]
    line, other = pick(lines, ours, name), pick(lines, theirs, name)
    least, most = bound(line, other, ours == "halo", verb)
    moved, parts = traffic(line, ours == "halo", verb), profiles[f"{ours} {verb}"]
    busy = sum(seconds for part, seconds in parts.items() if part != "waiting")
    gloo = moved.kept if ours == "halo" else moved.plain
    return (
        f"It moves {moved.ours / 1e6:.0f} MB where Gloo moves {gloo / 1e6:.0f} MB; at the rate of plain copies in the"
        f" same samples that is {least * 1e6:,.0f} us, {most:.1f}x faster than Gloo. Of the"
        f" {getattr(line, verb).median * 1e6:,.0f} us found a rank works {busy * 1e6:,.0f}"
        f" ({parts['sending'] * 1e6:,.0f} sending, {(parts['copying own rows'] + parts['adding']) * 1e6:,.0f} copying"
        f" and adding its own rows, {parts['around the call'] * 1e6:,.0f} in Python around the call) and waits, for its"
        f" turn on a core or for rows, {parts['waiting'] * 1e6:,.0f}."
    )
