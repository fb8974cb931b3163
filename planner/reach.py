"""Checks that a topology can carry a relation: one device per rank, and routes wherever rows must pass.

Only the method "direct" needs a link for each pair of ranks (`require_links`); for others a chain of links is enough.
Called by `planner/methods/registry`, `planner/methods/direct`, `planner/methods/spst` and `planner/bounds/best`. Free
to change while an error names the first pair that cannot be served, and a way out
(`tests/planner/methods/test_make_plan.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int64Array
from dgcl.planner.planning_errors import NoRouteError

if TYPE_CHECKING:
    from dgcl.topology import Topology


def require_same_size(world_size: int, topology: Topology) -> None:
    """Raise ValueError unless the topology has exactly one device per rank."""
    have = topology.num_devices
    if have == world_size:
        return
    way_out = (
        f"use topology.restrict({world_size}) for its first devices"
        if have > world_size
        else f"give a topology of {world_size} devices, or partition into {have} parts"
    )
    raise ValueError(
        f"topology {topology.name!r} has {have} device(s) but the relation has world_size {world_size}:"
        f" {way_out}"
    )


def require_links(need: Int64Array, topology: Topology) -> None:
    """Raise ValueError naming the first pair that needs rows and has no link.

    Args:
        need: (P, P) rows that must go from rank s (row) to rank d (column) directly.
        topology: the machine.
    """
    missing = np.argwhere((need > 0) & (topology.arrays().link_of < 0))
    if missing.size:
        s, d = (int(x) for x in missing[0])
        raise ValueError(
            f"peer-to-peer is not possible: {_pair(topology, s, d)} rows must pass but topology"
            f" {topology.name!r} has no such link ({_how_many(missing)}); methods 'auto' and 'spst' route around it,"
            " or add the link"
        )


def require_routes(need: Int64Array, topology: Topology) -> None:
    """Raise NoRouteError naming the first pair that needs rows and that no chain of links joins.

    Args:
        need: (P, P) rows that rank s (row) owns and rank d (column) needs.
        topology: the machine.
    """
    if not ((need > 0) & (topology.arrays().link_of < 0)).any():
        return  # the usual case: every pair that needs rows has a link
    reach = reachable(topology)
    missing = np.argwhere((need > 0) & ~reach)
    if missing.size:
        s, d = (int(x) for x in missing[0])
        island = np.flatnonzero(reach[s])
        names = ", ".join(topology.devices[r].name for r in island[:8]) + (", ..." if island.size > 8 else "")
        raise NoRouteError(
            f"{_pair(topology, s, d)} rows are needed but cannot get there, not even through relays"
            f" ({_how_many(missing)}): topology {topology.name!r} has no link from any of {{{names}}} to"
            f" {topology.devices[d].name} or to a device that reaches it; the missing link is"
            f" {topology.devices[s].name} -> {topology.devices[d].name} (or one that joins these parts)"
        )


def reachable(topology: Topology) -> BoolArray:
    """Return (P, P) booleans: a chain of links leads from row to column. Every rank reaches itself."""
    from scipy.sparse.csgraph import shortest_path

    steps: FloatArray = shortest_path(topology.arrays().link_of >= 0, unweighted=True)
    return np.isfinite(steps)


def _pair(topology: Topology, s: int, d: int) -> str:
    return f"rank {s} ({topology.devices[s].name}) -> rank {d} ({topology.devices[d].name}):"


def _how_many(missing: Int64Array) -> str:
    return "the only such pair" if len(missing) == 1 else f"one of {len(missing)} such pairs"
