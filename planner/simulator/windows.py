"""Windows of an aggregation, played: the next one travels while this one is summed.

Each rank does, in two buffers::

    start window 0; for q = 0, 1, ...: finish window q, start window q + 1, sum q

All messages of all windows are simulated together, so that a rank which is ahead shares connections with one that is
still in the window before. With b seconds for each window's exchange and s for its sums on every rank, this takes
``b + s + (W - 1) * max(b, s)``; one after the other they take ``W * (b + s)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgcl.planner.arrays import FloatArray, Int64Array
from dgcl.planner.plan import Plan
from dgcl.planner.simulator.machine import capacities, links_of, routes_of
from dgcl.planner.simulator.messages import messages, transfer_bytes

__all__ = ["WindowSimulation", "simulate_windows", "sums_by_rows"]


@dataclass(frozen=True, eq=False)
class WindowSimulation:
    """The outcome, by rank and window.

    Attributes:
        seconds: When the last sum is made.
        arrived: (P, W) seconds at which a rank has sent and received all rows of a window.
        summed: (P, W) seconds at which it has summed them.
    """

    seconds: float
    arrived: FloatArray
    summed: FloatArray


def sums_by_rows(plans: Sequence[Plan], seconds: float) -> FloatArray:
    """Return (P, W) the seconds that each rank sums in each window.

    Each rank sums for ``seconds``, divided over windows by the rows that it reads.
    """
    rows = np.stack([plan.relation.pair_rows().sum(axis=0) for plan in plans], axis=1).astype(np.float64)
    whole = rows.sum(axis=1, keepdims=True)
    return seconds * np.divide(rows, whole, out=np.zeros_like(rows), where=whole > 0)


def simulate_windows(
    plans: Sequence[Plan], sums: FloatArray, *, row_bytes: int | None = None
) -> WindowSimulation:
    """Simulate the messages and sums of an aggregation in windows.

    Args:
        plans: Of each window, for one machine (:func:`dgcl.planner.windows.window_plans`).
        sums: (P, W) seconds that each rank needs to sum each window's rows.
        row_bytes: Bytes of a row; None: the plans' own.

    Raises:
        ValueError: There is no plan, or ``sums`` has another shape or a negative entry.
    """
    from dgcl.planner.simulator.kernel import run

    if not plans:
        raise ValueError("plans must be of one window at least (got none)")
    num_ranks, num_windows = plans[0].world_size, len(plans)
    if sums.shape != (num_ranks, num_windows) or not (sums >= 0).all():
        raise ValueError(f"sums must be ({num_ranks}, {num_windows}) seconds (got shape {sums.shape})")
    machine = plans[0].topology
    width = plans[0].row_bytes if row_bytes is None else row_bytes
    found = [messages(plan.trees, num_ranks) for plan in plans]
    first = np.cumsum([0, *(each.num for each in found)])
    num = int(first[-1])
    ranks = np.arange(num_ranks)
    # Events that carry nothing: rank r has summed window q, and rank r may start window q.
    summed = num + ranks[:, None] * num_windows + np.arange(num_windows)
    start = summed + num_ranks * num_windows
    total = num + 2 * num_ranks * num_windows
    before: list[Int64Array] = []
    after: list[Int64Array] = []
    for q, each in enumerate(found):
        mine = first[q] + np.arange(each.num)
        before += [first[q] + each.before, start[each.src, q], start[each.dst, q]]
        after += [first[q] + each.after, mine, mine]
        ends = [(mine, each.src), (mine, each.dst), (start[:, q], ranks)]
        if q > 0:
            ends.append((summed[:, q - 1], ranks))
        for events, of_rank in ends:  # what a rank has done before it sums this window, and starts the next
            before.append(events)
            after.append(summed[of_rank, q])
            if q + 1 < num_windows:
                before.append(events)
                after.append(start[of_rank, q + 1])
    link = np.concatenate([links_of(each, machine) for each in found])
    ptr, hops = routes_of(machine, link)
    waits_of, waits_for = np.concatenate(after), np.concatenate(before)
    order = np.argsort(waits_for, kind="stable")
    nothing = np.zeros(total - num)
    latency = np.concatenate([machine.arrays().link_latency[link], nothing])
    latency[summed] = sums
    previous = [np.where(ahead >= 0, ahead + at, -1) for at, ahead in
                ((at, each.previous()) for at, each in zip(first, found, strict=False))]  # fmt: skip
    _, _, ended, _ = run(
        np.concatenate([*(transfer_bytes(each, width) for each in found), nothing]),
        latency,
        np.zeros(total),
        np.concatenate([ptr, np.full(total - num, ptr[-1])]),
        hops,
        capacities(machine, {}),
        np.bincount(waits_of, minlength=total),
        np.concatenate([[0], np.cumsum(np.bincount(waits_for, minlength=total))]),
        waits_of[order],
        np.concatenate([*previous, np.full(total - num, -1, np.int64)]),
        np.ones(total),
        np.concatenate([*(each.src for each in found), np.full(total - num, -1, np.int64)]),
        0,
        np.arange(total),
    )
    arrived = ended[start]
    for q, each in enumerate(found):
        for end in (each.src, each.dst):
            np.maximum.at(arrived[:, q], end, ended[first[q] : first[q + 1]])
    return WindowSimulation(float(ended[summed].max(initial=0.0)), arrived, ended[summed])
