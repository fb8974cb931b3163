"""The best whole-row plan of a very small problem, by listing every tree and solving an integer program.

With four devices and a few hundred vertices the time of one row matters, and no rounding of a fractional
plan is safe; nor is a linear program where latencies decide which links are worth opening. A class then has about
a hundred stage-labelled trees, so HiGHS gets all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

MAX_DEVICES = 4
MAX_VERTICES = 256  # up to which rows are whole numbers in the program; beyond, only the use of links is
NODE_LIMIT = 100  # branch-and-bound nodes; unlike seconds, nodes keep results repeatable

Edges = tuple[tuple[int, int], ...]  # (stage, link) pairs, ascending


def is_small(relation: Relation, arrays: TopologyArrays) -> bool:
    """Tell whether `best_whole_plan` is worth trying."""
    rows_matter = relation.num_vertices <= MAX_VERTICES or bool(arrays.link_latency.any())
    return relation.world_size <= MAX_DEVICES and rows_matter


def best_whole_plan(
    relation: Relation,
    arrays: TopologyArrays,
    num_stages: int,
    latency_unit: float,
    scale: float,
    deadline: float,
) -> Trees | None:
    """Return the fastest plan of at most `num_stages` stages that the solver finds; None if it finds none.

    For more than `MAX_VERTICES` vertices rows are fractions in the program, rounded afterwards.

    Args:
        relation: a small one (`is_small`).
        arrays: the machine.
        num_stages: stages that may be used.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes).
        scale: about how long the plan takes, in rows per GB/s; the solver's tolerances are absolute.
        deadline: on the clock of time.process_time; then the solver stops with the best that it has.
    """
    options = [
        (c, edges)
        for c in range(relation.num_classes)
        for edges in _trees(int(relation.source[c]), relation.dest_ranks(c), arrays, num_stages)
    ]
    owner = np.array([c for c, _ in options])
    rows = _solve(options, owner, relation, arrays, num_stages, latency_unit, scale, deadline)
    if rows is None:
        return None
    count = _whole(rows, owner, relation)
    served = np.bincount(owner, weights=count, minlength=relation.num_classes)
    if (count < 0).any() or (served != relation.count).any():
        return None
    taken = np.flatnonzero(count)
    stages = [k for n in taken for k, _ in options[n][1]]
    hops = np.array([link for n in taken for _, link in options[n][1]], np.int64)
    sizes = [len(options[n][1]) for n in taken]
    return Trees(
        owner[taken].astype(np.int32),
        count[taken],
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        arrays.link_src[hops],
        arrays.link_dst[hops],
        np.array(stages, np.int32),
    )


def _solve(
    options: list[tuple[int, Edges]],
    owner: Int64Array,
    relation: Relation,
    arrays: TopologyArrays,
    num_stages: int,
    latency_unit: float,
    scale: float,
    deadline: float,
) -> FloatArray | None:
    """Return how many rows take each tree in the best plan that HiGHS finds; None if it finds none.

    The variables are an amount for each of the `options` (trees with their class, `owner`), the time of each stage, and
    for each (stage, link) with a latency whether it is used.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    whole = relation.num_vertices <= MAX_VERTICES
    size = (np.ones(relation.num_classes) if whole else relation.count)[
        owner
    ]  # rows in one unit of a variable
    total = relation.count.astype(np.float64) if whole else np.ones(relation.num_classes)
    num = len(options)
    unit = scale / max(1.0, float(relation.num_vertices)) if whole else scale
    latency = arrays.link_latency * latency_unit / unit
    users: dict[tuple[int, int], list[int]] = {}
    for n, (_, edges) in enumerate(options):
        for use in edges:
            users.setdefault(use, []).append(n)
    switch = {
        use: num + num_stages + n for n, use in enumerate(u for u in sorted(users) if latency[u[1]] > 0)
    }
    num_columns = num + num_stages + len(switch)
    entries, num_rows = _time_rows(users, switch, size, latency, arrays, num, unit)
    for use, column in switch.items():  # any class that uses a link switches its latency on
        for c in sorted({int(owner[n]) for n in users[use]}):
            entries += [(num_rows, n, 1.0) for n in users[use] if owner[n] == c]
            entries.append((num_rows, column, -total[c]))
            num_rows += 1
    row_index, column_index, values = (np.array(part) for part in zip(*entries, strict=True))
    limits = coo_array((values, (row_index, column_index)), shape=(num_rows, num_columns)).tocsc()
    served = coo_array(
        (np.ones(num), (owner, np.arange(num))), shape=(relation.num_classes, num_columns)
    ).tocsc()
    limit: dict[str, float] = {"node_limit": NODE_LIMIT, "mip_rel_gap": 1e-6}
    if deadline < np.inf:
        limit["time_limit"] = max(0.0, deadline - time.process_time())
    solution = milp(
        np.concatenate([np.zeros(num), np.ones(num_stages), np.zeros(len(switch))]),
        integrality=np.concatenate([np.full(num, whole), np.zeros(num_stages), np.ones(len(switch))]),
        bounds=Bounds(0.0, np.concatenate([total[owner], np.full(num_stages, np.inf), np.ones(len(switch))])),
        constraints=[LinearConstraint(limits, -np.inf, 0.0), LinearConstraint(served, total, total)],
        options=limit,
    )
    return None if solution.x is None else solution.x[:num] * size


