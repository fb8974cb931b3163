"""The best whole-row plan of a very small problem, by listing every tree and solving an integer program.

With four devices and a few hundred vertices the time of one row matters, and no rounding of a fractional plan
is safe. There are about a hundred stage-labelled trees per class then, so HiGHS can be given all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.plan import Trees

if TYPE_CHECKING:
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

MAX_DEVICES = 4
MAX_VERTICES = 256
NODE_LIMIT = 500  # branch-and-bound nodes; a limit in nodes keeps results repeatable, one in seconds would not

Edges = tuple[tuple[int, int], ...]  # (stage, link) pairs, ascending


def is_small(relation: Relation) -> bool:
    """Tell whether `best_whole_plan` is worth asking."""
    return relation.world_size <= MAX_DEVICES and relation.num_vertices <= MAX_VERTICES


def best_whole_plan(
    relation: Relation, arrays: TopologyArrays, num_stages: int, latency_unit: float
) -> Trees | None:
    """Return the fastest plan of at most `num_stages` stages that the solver finds; None if it finds none.

    Args:
        relation: a small one (`is_small`).
        arrays: the machine.
        num_stages: stages that may be used.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes).
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    options = [
        (c, edges)
        for c in range(relation.num_classes)
        for edges in _trees(int(relation.source[c]), relation.dest_ranks(c), arrays, num_stages)
    ]
    num, num_links = len(options), arrays.link_src.shape[0]
    unit = float(1.0 / arrays.bandwidth.max())  # the quickest row takes 1 in the program
    latency = arrays.link_latency * latency_unit / unit
    slow = [(k, link) for k in range(num_stages) for link in np.flatnonzero(latency > 0).tolist()]
    column_of = {use: num + num_stages + n for n, use in enumerate(slow)}
    num_columns = num + num_stages + len(slow)
    users: dict[tuple[int, int], list[int]] = {}
    for n, (_, edges) in enumerate(options):
        for use in edges:
            users.setdefault(use, []).append(n)
    entries: list[tuple[int, int, float]] = []
    upper: list[float] = []
    for (k, c), links in _loaded(users, arrays).items():
        cost = 1.0 / arrays.bandwidth[c] / unit
        load = [(n, cost) for link in links for n in users[k, link]]
        for fixed in [None, *(link for link in links if (k, link) in column_of)]:
            row = len(upper)
            entries += [(row, n, value) for n, value in load] + [(row, num + k, -1.0)]
            if fixed is not None:
                entries.append((row, column_of[k, fixed], latency[fixed]))
            upper.append(0.0)
    for use, column in column_of.items():  # a link in use switches its latency on
        if use in users:
            entries += [(len(upper), n, 1.0) for n in users[use]]
            entries.append((len(upper), column, -float(relation.num_vertices)))
            upper.append(0.0)
    if not upper:
        return None
    row_index, column_index, values = (np.array(part) for part in zip(*entries, strict=True))
    limits = LinearConstraint(
        coo_array((values, (row_index, column_index)), shape=(len(upper), num_columns)).tocsc(), -np.inf, upper
    )
    owner = np.array([c for c, _ in options])
    totals = LinearConstraint(
        coo_array((np.ones(num), (owner, np.arange(num))), shape=(relation.num_classes, num_columns)).tocsc(),
        relation.count.astype(np.float64),
        relation.count.astype(np.float64),
    )
    high = np.concatenate([relation.count[owner], np.full(num_stages, np.inf), np.ones(len(slow))])
    hops = np.array([len(edges) for _, edges in options]) * (1e-6 / max(1, relation.num_vertices))
    solution = milp(
        np.concatenate([hops, np.ones(num_stages), np.zeros(len(slow))]),
        integrality=np.concatenate([np.ones(num), np.zeros(num_stages), np.ones(len(slow))]),
        bounds=Bounds(0.0, high),
        constraints=[limits, totals],
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": 1e-6},
    )
    if solution.x is None:
        return None
    count = np.rint(solution.x[:num]).astype(np.int64)
    served = np.zeros(relation.num_classes, np.int64)
    np.add.at(served, owner, count)
    if (served != relation.count).any():
        return None
    taken = np.flatnonzero(count)
    stages = [k for n in taken for k, _ in options[n][1]]
    links = np.array([link for n in taken for _, link in options[n][1]], np.int64)
    sizes = [len(options[n][1]) for n in taken]
    return Trees(
        owner[taken].astype(np.int32),
        count[taken],
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        arrays.link_src[links],
        arrays.link_dst[links],
        np.array(stages, np.int32),
    )


def _loaded(users: dict[tuple[int, int], list[int]], arrays: TopologyArrays) -> dict[tuple[int, int], list[int]]:
    """Return for each (stage, connection-direction) the links in use there."""
    loaded: dict[tuple[int, int], list[int]] = {}
    for k, link in sorted(users):
        for c in arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]].tolist():
            loaded.setdefault((k, c), []).append(link)
    return loaded


def _trees(source: int, dests: list[int], arrays: TopologyArrays, num_stages: int) -> Iterator[Edges]:
    """Yield every stage-labelled tree from `source` to `dests` without useless relays."""
    others = [v for v in range(arrays.num_devices) if v != source and v not in dests]
    for size in range(len(others) + 1):
        for relays in itertools.combinations(others, size):
            members = sorted((*dests, *relays))
            entries = [
                [(p, m, k) for p in (source, *members) if arrays.link_of[p, m] >= 0 for k in range(num_stages)]
                for m in members
            ]
            for tree in itertools.product(*entries):
                entered = {source: -1, **{m: k for _, m, k in tree}}
                if all(entered[p] < k for p, _, k in tree) and {p for p, _, _ in tree}.issuperset(relays):
                    yield tuple(sorted((k, int(arrays.link_of[p, m])) for p, m, k in tree))
