"""Chooses a strategy: of those that fit in memory and are about equally fast, the simplest.

Candidates come in the order of their simplicity (``counts.Candidates.names``). "As fast" is within ``epoch.ERROR`` of
the fastest predicted epoch. At most the four most promising are planned by "auto", with all that exchange the same
rows; the others have the time of a direct plan, and a bound that no plan beats.
Called by `auto_strategy` and `choice`. Free to change while this rule, the memory limit and the reason of each row hold
(`tests/dgcl/advisor/test_choice.py`).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from dgcl.advisor.advice import Advice
from dgcl.advisor.advice_row import Row
from dgcl.advisor.counts import Candidates, Counted, Refused
from dgcl.advisor.device_rates import Rates
from dgcl.advisor.epoch import ERROR, TIMES, bounded, direct, epoch_layers, planned, total
from dgcl.advisor.model_costs import Model
from dgcl.advisor.rank_bytes import device_bytes, host_total
from dgcl.advisor.spelling import Description
from dgcl.graph import Graph
from dgcl.offload.chunks import MOST_CHUNKS
from dgcl.offload.offload_prediction import smallest_fitting
from dgcl.planner.reading.render import ratio, size
from dgcl.planner.reading.render import seconds as in_seconds
from dgcl.planner.relation import Relation

_CUT = 10**7, 128  # edges and chunks, at most, where chunks are cut


def weigh(candidates: Candidates, limit: int | None, rates: Rates) -> Advice:
    """Count all, plan the best, and choose."""
    model, counts, rows = candidates.model, dict[Row, Counted](), list[Row]()
    for strategy in candidates.names():
        try:
            counted = _in_memory(
                candidates, candidates.count(strategy), limit, all(row.refused for row in rows)
            )
        except Refused as refusal:
            rows.append(Row(strategy, refused=True, why=str(refusal)))
            continue
        row = _row(counted, model, rates)
        if limit is not None and row.device > limit:
            most, name = max((max(each), name) for name, each in row.device_bytes.items())
            row.refused = True
            row.why = f"{size(row.device)} on the fullest rank, of {size(limit)}; {name} {size(most)}"
        rows.append(row)
        counts[row] = counted
    fitting = [row for row in rows if not row.refused]
    way = planned(model.row_bytes)
    shared = set()  # what is planned for one serves all that exchange the same rows
    for row in _worth_planning(fitting):
        shared.add(counts[row].exchanges)
        for other in fitting:
            if counts[other].exchanges in shared:
                other.layers, other.planner = epoch_layers(counts[other], model, rates, way), "auto"
    if fitting:
        fastest = min(fitting, key=_total)
        equal = [row for row in fitting if _total(row) <= _total(fastest) * (1 + ERROR)]
        chosen = equal[0]  # candidates stand in the order of their simplicity
        for row in fitting:
            row.state = "*" if row is chosen else "=" if row in equal else ""
            row.why = _reason(row, chosen, fastest)
            if counts[row].excess:
                row.why += (
                    f"; at most {counts[row].excess} rows more than a minimum cover, whose search ended early"
                )
    rows.sort(key=lambda row: (row.state != "*", row.refused, 0.0 if row.refused else _total(row)))
    halo = candidates.halo
    alone = replace(
        halo, topology=halo.topology.restrict(1), expand=Relation.from_classes(1, []),
        owned=halo.owned.sum(keepdims=True), edges=halo.edges.sum(keepdims=True),
    )  # fmt: skip
    return Advice(candidates, rates, limit, rows, _row(alone, model, rates))


def _row(counted: Counted, model: Model, rates: Rates) -> Row:
    layers, least = (epoch_layers(counted, model, rates, way) for way in (direct, bounded))
    return Row(
        counted.strategy, counted.strategy.line.replace("widths", str(model.widths)),
        rows=counted.rows, slices=counted.slices, owned=counted.owned.tolist(), edges=counted.edges.tolist(),
        layers=layers, bound_seconds=total(least).total,
        device_bytes={name: each.tolist() for name, each in device_bytes(counted, model).items()},
        host_bytes=host_total(counted, model),
    )  # fmt: skip


def _in_memory(candidates: Candidates, counted: Counted, limit: int | None, is_chosen: bool) -> Counted:
    """Offloading in the fewest chunks that take no more than whole rows; others as they are.

    Chunks are cut where nothing else fits, unless they or edges are many: that takes METIS for each try.
    """
    if counted.strategy.name != "offload":
        return counted
    model, graph, part = candidates.model, candidates.graph, candidates.part

    @cache
    def chunked(chunks: int) -> Counted:
        estimated = candidates.count(Description("offload", chunks))
        few = graph.num_edges <= _CUT[0] and chunks <= _CUT[1]
        if is_chosen and few and part is not None and isinstance(graph, Graph):
            # with torch, which sizes alone do not need
            from dgcl.offload.arranging import rehearsed

            return replace(estimated, chunks=rehearsed(graph, part, candidates.world_size, chunks))
        return estimated

    def peak(counted: Counted) -> int:
        return int(np.sum([*device_bytes(counted, model).values()], 0).max())

    whole = peak(candidates.halo)
    chunks, _ = smallest_fitting(
        lambda chunks: peak(chunked(chunks)), min(limit or whole, whole), MOST_CHUNKS
    )
    return chunked(chunks)


def _total(row: Row) -> float:
    return row.seconds.total


def _worth_planning(fitting: list[Row]) -> Iterator[Row]:
    """The two best by direct plans, then the two others that could still be faster than they, by their bounds."""
    yield from sorted(fitting, key=_total)[:2]
    for row in sorted(fitting, key=lambda row: (row.planner == "auto", row.bound_seconds))[:2]:
        if row.planner == "direct" and row.bound_seconds < min(map(_total, fitting)):
            yield row


def _reason(row: Row, chosen: Row, fastest: Row) -> str:
    """Why a row is chosen, or is not: one number, and what binds."""
    if row is chosen:
        return "the fastest" if row is fastest else "within the model's error of the fastest, and simpler"
    if row.state == "=":
        return f"as fast, within the model's error; {chosen.strategy} is simpler"
    mine, theirs = row.seconds, chosen.seconds
    if row.planner == "direct" and mine.exchange:
        return f"not planned: the time is of a direct plan; no plan takes less than {in_seconds(row.bound_seconds)}"
    binds = max(TIMES, key=lambda name: getattr(mine, name) - getattr(theirs, name))
    if binds == "copies":
        return (
            f"{in_seconds(mine.copies)} of copies between host and device, not needed:"
            f" {size(chosen.device)} fit"
        )
    if binds != "exchange":
        times = ratio(getattr(mine, binds), getattr(theirs, binds))
        what = "sums bind" if binds == "sums" else "dense work binds"
        return f"{what}: {times} the work of the fullest rank"
    times = ratio(row.rows / row.slices, max(chosen.rows / chosen.slices, 1))
    return f"the exchange binds: {in_seconds(mine.exchange)} with {times} the rows"
