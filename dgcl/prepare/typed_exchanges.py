"""Plans one exchange for each edge type of a graph, of rows of its source type alone.

Items of an exchange are the vertices of the type of its sources, numbered from 0; its name is the edge type's three
parts, joined by "__". A strategy that exchanges partial sums is refused.
Called by `shares`. Free to change while each type's exchange brings the rows of all sources of its edges
(`tests/dgcl/frameworks/test_dispatch.py`), and models of several types give one device's numbers
(`tests/dgcl/rows/test_layers.py`).
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
