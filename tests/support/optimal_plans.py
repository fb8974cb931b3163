"""Optimal plans of small instances, by an integer program over every tree: up to 4 devices, 5 take minutes."""

import itertools

import numpy as np

from dgcl.planner import Relation
from dgcl.topology import Topology
from tests.support.planner_oracle import Edge, classes_of


def stage_trees(
    topology: Topology, source: int, dests: frozenset[int], num_stages: int
) -> list[tuple[Edge, ...]]:
    """All stage-labelled trees from `source` that reach `dests` and whose leaves are all destinations.

    Trees with other leaves cost no less than what remains when these are cut off.
    """
    names = {d.name: r for r, d in enumerate(topology.devices)}
    into: dict[int, list[int]] = {}
    for link in topology.links:
        into.setdefault(names[link.dst], []).append(names[link.src])
    others = [r for r in range(topology.num_devices) if r != source and r not in dests]
    found = []
    for size in range(len(others) + 1):
        for relays in itertools.combinations(others, size):
            members = sorted({*dests, *relays})
            choices = [[(p, m, k) for p in into.get(m, []) for k in range(num_stages)] for m in members]
            for edges in itertools.product(*choices):
                senders = {edge[0] for edge in edges}
                if all(relay in senders for relay in relays) and _is_tree(source, edges):
                    found.append(tuple(sorted(edges, key=lambda edge: edge[2])))
    return found


def _is_tree(source: int, edges: tuple[Edge, ...]) -> bool:
    stage_in = {source: -1, **{receiver: stage for _, receiver, stage in edges}}
    # where stages rise along every way there is no circle, and every way ends at the source
    return all(stage_in.get(sender, stage) < stage for sender, _, stage in edges)


def least_trees(
    topology: Topology, source: int, dests: frozenset[int], num_stages: int
) -> list[frozenset[Edge]]:
    """The trees of a class without those that use all of another one's edges and more."""
    trees = {frozenset(edges) for edges in stage_trees(topology, source, dests, num_stages)}
    kept: list[frozenset[Edge]] = []
    for uses in sorted(trees, key=lambda uses: (len(uses), sorted(uses))):
        if not any(smaller <= uses for smaller in kept):
            kept.append(uses)
    return kept


def optimum(
    relation: Relation,
    topology: Topology,
    row_bytes: int = 1,
    *,
    num_stages: int | None = None,
    whole: bool = True,
) -> float:
    """Seconds of the best plan by an integer program over all stage-labelled trees (HiGHS).

    `num_stages` defaults to the format's limit, world_size - 1; `whole=False` lets vertices be cut up.

    Minimise the sum of t(k) such that each class's trees take all its vertices, and for each link l in
    stage k and each direction c on its route t(k) >= latency(l) * z(k, l) + load(k, c) / bandwidth(c),
    where z(k, l) is 1 if l is used.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    most = max(1, topology.num_devices - 1)
    stages = min(most, num_stages or most)
    classes = classes_of(relation)
    if not classes:
        return 0.0
    arrays = topology.arrays()
    unit = (
        row_bytes / 1e9
    )  # seconds of one row at 1 GB/s: times are counted in it, since tolerances are absolute
    trees = [
        (c, tree)
        for c, (s, dests, _) in enumerate(classes)
        for tree in least_trees(topology, s, dests, stages)
    ]
    # Columns: rows of each tree, then whether each (stage, link) is used, then the time of each stage.
    num_links, num_trees = arrays.num_links, len(trees)
    first_time = num_trees + stages * num_links
    width = first_time + stages
    taken = np.zeros((len(classes), width))
    carried = np.zeros((stages, num_links, width))
    for i, (c, tree) in enumerate(trees):
        taken[c, i] = 1
        for s, d, k in tree:
            carried[k, arrays.link_of[s, d], i] += 1
    route = [
        arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]].tolist()
        for link in range(num_links)
    ]
    used, timed = carried.copy(), []
    for k in range(stages):
        load = np.zeros((arrays.num_directions, width))
        for link in range(num_links):
            load[route[link]] += carried[k, link]
        for link in range(num_links):
            switch = num_trees + k * num_links + link
            used[k, link, switch] = -sum(count for _, _, count in classes)
            for c in route[link]:
                line = load[c] / arrays.bandwidth[c]
                line[switch] = arrays.link_latency[link] / unit
                line[first_time + k] = -1
                timed.append(line)
    sizes = [count for _, _, count in classes]
    upper = np.full(width, np.inf)
    upper[num_trees:first_time] = 1
    kind = np.zeros(width)
    kind[:first_time] = 1
    if not whole:
        kind[:num_trees] = 0
    result = milp(
        (np.arange(width) >= first_time).astype(float),
        integrality=kind,
        bounds=Bounds(np.zeros(width), upper),
        constraints=[
            LinearConstraint(taken, sizes, sizes),
            LinearConstraint(used.reshape(-1, width), -np.inf, 0),
            LinearConstraint(np.array(timed), -np.inf, 0),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert result.success, result.message
    return float(result.fun) * unit
