"""The systems of the papers beside each other, run and as published; and what the papers claim, computed again.

`plans` draws relations (dgcl.planner.synthetic) with the vertices and edges of the DGCL paper's Table 4, at
a tenth of their number: no latencies are modelled, so sizes cancel out of every ratio here. Times are the model's, or
the simulator's. `systems` runs each system (docs/figures/systems.py). Ten minutes.
"""

import time
from collections.abc import Iterator
from typing import Any

from dgcl.planner import Plan, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures import systems
from docs.figures.framework import Figure, Run

PAGE = "paper.md"
MACHINES = (("dgx1", 4), ("dgx1", 8), ("pcie8", 8), ("dgx1x2", 16))
METHODS, OURS, SCALE = ("direct", "spst", "auto"), ("spst", "auto"), 0.1


def timed(relation: Relation, topology: Topology, method: str) -> tuple[Plan, float]:
    """A plan, and the processor seconds that it took with compiled code loaded."""
    make_plan(relation, topology, method)
    begin = time.process_time()
    return make_plan(relation, topology, method), time.process_time() - begin


def plans(run: Run) -> Figure:
    """Each graph on each machine: how much less than peer-to-peer."""
    share = ("SPST", "`auto`", "any plan, at most", "SPST, played", "`auto`, played")
    columns = {"machine": "", "ranks": "", "graph": "", **dict.fromkeys(share, ".1%")}

    def rows() -> Iterator[list[Any]]:
        for machine, ranks in run.some(MACHINES):
            topology = without_latencies(resolve_topology(machine, ranks))
            for shape in SHAPES:
                relation = synthetic_relation(shape, ranks, scale=SCALE)
                made = {method: timed(relation, topology, method) for method in METHODS}
                direct = made["direct"][0].predicted_seconds
                bound = made["auto"][0].lower_bound_seconds
                # GPUs share a link in proportion to the bytes that are under way (dgcl simulate --shares).
                played = {
                    method: simulate(plan, shares="bytes").seconds for method, (plan, _) in made.items()
                }
                less = [1 - made[method][0].predicted_seconds / direct for method in OURS]
                less += [1 - bound / direct, *(1 - played[method] / played["direct"] for method in OURS)]
                yield [machine, ranks, shape, *less, *(made[method][1] for method in OURS)]

    return Figure({**columns, "SPST, s": ".2f", "`auto`, s": ".2f"}, rows())


FIGURES = systems.FIGURES | {"plans": plans}
