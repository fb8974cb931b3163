"""Optimal plans of small instances, by trying everything: up to 4 devices (5 with patience) and a few
vertices.

`integer_optimum` searches all stage-labelled trees and all integer splits; `milp_optimum` hands the same
choice to an integer program (another road to the same number, for instances that are too large for the
search); `fractional_optimum` lets vertices be cut up. `num_stages` defaults to the format's limit,
world_size - 1.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dgcl.planner import Relation
from dgcl.topology import Topology
from tests.planner.oracle import Edge, classes_of, literal_stage_seconds


def stage_trees(
    topology: Topology, source: int, dests: frozenset[int], num_stages: int, *, strict: bool = False
) -> list[tuple[Edge, ...]]:
    """All stage-labelled trees from `source` that reach `dests` and whose leaves are all destinations.

    Trees with other leaves cost no less than what remains when these are cut off. `strict` allows only
    trees whose edges run in the stage that is their sender's depth.
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
                if all(relay in senders for relay in relays) and _is_tree(source, edges, strict):
                    found.append(tuple(sorted(edges, key=lambda edge: edge[2])))
    return found


def _is_tree(source: int, edges: tuple[Edge, ...], strict: bool) -> bool:
    stage_in = {source: -1, **{receiver: stage for _, receiver, stage in edges}}
    for sender, _, stage in edges:
        if sender not in stage_in or stage_in[sender] >= stage:
            return False
        if strict and stage != stage_in[sender] + 1:
            return False
    return True  # stages rise along every way, so there is no circle, and every way ends at the source


@dataclass(frozen=True)
class Option:
    """A tree as the rows it puts on each (stage, link): what its cost depends on."""

    edges: tuple[Edge, ...]

    @property
    def uses(self) -> frozenset[tuple[int, int, int]]:
        return frozenset(self.edges)


def options(
    topology: Topology, source: int, dests: frozenset[int], num_stages: int, strict: bool
) -> list[Option]:
    """The trees of a class without those that use all of another one's edges and more."""
    trees = sorted(
        {frozenset(edges) for edges in stage_trees(topology, source, dests, num_stages, strict=strict)},
        key=lambda uses: (len(uses), sorted(uses)),
    )
    kept: list[frozenset[Edge]] = []
    for uses in trees:
        if not any(smaller <= uses for smaller in kept):
            kept.append(uses)
    return [Option(tuple(sorted(uses, key=lambda edge: (edge[2], edge)))) for uses in kept]


def _limit(topology: Topology, num_stages: int | None) -> int:
    most = max(1, topology.num_devices - 1)
    return most if num_stages is None else min(most, num_stages)


def integer_optimum(
    relation: Relation,
    topology: Topology,
    row_bytes: int = 1,
    *,
    num_stages: int | None = None,
    strict: bool = False,
    at_most: float = float("inf"),
) -> float:
    """Seconds of the best plan: all stage-labelled trees, all integer splits, exact arithmetic.

    Args:
        relation, topology, row_bytes: the instance; a handful of vertices in all.
        num_stages: at most so many stages.
        strict: stage = depth only.
        at_most: a cost known to be reached; only cheaper plans are looked for (inf is returned if there is
            none).
    """
    stages = _limit(topology, num_stages)
    classes = sorted(classes_of(relation), key=lambda c: -c[2])
    choices = [options(topology, s, dests, stages, strict) for s, dests, _ in classes]
    best: list[Fraction] = []

    def search(c: int, o: int, left: int, rows: dict[Edge, int]) -> None:
        """Give the `left` vertices of class c to its options o, o+1, ...; then go on to the next class."""
        cost = sum(literal_stage_seconds(topology, rows.items(), row_bytes), Fraction(0))
        if cost >= (best[-1] if best else at_most * (1 - 1e-9)):  # more rows never make a plan cheaper
            return
        if left == 0:
            if c + 1 == len(classes):
                best.append(cost)
            else:
                search(c + 1, 0, classes[c + 1][2], rows)
            return
        if o == len(choices[c]):
            return
        for take in range(left, -1, -1):
            more = dict(rows)
            if take:
                for edge in choices[c][o].edges:
                    more[edge] = more.get(edge, 0) + take
            search(c, o + 1, left - take, more)

    if not classes:
        return 0.0
    search(0, 0, classes[0][2], {})
    return float(best[-1]) if best else float("inf")


def milp_optimum(
    relation: Relation,
    topology: Topology,
    row_bytes: int = 1,
    *,
    num_stages: int | None = None,
    strict: bool = False,
    whole: bool = True,
) -> float:
    """Seconds of the best plan by an integer program over the same trees (HiGHS); `whole=False` allows
    fractions.

    Minimise the sum of t(k) such that each class's trees take all its vertices, and for each link l in
    stage k and each direction c on its route t(k) >= latency(l) * z(k, l) + load(k, c) / bandwidth(c),
    where z(k, l) is 1 if l is used.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    stages = _limit(topology, num_stages)
    classes = classes_of(relation)
    if not classes:
        return 0.0
    arrays = topology.arrays()
    unit = (
        row_bytes / 1e9
    )  # seconds of one row at 1 GB/s: times are counted in it, since tolerances are absolute
    trees = [
        (c, option)
        for c, (s, dests, _) in enumerate(classes)
        for option in options(topology, s, dests, stages, strict)
    ]
    # Columns: rows of each tree, then whether each (stage, link) is used, then the time of each stage.
    num_links, num_trees = arrays.num_links, len(trees)
    first_time = num_trees + stages * num_links
    width = first_time + stages
    taken = np.zeros((len(classes), width))
    carried = np.zeros((stages, num_links, width))
    for i, (c, option) in enumerate(trees):
        taken[c, i] = 1
        for s, d, k in option.edges:
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


def fractional_optimum(
    relation: Relation, topology: Topology, row_bytes: int = 1, *, num_stages: int | None = None
) -> float:
    """Seconds of the best plan if vertices could be cut up: the linear program over all trees."""
    return milp_optimum(relation, topology, row_bytes, num_stages=num_stages, whole=False)
