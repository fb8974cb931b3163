"""Second opinions for the planner's tests: slow, literal readings of the format, sharing no code with the
planner.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from dgcl.planner import Plan, Relation, Trees
from dgcl.topology import Topology

Edge = tuple[int, int, int]  # sender, receiver, stage


def tree_edges(trees: Trees, t: int) -> list[Edge]:
    """The edges of tree t in file order."""
    span = range(int(trees.edge_ptr[t]), int(trees.edge_ptr[t + 1]))
    return [(int(trees.edge_src[e]), int(trees.edge_dst[e]), int(trees.edge_stage[e])) for e in span]


def literal_stage_seconds(
    topology: Topology, rows: Iterable[tuple[Edge, int]], row_bytes: int
) -> list[Fraction]:
    """Seconds of each stage, exactly, from (edge, count) pairs: "Cost of a plan" of the format, word for
    word.
    """
    connections = {c.name: c for c in topology.connections}
    links = {(link.src, link.dst): link for link in topology.links}
    names = [d.name for d in topology.devices]

    def crossed(s: int, d: int) -> list[tuple[str, str]]:
        """(connection, direction) along the route; both ways of a half-duplex connection are one."""
        at, out = names[s], []
        for name in links[names[s], names[d]].route:
            c = connections[name]
            out.append((name, "both" if c.duplex == "half" else at))
            at = c.b if at == c.a else c.a
        return out

    load: dict[tuple[int, tuple[str, str]], int] = {}
    used: dict[int, set[tuple[int, int]]] = {}
    for (s, d, stage), count in rows:
        used.setdefault(stage, set()).add((s, d))
        for where in crossed(s, d):
            load[stage, where] = load.get((stage, where), 0) + count * row_bytes
    seconds = [Fraction(0)] * (max(used, default=-1) + 1)
    for stage, pairs in used.items():
        for s, d in pairs:
            route = crossed(s, d)
            latency = sum((Fraction(connections[name].latency) for name, _ in route), Fraction(0))
            slowest = max(
                Fraction(load[stage, (n, way)]) / (Fraction(connections[n].bandwidth) * 10**9)
                for n, way in route
            )
            seconds[stage] = max(seconds[stage], latency + slowest)
    return seconds


def literal_cost(plan: Plan) -> list[Fraction]:
    """Seconds of each stage of a plan by the literal reading."""
    rows = [
        (edge, int(plan.trees.tree_count[t]))
        for t in range(plan.trees.num_trees)
        for edge in tree_edges(plan.trees, t)
    ]
    return literal_stage_seconds(plan.topology, rows, plan.row_bytes)


def delivers(relation: Relation, trees: Trees, topology: Topology) -> bool:
    """Whether the trees are what the format asks for, by carrying single rows about, one rule after the
    other.
    """
    pairs = {(link.src, link.dst) for link in topology.links}
    names = [d.name for d in topology.devices]
    world = relation.world_size
    left = [int(n) for n in relation.count]
    for t in range(trees.num_trees):
        c = int(trees.tree_class[t])
        if not 0 <= c < relation.num_classes or trees.tree_count[t] < 1:
            return False
        left[c] -= int(trees.tree_count[t])
        arrival = {int(relation.source[c]): -1}
        for s, d, stage in tree_edges(trees, t):
            if not (0 <= s < world and 0 <= d < world and 0 <= stage < max(1, world - 1)):
                return False
            if (names[s], names[d]) not in pairs or s not in arrival or d in arrival or stage <= arrival[s]:
                return False
            arrival[d] = stage
        if not set(relation.dest_ranks(c)) <= set(arrival):
            return False
    return not any(left)


def classes_of(relation: Relation) -> Sequence[tuple[int, frozenset[int], int]]:
    """(source, destinations, count) of each class."""
    return [
        (int(relation.source[c]), frozenset(relation.dest_ranks(c)), int(relation.count[c]))
        for c in range(relation.num_classes)
    ]
