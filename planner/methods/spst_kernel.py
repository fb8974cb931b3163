"""Compiled inner loop of SPST (shortest-path spanning trees): grows each tree at the costs that earlier ones leave.

It allocates nothing: arrays of results and scratch are arguments (`grow_trees`). Imported on first use.
Called by `spst`. Free to change while each destination is joined by the path that slows the plan least; ties go to
less time of the path's own, then to fewer edges (`tests/planner/methods/test_spst.py`).
"""

from typing import Any

import numpy as np

from dgcl.planner.planner_compiled import compiled


@compiled(allocates=False, entry=False)
def _added_seconds(
    link: int,
    stage: int,
    amount: float,
    stage_seconds: Any,
    busy: Any,
    inverse: Any,
    latency: Any,
    ptr: Any,
    hops: Any,
) -> Any:
    """Return (rise of the stage's time, the link's own time) if ``amount`` more bytes go over ``link`` in ``stage``."""
    slowest = 0.0
    alone = 0.0
    for h in range(ptr[link], ptr[link + 1]):
        c = hops[h]
        own = amount * inverse[c]
        slowest = max(slowest, busy[stage, c] + own)
        alone = max(alone, own)
    return max(0.0, latency[link] + slowest - stage_seconds[stage]), latency[link] + alone


@compiled(allocates=False, entry=False)
def _add_traffic(
    link: int,
    stage: int,
    amount: float,
    stage_seconds: Any,
    busy: Any,
    inverse: Any,
    latency: Any,
    ptr: Any,
    hops: Any,
) -> None:
    """Put ``amount`` bytes on ``link`` in ``stage``: updates ``busy`` and ``stage_seconds``."""
    slowest = 0.0
    for h in range(ptr[link], ptr[link + 1]):
        c = hops[h]
        busy[stage, c] += amount * inverse[c]
        slowest = max(slowest, busy[stage, c])
    stage_seconds[stage] = max(stage_seconds[stage], latency[link] + slowest)


@compiled(allocates=False)
def grow_trees(
    source: Any,
    dests: Any,
    amount: Any,
    link_of: Any,
    latency: Any,
    ptr: Any,
    hops: Any,
    inverse: Any,
    parent: Any,
    depths: Any,
    busy: Any,
    stage_seconds: Any,
    open_: Any,
    rise: Any,
    own: Any,
    before: Any,
) -> None:
    """Grow one shortest-path spanning tree per piece, each at the costs that the earlier ones leave.

    Args:
        source: (N,) int32, root of each piece.
        dests: (N, P) bool, its destinations.
        amount: (N,) float64, its bytes.
        link_of, latency, ptr, hops: link_of, link_latency, link_ptr and link_directions of TopologyArrays.
        inverse: (num_directions,) float64, seconds per byte.
        parent: (N, P) int32, output, -1 at first: the rank that each rank receives from; it stays for the root and for
            ranks outside the tree.
        depths: (N, P) int32, output, of the ranks of each tree; -1 for those outside.
        busy, stage_seconds: zeros at first: seconds of traffic, by stage and connection-direction, and of each stage.
        open_: (P,) bool, scratch.
        rise, own, before: (stages + 1, P), scratch. Labels of (depth, rank): how much slower the path there makes the
            plan, the path's own time, and the last rank on it.
    """
    num, world = dests.shape
    limit = busy.shape[0]
    for n in range(num):
        left, depth = 0, depths[n]
        for v in range(world):
            depth[v], open_[v] = -1, dests[n, v]
            left += dests[n, v]
        depth[source[n]] = 0
        while left:
            for k in range(limit + 1):
                for v in range(world):
                    rise[k, v], own[k, v] = np.inf, np.inf
            for v in range(world):
                if depth[v] >= 0:
                    rise[depth[v], v] = 0.0
                    own[depth[v], v] = 0.0
            best_rise, best_own, best_depth, best = np.inf, np.inf, -1, -1
            for k in range(limit):
                for u in range(world):
                    a, b = rise[k, u], own[k, u]
                    if a == np.inf or a > best_rise or (a == best_rise and b >= best_own):
                        continue
                    for v in range(world):
                        link = link_of[u, v]
                        if link < 0 or depth[v] >= 0:
                            continue
                        x, y = _added_seconds(
                            link, k, amount[n], stage_seconds, busy, inverse, latency, ptr, hops
                        )
                        x += a
                        y += b
                        if x > rise[k + 1, v] or (x == rise[k + 1, v] and y >= own[k + 1, v]):
                            continue
                        node, at, fresh = u, k, True  # the path to u must not pass v
                        while depth[node] < 0:
                            fresh = fresh and node != v
                            node, at = before[at, node], at - 1
                        if not fresh:
                            continue
                        rise[k + 1, v] = x
                        own[k + 1, v] = y
                        before[k + 1, v] = u
                        if open_[v] and (x < best_rise or (x == best_rise and y < best_own)):
                            best_rise, best_own, best_depth, best = x, y, k + 1, v
            node, at = best, best_depth
            while depth[node] < 0:
                sender = before[at, node]
                link = link_of[sender, node]
                _add_traffic(link, at - 1, amount[n], stage_seconds, busy, inverse, latency, ptr, hops)
                parent[n, node] = sender
                depth[node] = at
                if open_[node]:
                    open_[node] = False
                    left -= 1
                node, at = sender, at - 1
