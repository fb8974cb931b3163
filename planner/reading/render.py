"""A plan's report as text, about one screen."""

from collections.abc import Sequence
from typing import Any


def render(facts: dict[str, Any]) -> str:
    """Return the report as text of about 40 lines, 100 columns at most where names are short."""
    blocks = [
        _head(facts),
        _methods(facts["methods"]),
        _stages(facts["stages"]),
        _kinds(facts["kinds"]),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(facts: dict[str, Any]) -> str:
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
    lines = [
        f"machine   {machine['name']}: {machine['devices']} devices{place}; {', '.join(wires)}",
        f"relation  {vertices}; {rows} ({each})",
        f"takes     {_takes(facts['takes'])}",
        f"bound     {seconds(bound['seconds'])}, limited by: {bound['limited_by']}",
        f"fold      {_fold(fold)}",
    ]
    return "\n".join(lines)


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


def _methods(methods: Sequence[dict[str, Any]]) -> str:
    rows = []
    for m in methods:
        if "impossible" in m:
            rows.append([m["method"], "impossible here", "", "", "", "", ""])
            continue
        name = m["method"] if m["made_by"] == m["method"] else f"{m['method']} ({m['made_by']})"
        rows.append(
            [
                name,
                seconds(m["predicted_seconds"]),
                f"{m['to_bound']:.3f}",
                str(m["num_stages"]),
                size(m["bytes_sent"]),
                f"{m['sent_to_needed']:.2f}",
                seconds(m["planning_seconds"]),
            ]
        )
    return table(["method", "takes", "/ bound", "stages", "sends", "/ needed", "planned in"], rows)


def _stages(stages: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            str(s["stage"]),
            seconds(s["seconds"]),
            f"{s['share_of_plan']:.0%}",
            "  ".join(f"{b['way']} {b['share_of_stage']:.0%}" for b in s["busiest"]),
        ]
        for s in stages
    ]
    return table(["stage", "takes", "share", "busiest connections"], rows, flush_left=(0, 3)) if rows else ""


def _kinds(kinds: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            k["kind"],
            seconds(k["busiest_seconds"]),
            f"{k['share_of_plan']:.0%}",
            f"{k['average_use']:.0%}",
            size(k["bytes"]),
        ]
        for k in kinds
    ]
    return table(["kind", "busiest", "of plan", "in use", "carries"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], flush_left: Sequence[int] = (0,)) -> str:
    """Return aligned columns, those in `flush_left` to the left, the others to the right."""
    lines = [list(header), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in flush_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


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
