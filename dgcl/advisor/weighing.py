"""Counts all candidates, plans the best, and chooses the simplest of those that fit and are as fast as the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dgcl.advisor.counts import Candidates, Counted, Refused
from dgcl.advisor.epoch import bounded, direct, epoch_layers, planned, total
from dgcl.advisor.memory import MOST_CHUNKS, device_bytes, host_total, totals
from dgcl.advisor.rates import Rates
from dgcl.advisor.rows import ERROR, Row, Weighed
from dgcl.advisor.spelling import Description
from dgcl.offload.prediction import smallest_fitting
from dgcl.planner.reading.render import seconds as in_seconds
from dgcl.planner.reading.render import size
from dgcl.planner.relation import Relation

__all__ = ["weigh"]

_PLANNED = 2  # by "auto"; the rest have direct plans and bounds


def weigh(candidates: Candidates, limit: int | None, rates: Rates) -> Weighed:
    """Count all, plan the two best, and choose."""
    model = candidates.model
    rows = [_row(candidates, strategy, limit, rates) for strategy in candidates.names()]
    for row in rows:
        if row.counted is not None and limit is not None and row.device > limit:
            largest = max(row.bytes, key=lambda name: int(row.bytes[name].max()))
            most = size(int(row.bytes[largest].max()))
            row.refusal = f"{size(row.device)} on the fullest rank, of {size(limit)}; {largest} {most}"
    fitting = [row for row in rows if not row.refusal]
    way = planned(model.row_bytes)
    shared = set()  # what is planned for one serves all that exchange the same rows
    for row in () if candidates.part is None else _worth_planning(fitting):  # sizes alone are no plan's worth
        assert row.counted is not None
        shared.add((id(row.counted.expand), id(row.counted.fold)))
        for other in fitting:
            if other.counted and (id(other.counted.expand), id(other.counted.fold)) in shared:
                other.layers, other.planner = epoch_layers(other.counted, model, rates, way), "auto"
    if fitting:
        fastest = min(fitting, key=_total)
        equal = [row for row in fitting if _total(row) <= _total(fastest) * (1 + ERROR)]
        chosen = equal[0]  # candidates stand in the order of their simplicity
        for row in fitting:
            row.state = "*" if row is chosen else "=" if row in equal else ""
            row.why = _reason(row, chosen, fastest, len(fitting), candidates)
    for row in rows:
        row.why = row.why or row.refusal
    rows.sort(key=lambda row: (row.state != "*", bool(row.refusal), 0.0 if row.refusal else _total(row)))
    return Weighed(candidates, rates, limit, rows, _alone(candidates, rates))


def _row(candidates: Candidates, strategy: Description, limit: int | None, rates: Rates) -> Row:
    model = candidates.model
    try:
        counted = candidates.count(strategy)
    except Refused as refusal:
        return Row(strategy, str(refusal))
    if strategy.name == "offload":  # in the fewest chunks that take no more than whole rows
        whole = int(totals(device_bytes(candidates.halo, model)).max())

        def peak(chunks: int) -> int:
            return int(totals(device_bytes(_in_chunks(counted, chunks), model)).max())

        chunks, _ = smallest_fitting(peak, min(limit or whole, whole), MOST_CHUNKS)
        counted = _in_chunks(counted, chunks or MOST_CHUNKS)
    layers, least = (epoch_layers(counted, model, rates, way) for way in (direct, bounded))
    return Row(
        counted.strategy, "", counted, layers, total(least).total,
        bytes=device_bytes(counted, model), host=host_total(counted, model),
    )  # fmt: skip


def _in_chunks(counted: Counted, chunks: int) -> Counted:
    return replace(counted, strategy=Description("offload", chunks))


def _total(row: Row) -> float:
    return row.seconds.total


def _worth_planning(fitting: list[Row]) -> Iterator[Row]:
    """The two best by direct plans, then what could still be faster than they, by its bound."""
    yield from sorted(fitting, key=_total)[:_PLANNED]
    for row in sorted(fitting, key=lambda row: row.bound)[:_PLANNED]:
        if row.planner == "direct" and row.bound < min(map(_total, fitting)):
            yield row


def _reason(row: Row, chosen: Row, fastest: Row, fitting: int, candidates: Candidates) -> str:
    """Why a row is chosen, or is not: one number, and what binds."""
    if row is chosen:
        if fitting == 1:
            return "the only one that fits"
        return "the fastest" if row is fastest else "within the model's error of the fastest, and simpler"
    if row.state == "=":
        return f"as fast, within the model's error; {chosen.strategy} is simpler"
    assert row.counted is not None
    assert chosen.counted is not None
    mine, theirs = row.seconds, chosen.seconds
    excess = {
        name: getattr(mine, name) - getattr(theirs, name) for name in ("exchange", "sums", "dense", "copies")
    }
    binds = max(excess, key=lambda name: excess[name])
    if binds == "copies":
        need = f", not needed: {size(chosen.device)} fit" if chosen.strategy.name != "offload" else ""
        return f"{in_seconds(mine.copies)} of copies between host and device{need}"
    if binds != "exchange":
        times = getattr(mine, binds) / max(getattr(theirs, binds), 1e-12)
        what = "sums bind" if binds == "sums" else "dense work binds"
        return f"{what}: {times:.2g}x the work of the fullest rank"
    times = row.counted.rows / row.counted.slices / max(chosen.counted.rows / chosen.counted.slices, 1)
    if times > 1:
        return f"the exchange binds: it moves {times:.2g}x the rows"
    return f"the exchange binds: {in_seconds(mine.exchange)} with {times:.2g}x the rows"


def _alone(candidates: Candidates, rates: Rates) -> Row:
    """One rank with the whole graph."""
    halo = candidates.halo
    nothing = Relation.from_classes(1, [])
    counted = replace(
        halo, topology=halo.topology.restrict(1), expand=nothing, owned=halo.owned.sum(keepdims=True),
        edges=halo.edges.sum(keepdims=True),
    )  # fmt: skip
    layers = epoch_layers(counted, candidates.model, rates, direct)
    return Row(
        halo.strategy, "", counted, layers, total(layers).total, bytes=device_bytes(counted, candidates.model)
    )
