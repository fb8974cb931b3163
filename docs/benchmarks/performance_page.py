"""What performance.py writes into docs/performance.md: targets, tables, and where a target was missed, why."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from performance_profile import profile_table, traffic, traffic_table, why_missed
from performance_terms import GRAPHS, REPORTED, VERBS, WIDTH, pick, ratio, share, table

from dgcl.bench.records import Line
from dgcl.bench.report import fits
from dgcl.ranks.threads import available_cores


class Target(NamedTuple):
    """A promise, and what came of it."""

    what: str
    goal: str
    found: str
    met: bool
    why: str = ""


def figures(four: dict[str, Any], two: dict[str, Any], about: dict[str, Any]) -> str:
    """Everything between the markers, in Markdown."""
    machine = about["machine"]
    found = targets(four, two)
    promised = [target for target in found if target.goal != REPORTED]
    missed = [target for target in promised if not target.met]
    text = [
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB,"
        f" {machine['system']}; dgcl {about['dgcl']}, torch {about['torch']}. Load average when the run began:"
        f" {about['load']:.1f}; it took {about['seconds']:.0f} s. Rows are {WIDTH} float32 where nothing else is"
        " said; every element of every call was verified.",
        "",
        *table(
            ("target", "goal", "found", ""),
            [(t.what, t.goal, t.found, "" if t.goal == REPORTED else verdict(t)) for t in found],
        ),
        f"{len(promised) - len(missed)} of {len(promised)} met."
        + "".join(f"\n\n- {t.what}: {t.found} where the goal is {t.goal}. {t.why}".rstrip() for t in missed),
        "",
        "### Graphs, 4 ranks",
        "",
        *verbs_table(
            [
                (GRAPHS[name], line.method, line)
                for name in GRAPHS
                for line in four["graphs"]
                if line.name == name
            ],
            ("graph", "method"),
        ),
        "### Where the time goes",
        "",
        *traffic_table(four["graphs"]),
        *profile_table(four["profile"]),
        "### Folds",
        "",
        *verbs_table(
            [(GRAPHS[line.name], line.method, line) for line in four["folds"]], ("graph", "fold"), 1
        ),
        "### Sizes, all to all, 4 ranks",
        "",
        *verbs_table(
            [(f"{line.size / 2**20:.3g} MB", line.method, line) for line in four["large"]],
            ("per rank", "method"),
        ),
        "### Latency, one row of 1 KB per pair",
        "",
        *verbs_table(
            [(f"{n} ranks", line.method, line) for n, run in ((2, two), (4, four)) for line in run["small"]],
            ("", "method"),
        ),
        "### The model",
        "",
        *fraction_tables(four["fractions"]),
        "### The same rows again and again",
        "",
        *hot_table(four["hot"]),
        "### Overlap",
        "",
        *overlap_table(four["overlap"]),
        "### Memory",
        "",
        *memory_tables(four),
    ]
    return "\n".join(text).rstrip() + "\n"


def verdict(target: Target) -> str:
    """For the table."""
    return "met" if target.met else "**missed**"


def targets(four: dict[str, Any], two: dict[str, Any]) -> list[Target]:
    """All that was promised."""
    return [
        *graph_targets(four["graphs"], four["profile"]),
        *latency_targets(four, two),
        *size_targets(four["large"]),
        *memory_targets(four),
    ]


def graph_targets(lines: list[Line], profiles: dict[str, Any]) -> list[Target]:
    """Against gloo: the exchange alone, and with the owned rows that both copy into one tensor."""
    rows = []
    for name, title in GRAPHS.items():
        for ours, theirs, what, goal in (
            ("halo", "gloo-halo", "halo rows, {}: faster than gloo", ">= 3x"),
            ("halo", "gloo-halo-plain", "halo rows, {}: faster than gloo in plain torch", ">= 3x"),
            ("auto", "gloo", "[owned, halo] in one tensor, {}: faster than gloo", ">= 3x"),
            (
                "auto",
                "gloo-kept",
                "[owned, halo] in one tensor, {}: faster than gloo with our buffers",
                REPORTED,
            ),
        ):
            for verb in VERBS:
                slow, fast = (getattr(pick(lines, method, name), verb) for method in (theirs, ours))
                times = ratio(slow, fast)
                why = why_missed(lines, profiles[name], name, ours, verb)
                rows.append(Target(f"{title}, {what.format(verb)}", goal, f"{times:.1f}x", times >= 3, why))
    return rows


def latency_targets(four: dict[str, Any], two: dict[str, Any]) -> list[Target]:
    """One row of 1 KB per pair: against gloo, and what autograd and tensors add."""
    cores = available_cores()
    rows = []
    for run, ranks in ((four, 4), (two, 2)):
        executor, operator, gloo = (pick(run["small"], method) for method in ("executor", "operator", "gloo"))
        for verb in VERBS:
            times = ratio(getattr(gloo, verb), getattr(executor, verb))
            what = f"1 KB per pair, {ranks} ranks, {verb}: lower latency than gloo"
            taken = [getattr(line, verb).median * 1e6 for line in (executor, gloo)]
            why = (
                f"A call takes {taken[0]:.1f} us, Gloo's {taken[1]:.1f} us, most of which is waking threads."
            )
            why += f" {ranks} ranks take turns on {cores} cores." if ranks > cores else ""
            rows.append(Target(what, ">= 20x", f"{times:.1f}x", times >= 20, why))
        for verb in VERBS:
            samples = zip(getattr(executor, verb).samples, getattr(operator, verb).samples, strict=True)
            added = statistics.median(b - a for a, b in samples) * 1e6
            goal = "< 100 us" if ranks <= cores else REPORTED
            what = f"1 KB per pair, {ranks} ranks, {verb}: the differentiable operation adds"
            rows.append(Target(what, goal, f"{added:.1f} us", added < 100))
    return rows


def size_targets(lines: list[Line]) -> list[Target]:
    """The largest size against plain copies."""
    large = [line for line in lines if line.method == "auto"][-1]
    rows = []
    for verb in VERBS:
        part = share(getattr(large, verb))
        what = f"{large.size / 2**20:.0f} MB per rank, {verb}: of the bandwidth of plain copies"
        ours, copies = traffic(large, False, verb).ours, 2 * large.moved  # a copy reads and writes
        why = (
            f"It reads and writes {ours / 1e6:,.0f} MB where copies of as many bytes read and write"
            f" {copies / 1e6:,.0f} MB: at their rate {copies / ours:.0%} is the most that can be had."
        )
        rows.append(Target(what, ">= 80%", f"{part:.0%}", part >= 0.8, why))
    return rows


def memory_targets(four: dict[str, Any]) -> list[Target]:
    """Tables, buffers, growth."""
    ranks = [rank for run in four["memory"] for rank in run]
    tables = max(rank["tables"] / rank["peak"] for rank in ranks if not rank["constant"])
    off = max(abs(rank["pool"] / rank["predicted pool"] - 1) for rank in ranks)
    epochs = four["growth"][0]["epochs"]
    pool = max(rank["pool"] for rank in four["growth"])
    more = max(rank["resident"] for rank in four["growth"])
    return [
        Target("tables, of a training step's peak memory", "< 0.2%", f"{tables:.2%}", tables < 0.002),
        Target("buffers, off the prediction of comm.memory()", "< 2%", f"{off:.2%}", off < 0.02),
        Target(f"buffers grow from epoch 2 to {epochs}", "0 B", f"{pool} B", pool == 0),
        Target(
            f"the process grows from epoch {epochs // 2} to {epochs}",
            "< 1 MB",
            f"{more / 1e6:.2f} MB",
            more < 1e6,
        ),
    ]


def verbs_table(rows: list[tuple[str, str, Line]], header: tuple[str, str], first_verb: int = 0) -> list[str]:
    """Time, bandwidth and share of copies for each verb from ``first_verb`` on."""
    verbs = VERBS[first_verb:]
    cells = []
    for what, method, line in rows:
        row = [what, f"`{method}`"]
        for timing in (getattr(line, verb) for verb in verbs):
            rate = line.moved / timing.median / 1e9
            row += [f"{timing.median * 1e6:,.1f}", f"{rate:.2f}", f"{share(timing):.0%}", str(timing.wrong)]
        cells.append(tuple(row))
    columns = [f"{verb} {unit}" for verb in verbs for unit in ("(us)", "GB/s", "of copies", "#wrong")]
    return table((*header, *columns), cells)


def fraction_tables(lines: list[Line]) -> list[str]:
    """Modelled and measured times, and the fitted lines."""
    rows = [
        (
            f"{line.fraction:g}",
            f"{line.model_seconds * 1e6:,.0f}" if line.model_seconds else "-",
            *(f"{getattr(line, verb).median * 1e6:,.0f}" for verb in VERBS),
        )
        for line in lines
    ]
    found = [
        f"- {verb}: {fit.intercept * 1e6:,.0f} us + {fit.slope:.2f} x modelled, R² {fit.r_squared:.4f}"
        for _, verb, fit in fits(lines)
    ]
    return [*table(("vertices", "modelled (us)", "forward (us)", "backward (us)"), rows), *found, ""]


def hot_table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Halo rows that are in the caches as far as they fit, against Gloo."""
    rows = []
    for name, samples in found.items():
        for verb in VERBS:
            ours, theirs = samples[f"halo {verb}"], samples[f"gloo-halo {verb}"]
            times = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            cells = (f"{statistics.median(each) * 1e6:,.0f}" for each in (ours, theirs))
            rows.append((GRAPHS[name], verb, *cells, f"{times:.1f}x"))
    return table(("graph", "verb", "`halo` (us)", "`gloo-halo` (us)", "faster than gloo"), rows)


def overlap_table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Each way's time, and the first way's over it."""
    rows = []
    for name, ways in found.items():
        first = next(iter(ways.values()))
        for way, samples in ways.items():
            times = statistics.median(a / b for a, b in zip(first, samples, strict=True))
            rows.append((GRAPHS[name], way, f"{statistics.median(samples) * 1e3:.1f}", f"{times:.2f}x"))
    return table(("graph", "way", "sum and backward (ms)", "speed"), rows)


def memory_tables(four: dict[str, Any]) -> list[str]:
    """What training holds, and whether it grows."""
    rows = [
        (
            GRAPHS[rank["graph"]],
            "once" if rank["constant"] else "each step",
            str(rank["rank"]),
            *(f"{rank[key] / 1e6:.2f} MB" for key in ("tables", "peak", "pool", "predicted pool")),
        )
        for run in four["memory"]
        for rank in run
    ]
    return table(("graph", "inputs exchanged", "rank", "tables", "peak", "buffers", "predicted"), rows)
