"""The exchanges of a graph of several types: one for each type of edges, of the rows of its type of sources alone.

Called by `shares`. Free to change while each rank gets its share of the whole graph, and damaged files are
named (`tests/dgcl/prepare/`).
"""

from dgcl.graph.typed import TypedGraph
from dgcl.program.strategy import Arrangement, Planned, Problem
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import Demand, halo_demand


def plan_edge_types(graph: TypedGraph, problem: Problem, arrangement: Arrangement) -> dict[str, Planned]:
    """Plan an exchange for each type of edges; its items are the vertices of that type, from 0.

    Raises:
        ValueError: Edges are not summed by the owners of their heads, or of slices of rows.
    """
    if arrangement.partial is not None:
        raise ValueError("a graph of several types goes with strategy='halo'")
    planned = {}
    for edge_type in graph.edge_types:
        whole = halo_demand(graph.edges_of(edge_type), problem.part, problem.topology.num_devices)
        first, number = graph.node_types[edge_type[0]]
        vertices = slice(first, first + number)
        demand = Demand(whole.world_size, whole.owner[vertices], whole.readers[:, vertices])
        classes, name = build_classes(demand), "__".join(edge_type)
        planned[name] = Planned(classes, problem.plan(classes.relation, exchange=name))
    return planned
