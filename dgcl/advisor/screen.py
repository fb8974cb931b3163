"""What advice looks like: a screen of 110 columns, the working behind one row, and JSON with every number."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dgcl.advisor.memory import totals
from dgcl.advisor.rows import ERROR, Row, Weighed
from dgcl.planner.reading.render import seconds, size, table

__all__ = ["LEFT_OUT", "compared", "explained", "facts", "scaled", "screen"]

_WIDTH = 110
_TIMES = ("exchange", "sums", "dense", "copies")
LEFT_OUT = (
    "Left out: the loss, the optimiser's time, ranks that are late, overlap; memory of the allocator, of temporary"
    " results, of your own code."
)


def screen(advice: Weighed) -> str:
    """The whole answer: the machine and its rates, the model, a row for each way, the verdict."""
    limit, rows = advice.memory_limit, _shown(advice)
    counted = [row for row in advice.rows if row.layers]
    lines = [*_heading(advice), ""]
    planned = sum(row.planner == "auto" for row in counted)
    refused = sum(bool(row.refusal) for row in advice.rows)
    lines += textwrap.wrap(
        f"{len(counted)} strategies counted: {planned} planned by auto, {len(counted) - planned} by direct plans and"
        f" bounds; {refused} refused. Model error +-{ERROR:.0%} (docs/advise.md)",
        _WIDTH,
    )
    header = ["", "strategy", "epoch", "exchange", "sums", "dense", "device", "host"]
    fields = [_fields(row, rows[0], number, limit) for number, row in enumerate(rows)]
    text = table(header, fields, range(2)).splitlines()
    room = _WIDTH - max(map(len, text)) - 2
    lines += ["", text[0].ljust(_WIDTH - room) + "why, or why not"]
    body = text[len(text) - len(rows) :]
    for row, start in zip(rows, body, strict=True):
        paste = row.strategy.line.replace("widths", str(advice.candidates.model.widths)) if row.layers else ""
        why = textwrap.wrap(row.why, room) + ([f"-> {paste}"] if paste else [])
        for number, part in enumerate(why):
            column = min(_WIDTH - room, _WIDTH - len(part))
            lines.append(f"{'' if number else start:<{column}}{part}")
    hidden = len(advice.rows) - len(rows)
    if hidden:
        lines.append(f"   and {hidden} other grids, none of them better")
    verdict = advice.ways_out()
    if rows[0].state == "*":
        verdict = f"{rows[0].strategy} is chosen. {_alone(advice)}"
    for paragraph in (verdict, LEFT_OUT):
        lines += ["", *textwrap.wrap(paragraph, _WIDTH)]
    return "\n".join(lines)


def _heading(advice: Weighed) -> list[str]:
    candidates, limit = advice.candidates, advice.memory_limit
    graph, model = candidates.graph, candidates.model
    vertices = getattr(graph, "num_nodes", None) or getattr(graph, "num_vertices", 0)
    each = "" if limit is None else f", {size(limit)} each"
    sizes = "" if candidates.part is not None else ", sizes alone"
    optimizer = model.optimizer if model.training else "inference"
    return [
        f"Machine  {candidates.topology.name}, {candidates.world_size} ranks{each}; rates: {advice.rates.origin}",
        f"Model    {model.text}; {optimizer}, {model.dtype}; {vertices:,} vertices, {graph.num_edges:,} edges{sizes}",
    ]


def _shown(advice: Weighed) -> list[Row]:
    """All rows but grids behind the first that is listed."""
    grids = [row for row in advice.rows if row.strategy.name == "grid"]
    return [row for row in advice.rows if row.strategy.name != "grid" or row is grids[0]]


def _fields(row: Row, first: Row, number: int, limit: int | None) -> list[str]:
    """Absolute times for the two best, ratios for the others: these survive a wrong rate."""
    if not row.layers:
        return [row.state, row.strategy.spec, "refused", "", "", "", "", ""]
    mine = row.seconds
    device = size(row.device) + (f" ({row.device / limit:.0%})" if limit else "")
    host = size(row.host) if row.host else ""
    if row.refusal:
        return [row.state, row.strategy.spec, "too big", "", "", "", device, host]
    times = [seconds(getattr(mine, name)) for name in ("total", *_TIMES[:3])]
    if number > 1:
        times = [f"{mine.total / max(first.seconds.total, 1e-12):.2g}x", "", "", ""]
    return [row.state, row.strategy.spec, *times, device, host]


def _alone(advice: Weighed) -> str:
    alone, limit, ranks = advice.alone, advice.memory_limit, advice.candidates.world_size
    if ranks == 1:
        return "It is alone: nothing is exchanged."
    mine, theirs = alone.seconds.total, advice.rows[0].seconds.total
    if limit is not None and alone.device > limit:
        return f"1 rank would hold {size(alone.device)}, which is more than {size(limit)}."
    pays = f"{ranks} ranks pay" if mine > theirs * (1 + ERROR) else "1 rank suffices, take it"
    return f"1 rank would hold {size(alone.device)} and take {seconds(mine)}: {pays}."


def explained(advice: Weighed, row: Row) -> str:
    """The working behind a row: memory by name, time by layer, the resource that binds."""
    if row.counted is None:
        return f"{row.strategy} is refused: {row.why}"
    fullest = int(totals(row.bytes).argmax())
    memory = [[name, size(int(each[fullest])), size(float(each.mean()))] for name, each in row.bytes.items()]
    memory.append(["total", size(row.device), size(float(totals(row.bytes).mean()))])
    layers = [
        [str(number), str(layer.exchanged), *(seconds(getattr(each, name)) for name in _TIMES)]
        for number, (layer, each) in enumerate(zip(advice.candidates.model.layers, row.layers, strict=True))
    ]
    mine, counted = row.seconds, row.counted
    binds = max(_TIMES, key=lambda name: getattr(mine, name))
    edges = counted.edges
    return "\n".join(
        [
            *_heading(advice),
            f"{row.strategy}: {row.why}",
            f"an epoch takes {seconds(mine.total)} by {row.planner} plans, {seconds(row.bound)} by the best that there"
            f" could be; {binds} binds",
            f"an aggregation moves {counted.rows} rows{'' if counted.slices == 1 else f' of 1/{counted.slices} width'};"
            f" the fullest rank sums {edges.max()} edges, {edges.max() / max(edges.mean(), 1e-9):.2f} times the mean",
            "",
            table(["layer", "elements sent", *_TIMES], layers, range(1)),
            "",
            table([f"bytes of rank {fullest}, the fullest", "", "mean"], memory, range(1)),
            *([f"host memory of all ranks: {size(row.host)}"] if row.host else []),
            "",
            *textwrap.wrap(LEFT_OUT, _WIDTH),
        ]
    )


def compared(*rows: Row) -> str:
    """Why each is chosen or not, and side by side what is counted, part by part."""
    counted = [row for row in rows if row.counted is not None]
    lines = [f"{row.strategy}{' is chosen' * (row.state == '*')}: {row.why}" for row in rows]
    parts = [["epoch", *(seconds(row.seconds.total) for row in counted)]]
    parts += [[name, *(seconds(getattr(row.seconds, name)) for row in counted)] for name in _TIMES]
    parts.append(["rows sent", *(str(row.counted.rows) for row in counted if row.counted)])
    names = dict.fromkeys(name for row in counted for name in row.bytes)
    parts += [
        [name, *(size(int(row.bytes[name].max())) if name in row.bytes else "" for row in counted)]
        for name in names
    ]
    parts.append(["device", *(size(row.device) for row in counted)])
    return "\n".join([*lines, "", table(["", *(row.strategy.spec for row in counted)], parts, range(1))])


def scaled(several: Sequence[Weighed]) -> str:
    """A line for each number of ranks: epoch, efficiency, and where more bring nothing."""
    lines, shortest, last = [], float("inf"), 0
    for advice in several:
        ranks, first = advice.candidates.world_size, advice.rows[0]
        mine = first.seconds
        if first.state != "*":
            lines.append([str(ranks), "nothing fits", "", "", size(first.device) if first.bytes else ""])
            continue
        if mine.total < shortest * 0.95:
            shortest, last = mine.total, ranks
        efficiency = advice.alone.seconds.total / (ranks * mine.total)
        share = mine.exchange / max(mine.total, 1e-12)
        spent = f"{efficiency:.0%}, exchange {share:.0%}"
        lines.append([str(ranks), first.strategy.spec, seconds(mine.total), spent, size(first.device)])
    text = table(["ranks", "strategy", "epoch", "efficiency", "device"], lines, range(2))
    return (
        f"{text}\n\nno gain beyond {last} ranks"
        if last and last < several[-1].candidates.world_size
        else text
    )


def facts(advice: Weighed) -> dict[str, Any]:
    """Every number, as JSON values."""
    candidates = advice.candidates
    return {
        "topology": candidates.topology.name,
        "ranks": candidates.world_size,
        "model": candidates.model.text,
        "memory_limit": advice.memory_limit,
        "rates": asdict(advice.rates),
        "error": ERROR,
        "chosen": advice.rows[0].strategy.spec if advice.rows[0].state == "*" else None,
        "rows": [_row_facts(row) for row in advice.rows],
        "alone": _row_facts(advice.alone),
        "left_out": LEFT_OUT,
    }


def _row_facts(row: Row) -> dict[str, Any]:
    described = {"strategy": row.strategy.spec, "state": row.state, "why": row.why, "line": row.strategy.line}
    if row.counted is None:
        return {**described, "refused": True}
    counted, fullest = row.counted, totals(row.bytes)
    return {
        **described,
        "refused": bool(row.refusal),
        "seconds": {"epoch": row.seconds.total, **asdict(row.seconds)},
        "bound_seconds": row.bound,
        "planner": row.planner,
        "layers": [asdict(layer) for layer in row.layers],
        "rows": counted.rows,
        "slices": counted.slices,
        "edges": counted.edges.tolist(),
        "owned": counted.owned.tolist(),
        "device_bytes": {
            "total": fullest.tolist(),
            **{name: each.tolist() for name, each in row.bytes.items()},
        },
        "host_bytes": row.host,
    }
