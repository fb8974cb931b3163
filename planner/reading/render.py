"""Turns a plan's report into text of about one screen, and numbers into text with units.

`seconds`, `size` and `ratio` are for all texts of the library, so that units are the same everywhere (1 GB = 1e9
bytes).
Called by `page`, `dgcl/cli/plans`, `dgcl/cli/output`, `dgcl/advisor/advice`, `dgcl/offload/description` and others.
Free to change while a report fits on a screen, tables are aligned, and units fit their numbers
(`tests/planner/reading/test_report.py`).
"""

from collections.abc import Sequence
from typing import Any

from dgcl.topology.table import Column, Table


def render(facts: dict[str, Any]) -> str:
    """Return the report as text of about 40 lines, 100 columns at most where names are short."""
    lines = (f"{name.ljust(8)}  {text}" for name, text in head(facts).items())
    return "\n\n".join(["\n".join(lines), *(table.text() for table in tables(facts) if table.rows)])


def head(facts: dict[str, Any]) -> dict[str, str]:
    """Return the lines above the tables, by their names."""
    machine, relation, bound, fold = facts["machine"], facts["relation"], facts["bound"], facts["fold"]
    ends = "min_GBps", "max_GBps"
    wires = [
        f"{c['count']} {c['kind']} ({' to '.join(dict.fromkeys(f'{c[end]:g}' for end in ends))} GB/s)"
        for c in machine["connections"]
    ]
    place = "" if machine["machines"] == 1 else f" in {machine['machines']} machines"
    vertices = f"{relation['boundary_vertices']:,} boundary vertices in {relation['num_classes']:,} classes"
    rows = f"{relation['deliveries']:,} rows to deliver"
    each = f"{relation['average_destinations']:.2f} destinations each, {size(relation['bytes_needed'])}"
    return {
        "machine": f"{machine['name']}: {machine['devices']} devices{place}; {', '.join(wires)}",
        "relation": f"{vertices}; {rows} ({each})",
        "takes": _takes(facts["takes"]),
        "bound": f"{seconds(bound['seconds'])}, limited by: {bound['limited_by']}",
        "fold": _fold(fold),
    }


def _takes(takes: dict[str, Any]) -> str:
    model, bound = takes["model_seconds"], takes["bound_seconds"]
    predicted = f"{seconds(model)} by the model, at least {seconds(bound)} any plan"
    if takes["executed_seconds"] is None:
        return predicted
    over = f" ({takes['executed_seconds'] / bound:.3f} of it)" if bound > 0 else ""
    how = takes["executed"]
    one = ", one send at a time" if how["sends_at_once"] == 1 else ""
    return f"{seconds(takes['executed_seconds'])} as executed (order {how['order']}{one}); {predicted}{over}"


def _fold(fold: dict[str, Any]) -> str:
    if "impossible" in fold:
        return str(fold["impossible"])
    basis = (
        "" if fold["links_alike_both_ways"] else " by cuts and distance (some links differ on the way back)"
    )
    return f"{seconds(fold['seconds'])} back, bound {seconds(fold['bound_seconds'])}{basis}"


def tables(facts: dict[str, Any]) -> list[Table]:
    """Return the tables of methods, stages and kinds of connections."""
    methods = [
        m | {"method": f"{m['method']} ({m['made_by']})"}
        if m.get("made_by", m["method"]) != m["method"]
        else m
        for m in facts["methods"]
    ]
    return [
        Table(
            Column("method", left=True),
            Column("takes", seconds, key="predicted_seconds", none="impossible here"),
            Column("/ bound", ".3f", key="to_bound"),
            Column("stages", key="num_stages"),
            Column("sends", size, key="bytes_sent"),
            Column("/ needed", ".2f", key="sent_to_needed"),
            Column("planned in", seconds, key="planning_seconds"),
        ).fill(methods),
        Table(
            Column("stage", left=True),
            Column("takes", seconds, key="seconds"),
            Column("share", ".0%", key="share_of_plan"),
            Column("busiest connections", _busiest, key="busiest", left=True),
        ).fill(facts["stages"]),
        Table(
            Column("kind", left=True),
            Column("busiest", seconds, key="busiest_seconds"),
            Column("of plan", ".0%", key="share_of_plan"),
            Column("in use", ".0%", key="average_use"),
            Column("carries", size, key="bytes"),
        ).fill(facts["kinds"]),
    ]


def _busiest(busiest: Sequence[dict[str, Any]]) -> str:
    return "  ".join(f"{b['way']} {b['share_of_stage']:.0%}" for b in busiest)


def seconds(value: float) -> str:
    """Return a time with a fitting unit: ``1.234 ms``."""
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def size(value: float) -> str:
    """Return bytes with a fitting unit (1 GB = 1e9 bytes)."""
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def ratio(value: float, other: float) -> str:
    """Return how many times as much a value is as another: ``1.4x``."""
    times = value / max(other, 1e-12)
    return f"{times:.2g}x" if times < 10 else f"{times:.0f}x"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {units[-1][1]}" if units[-1][1] == "B" else "0 s"
    scale, unit = next(((s, u) for s, u in units if abs(value) >= s), units[-1])
    return f"{value / scale:.4g} {unit}"
