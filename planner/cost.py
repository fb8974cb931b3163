"""Predicts the seconds of a plan by the model of docs/plan-format.md ("Meta").

load(k, c) is the bytes that cross connection-direction c (a connection, one way) in stage k. A stage lasts as long as
its slowest link: the latency of its route plus the largest load / bandwidth along it. A plan lasts as long as its
stages together. This is section 5.1 of the DGCL paper, with latency and routes that share connections. Left out: ranks
ahead of a stage (``simulator/`` has these), copies inside a device, contention among one sender's messages.
Called by `fold`, `planner/methods/registry`, `planner/verify/check_plan`, `planner/reading/plan_report`,
`dgcl/advisor/epoch` and others. Free to change while seconds equal those worked out by hand, and those of that text
computed in fractions (`tests/planner/test_plan_cost.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees, tree_chunks

if TYPE_CHECKING:
    from dgcl.planner.plan import Plan
    from dgcl.topology import Topology, TopologyArrays

# Ranks run ahead of a stage because the runtime has no barriers.

GIGA = 1e9  # bandwidths are in GB/s, 1 GB = 1e9 bytes


def link_rows(trees: Trees, arrays: TopologyArrays) -> FloatArray:
    """Return the rows over each link in each stage, (num_stages, num_links) float64, exact below 2**53.

    Raises:
        ValueError: A tree edge uses a pair of ranks without a link.
    """
    num_links, num_stages = arrays.link_src.shape[0], trees.num_stages
    rows = np.zeros(num_stages * num_links)
    for first, last in tree_chunks(trees):
        edges = slice(int(trees.edge_ptr[first]), int(trees.edge_ptr[last]))
        link = arrays.link_of[trees.edge_src[edges], trees.edge_dst[edges]]
        if link.size and link.min() < 0:
            edge = edges.start + int(np.argmin(link))
            raise ValueError(
                f"edge {edge} goes from rank {trees.edge_src[edge]} to rank {trees.edge_dst[edge]},"
                " but the topology has no such link"
            )
        slot = trees.edge_stage[edges].astype(np.int64) * num_links + link
        count = trees.tree_count[first:last].astype(np.float64)
        count = np.repeat(count, np.diff(trees.edge_ptr[first : last + 1]))
        np.add.at(rows, slot, count)  # bincount would go through all links for each chunk
    return rows.reshape(num_stages, num_links)


def direction_loads(rows: FloatArray, arrays: TopologyArrays, row_bytes: int) -> FloatArray:
    """Return the bytes over each connection-direction, (num_stages, num_directions), from :func:`link_rows`."""
    num_stages, num_directions = rows.shape[0], arrays.bandwidth.shape[0]
    link_of_hop = arrays.link_of_hop
    loads = np.empty((num_stages, num_directions))
    for k in range(num_stages):
        hops = rows[k, link_of_hop]
        loads[k] = np.bincount(arrays.link_directions, weights=hops, minlength=num_directions)
    return loads * float(row_bytes)


def link_seconds(rows: FloatArray, arrays: TopologyArrays, row_bytes: int) -> FloatArray:
    """Return the seconds of each link in each stage, (num_stages, num_links); 0 where it carries nothing."""
    if rows.shape[1] == 0:
        return np.zeros_like(rows)
    busy = direction_loads(rows, arrays, row_bytes) / (arrays.bandwidth * GIGA)
    seconds = np.empty_like(rows)
    for k in range(rows.shape[0]):  # the hops of all links are many
        slowest = np.maximum.reduceat(busy[k, arrays.link_directions], arrays.link_ptr[:-1])
        seconds[k] = np.where(rows[k] > 0, arrays.link_latency + slowest, 0.0)
    return seconds


def stage_use(plan: Plan) -> FloatArray:
    """Return how many seconds each connection-direction is in use in each stage, (num_stages, num_directions)."""
    arrays = plan.topology.arrays()
    rows = link_rows(plan.trees, arrays)
    return direction_loads(rows, arrays, plan.row_bytes) / (arrays.bandwidth * GIGA)


def stage_seconds(trees: Trees, arrays: TopologyArrays, row_bytes: int) -> FloatArray:
    """Return the seconds of each stage, (num_stages,) float64."""
    seconds = link_seconds(link_rows(trees, arrays), arrays, row_bytes)
    slowest: FloatArray = seconds.max(axis=1, initial=0.0)
    return slowest


def predicted_seconds(trees: Trees, arrays: TopologyArrays, row_bytes: int) -> float:
    """Return the seconds of the whole plan: the sum over its stages."""
    return float(sum(stage_seconds(trees, arrays, row_bytes).tolist()))


def direct_seconds(relation: Relation, topology: Topology, row_bytes: int) -> float | None:
    """Return the seconds of peer-to-peer in one stage, or None if a pair that needs rows has no link."""
    arrays = topology.arrays()
    need = relation.pair_rows()
    if (need[arrays.link_of < 0] > 0).any():
        return None
    rows = need[arrays.link_src, arrays.link_dst].astype(np.float64)[None, :]
    return float(link_seconds(rows, arrays, row_bytes).max(initial=0.0))