def _time_rows(
    users: dict[tuple[int, int], list[int]],
    switch: dict[tuple[int, int], int],
    size: FloatArray | Int64Array,
    latency: FloatArray,
    arrays: TopologyArrays,
    num: int,
    unit: float,
) -> tuple[list[tuple[int, int, float]], int]:
    """Return the (row, column, value) entries that make every stage as long as its directions are busy.

    One row per (stage, direction), and one more for each link with a latency through it: the load plus that latency,
    if the link is used, is at most the stage's time. Returns the entries and the number of rows.
    """
    entries: list[tuple[int, int, float]] = []
    rows = 0
    for (k, c), links in _loaded(users, arrays).items():
        cost = 1.0 / arrays.bandwidth[c] / unit
        load = [(n, cost * size[n]) for link in links for n in users[k, link]]
        for fixed in [None, *(link for link in links if (k, link) in switch)]:
            entries += [(rows, n, value) for n, value in load] + [(rows, num + k, -1.0)]
            if fixed is not None:
                entries.append((rows, switch[k, fixed], latency[fixed]))
            rows += 1
    return entries, rows


def _whole(rows: FloatArray, owner: Int64Array, relation: Relation) -> Int64Array:
    """Round rows per tree to whole numbers that add up to each class: floors, then the largest fractions."""
    count = np.floor(rows + 1e-6).astype(np.int64)
    for c in range(relation.num_classes):
        trees = np.flatnonzero(owner == c)
        left = int(relation.count[c] - count[trees].sum())
        order = trees[np.argsort(count[trees] - rows[trees], kind="stable")]
        used = order[rows[order] > 1e-9]
        count[used[: max(0, left)]] += 1
        for t in used[::-1][: max(0, -left)]:
            count[t] -= 1
    return count


def _loaded(
    users: dict[tuple[int, int], list[int]], arrays: TopologyArrays
) -> dict[tuple[int, int], list[int]]:
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
                [
                    (p, m, k)
                    for p in (source, *members)
                    if arrays.link_of[p, m] >= 0
                    for k in range(num_stages)
                ]
                for m in members
            ]
            for tree in itertools.product(*entries):
                entered = {source: -1, **{m: k for _, m, k in tree}}
                if all(entered[p] < k for p, _, k in tree) and {p for p, _, _ in tree}.issuperset(relays):
                    yield tuple(sorted((k, int(arrays.link_of[p, m])) for p, m, k in tree))
