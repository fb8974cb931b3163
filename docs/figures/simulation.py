"""What the simulator says of plans: as they are executed, over a bound.

All is computed, nothing measured: the tables are the same on every machine. Three minutes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dgcl.partition import partition_graph
from dgcl.planner import Relation, make_plan
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.column_generation.master.price_bound import price_bound
from dgcl.planner.simulator.event_simulator import simulate
from dgcl.planner.simulator.executed import executed_seconds
from dgcl.planner.synthetic import synthetic_relation
from dgcl.relation.classes import halo_classes
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures.framework import Figure, Run

PAGE = "plan-format.md"
MACHINES = ("dgx1", "pcie8", "summit", "dgx_a100")
SHAPES = ("reddit", "web-google", "wiki-talk")
GRAPHS = ("amazon_computers",)
ROW_BYTES = 512


def relations(run: Run, machine: str, parts: int) -> Iterator[tuple[str, Relation]]:
    """Relations of the paper's graphs at a tenth of their sizes, and of two graphs that are hard."""
    for shape in SHAPES:
        yield shape, synthetic_relation(shape, parts, scale=0.1)
    for graph in run.some(GRAPHS):
        whole = run.graph(graph)
        part = partition_graph(whole, parts, topology=resolve_topology(machine, parts))
        yield graph, halo_classes(whole, part, parts).relation


def bound_without_stages(relation: Relation, topology: Topology) -> float:
    """Seconds that no execution beats on a machine without latencies, with or without stages: cuts and prices."""
    cut, arrays, unit = best_bound(relation, topology, ROW_BYTES).seconds, topology.arrays(), ROW_BYTES / 1e9
    priced = price_bound(
        relation, arrays, np.arange(relation.world_size), factor=np.ones(len(arrays.link_src)), aim=cut / unit,
        known=cut / unit, tolerance=2e-4, deadline=np.inf,
    )  # fmt: skip
    return max(cut, priced.value * unit)


def executed(run: Run) -> Figure:
    """Plans of `auto` as our transports carry them out; without latencies, then with the preset's."""
    columns = {
        "machine": "", "graph": "", "stages": "", "bound us": ".1f", "executed": ".3f", "equal shares": ".3f",
        "order eager": ".3f", "with latencies: us": ".1f", "/ bound": ".3f", "late stages": "",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for machine in run.some(MACHINES):
            topology = resolve_topology(machine)
            bare = without_latencies(topology)
            for graph, relation in relations(run, machine, topology.num_devices):
                plan, real = make_plan(relation, bare), make_plan(relation, topology)
                bound, late = bound_without_stages(relation, bare), executed_seconds(real) or np.nan
                seconds = [executed_seconds(plan) or np.nan, simulate(plan, order="neighbours").seconds]
                seconds.append(simulate(plan, order="eager", shares="bytes").seconds)
                over = [each / bound for each in seconds]
                yield [
                    machine, graph, plan.num_stages, 1e6 * bound, *over,
                    1e6 * late, late / real.lower_bound_seconds, real.num_stages,
                ]  # fmt: skip

    text = "{executed:.3f}, {equal shares:.3f}, {order eager:.3f}; {/ bound:.3f}"
    return Figure(columns, rows(), small=("{machine}".format_map, "{graph}".format_map, text.format_map))


FIGURES = {"executed": executed}
