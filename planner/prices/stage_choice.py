"""How the best time depends on the number of stages, and which number suits a row width.

One plan serves all row widths only while nothing costs the same for a short row as for a long one. With a cost
per stage (a launch, a barrier, a message's latency) narrow rows want fewer stages: the best time of K stages is
alpha * K + row_bytes * T(K), where T(K) does not depend on the width. `auto` finds that number by itself from
the topology's latencies; this is for costs that the topology does not know, and for a look at the trade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.bounds import cut_bound
from dgcl.planner.cost import GIGA, direct_seconds
from dgcl.planner.prices.fractional import StageProgram, make_problem
from dgcl.planner.prices.hierarchy import plan_states
from dgcl.planner.prices.loop import Routes
from dgcl.planner.reach import require_routes, require_same_size

if TYPE_CHECKING:
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology


@dataclass(frozen=True)
class StageTime:
    """The best time with at most `num_stages` stages, in seconds per byte of a row, latencies left out.

    Attributes:
        num_stages: K.
        seconds_per_byte: T(K), reached by a fractional plan; whole rows take a little longer.
    """

    num_stages: int
    seconds_per_byte: float

    def seconds(self, row_bytes: int, stage_seconds: float) -> float:
        """Return the time for rows of this width when every stage costs `stage_seconds` besides."""
        return self.num_stages * stage_seconds + row_bytes * self.seconds_per_byte


def stage_times(relation: Relation, topology: Topology, most: int = 4, steps: int = 12) -> list[StageTime]:
    """Return T(K) for K = 1 .. `most` (at most world_size - 1); numbers in which rows cannot arrive are left out.

    Args:
        relation: what must be delivered.
        topology: the machine.
        most: largest number of stages.
        steps: linear programs per number of stages; more come closer to the best.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    require_same_size(relation.world_size, topology)
    require_routes(relation.pair_rows(), topology)
    if relation.num_classes == 0:
        return [StageTime(1, 0.0)]
    arrays = topology.arrays()
    space = plan_states(relation, topology)
    ones, nothing = np.ones(arrays.num_links), np.zeros(arrays.num_links)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, ones, nothing)
    problem = make_problem(space, routes)
    aim = cut_bound(relation, topology, 1).seconds * GIGA
    times = []
    direct = direct_seconds(relation, _without_latency(topology), 1)
    if direct is not None:
        times.append(StageTime(1, direct))
    for num_stages in range(2, min(most, max(1, relation.world_size - 1)) + 1):
        program = StageProgram(problem, num_stages)
        if program.is_feasible():
            program.play(200, aim, 24)
            program.solve(0.0, aim, 1e-3, hopeless=np.inf, steps=steps, progress=0.0, deadline=np.inf)
            assert program.mixture is not None
            best = min([program.mixture.seconds / GIGA, *(t.seconds_per_byte for t in times)])
            times.append(StageTime(num_stages, best))
    return times


def best_number(times: list[StageTime], row_bytes: int, stage_seconds: float) -> int:
    """Return the number of stages with the least alpha * K + row_bytes * T(K); the smallest of equals."""
    return min(times, key=lambda t: (t.seconds(row_bytes, stage_seconds), t.num_stages)).num_stages


def _without_latency(topology: Topology) -> Topology:
    from dataclasses import replace

    connections = tuple(replace(connection, latency=0.0) for connection in topology.connections)
    return replace(topology, connections=connections)
