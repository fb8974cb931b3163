"""Gives the simulator a topology as arrays: each message's link, and capacities in bytes per second.

A connection-direction is a connection, one way. Of those that the same messages cross, the narrowest alone limits
them: `narrowest` leaves the others out, for planning machine by machine, too.
Called by `event_simulator` and `planner/methods/hierarchical`. Free to change while times on another machine, or with
slow devices, are those worked out by hand, and a missing link is named (`tests/planner/simulator/test_simulate.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array
from dgcl.planner.simulator.plan_messages import Messages

if TYPE_CHECKING:
    from dgcl.topology import Topology


def links_of(messages: Messages, machine: Topology) -> Int64Array:
    """Return the link of each message.

    Raises:
        ValueError: The machine has no link for one; names the pair.
    """
    link = machine.arrays().link_of[messages.src, messages.dst].astype(np.int64)
    missing = np.flatnonzero(link < 0)
    if missing.size:
        s, d = int(messages.src[missing[0]]), int(messages.dst[missing[0]])
        names = [machine.devices[r].name for r in (s, d)]
        raise ValueError(
            f"the plan sends from rank {s} ({names[0]}) to rank {d} ({names[1]}), but topology"
            f" {machine.name!r} has no such link: plan anew for that machine"
        )
    return link


def capacities(machine: Topology, slow: Mapping[int, float]) -> FloatArray:
    """Return bytes per second of each connection-direction, less where it touches a slow device."""
    arrays = machine.arrays()
    capacity = arrays.bandwidth * 1e9
    for rank, factor in slow.items():
        name = machine.devices[rank].name
        touches = np.array([name in (c.a, c.b) for c in machine.connections], np.bool_)
        capacity[touches[arrays.direction_connection]] /= factor
    return capacity


def narrowest(users: Int64Array, directions: Int32Array, capacity: FloatArray) -> Int64Array:
    """Return, for each direction, the narrowest of those that the same messages (or links) cross; it alone limits them.

    Sums of numbers drawn for the messages tell which are the same.

    Args:
        users, directions: (H,) the message and the direction of each hop; every number below the largest is of one.
        capacity: (num_directions,).
    """
    drawn = np.random.default_rng(0).random(users.max(initial=0) + 1)
    sums = np.bincount(directions, drawn[users], capacity.shape[0])
    order = np.lexsort((capacity, sums))
    return order[np.searchsorted(sums[order], sums)]
