"""The systems of the papers beside each other, run and as published; and what the papers claim, computed again.

`plans` draws relations (dgcl.planner.synthetic) with the vertices and edges of the DGCL paper's Table 4, at
a tenth of their number: no latencies are modelled, so sizes cancel out of every ratio here. Times are the model's, or
the simulator's. `systems` runs each system (docs/figures/systems.py). Ten minutes.
"""

from collections.abc import Iterator
from typing import Any

from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.event_simulator import simulate
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.topology import resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures import systems
from docs.figures.framework import Figure, Run

PAGE = "paper.md"
MACHINES = (("dgx1", 4), ("dgx1", 8), ("pcie8", 8), ("dgx1x2", 16))
METHODS, OURS, SCALE = ("direct", "spst", "auto"), ("spst", "auto"), 0.1


def plans(run: Run) -> Figure:
    """Each graph on each machine: how much less than peer-to-peer."""
    share = ("SPST", "`auto`", "any plan, at most", "SPST, played", "`auto`, played")
    columns = {"machine": "", "ranks": "", "graph": "", **dict.fromkeys(share, ".1%")}

    def rows() -> Iterator[list[Any]]:
        for machine, ranks in run.some(MACHINES):
            topology = without_latencies(resolve_topology(machine, ranks))
            for shape in SHAPES:
                relation = synthetic_relation(shape, ranks, scale=SCALE)
                made = {method: make_plan(relation, topology, method) for method in METHODS}
                direct = made["direct"].predicted_seconds
                bound = made["auto"].lower_bound_seconds
                # GPUs share a link in proportion to the bytes that are under way (dgcl simulate --shares).
                played = {method: simulate(plan, shares="bytes").seconds for method, plan in made.items()}
                less = [1 - made[method].predicted_seconds / direct for method in OURS]
                less += [1 - bound / direct, *(1 - played[method] / played["direct"] for method in OURS)]
                yield [machine, ranks, shape, *less]

    text = "{SPST:.1%}, {`auto`:.1%}, {any plan, at most:.1%}; {`auto`, played:.1%}"
    small = ("{machine}, {ranks}".format_map, "{graph}".format_map, text.format_map)
    return Figure(columns, rows(), small=small)


FIGURES = systems.FIGURES | {"plans": plans}
