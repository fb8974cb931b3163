"""Finds the cheapest trees without stages, for all classes at once, by the Dreyfus-Wagner dynamic program.

State (v, A): a row at node v and the set A of nodes still to be served through it. The cheapest way goes to some node w
over a shortest path and there either delivers (w in A) or divides A in two (Dreyfus and Wagner, "The Steiner problem in
graphs", 1971). O(N * 3**N + N**2 * 2**N) for N nodes, less where fewer sets occur.
Called by `planner/column_generation/master/price_bound`. Free to change while its price is that of the cheapest of all
trees of tiny machines, and the rows sent cost exactly that (`tests/planner/column_generation/test_tree_program.py`).
"""

from typing import NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.flows import Routes, link_prices
from dgcl.planner.column_generation.pricing.states import SubsetFamily
from dgcl.planner.planner_compiled import compiled

ARRIVE = -1  # the row is at a node of its set: that node is served


class FreeLinks(NamedTuple):
    """Links between nodes, (L,) int64 each: from node `src` to node `dst`; parallel links are allowed."""

    src: Int64Array
    dst: Int64Array


class FreeProblem(NamedTuple):
    """What must be delivered between N nodes, without stages.

    Attributes:
        family: one group of all nodes.
        links, routes: L links between nodes and the connection-directions that they load.
        start: (N, F), rows at each node that must be brought to each set.
    """

    family: SubsetFamily
    links: FreeLinks
    routes: Routes
    start: FloatArray


@compiled(allocates=False)
def _shortest_paths(
    price: FloatArray, links: FreeLinks, distance: FloatArray, first_link: Int32Array
) -> None:
    """Fill (N, N) tables of least prices and of the first link of such a path (Floyd and Warshall)."""
    nodes = distance.shape[0]
    for s in range(nodes):
        for d in range(nodes):
            distance[s, d], first_link[s, d] = np.inf, -1
    for link in range(price.shape[0]):
        s, d = links.src[link], links.dst[link]
        if price[link] < distance[s, d]:
            distance[s, d] = price[link]
            first_link[s, d] = link
    for v in range(nodes):
        distance[v, v] = 0.0
    for via in range(nodes):
        for s in range(nodes):
            for d in range(nodes):
                candidate = distance[s, via] + distance[via, d]
                if candidate < distance[s, d]:
                    distance[s, d] = candidate
                    first_link[s, d] = first_link[s, via]


@compiled(allocates=False)
def _cheapest(
    family: SubsetFamily,
    distance: FloatArray,
    at_node: FloatArray,
    value: FloatArray,
    split: Int32Array,
    target: Int32Array,
) -> None:
    """Fill (N, F) tables: price of finishing a state, the node to go to, and what to do there; `at_node` is scratch."""
    nodes, num_sets = value.shape
    for v in range(nodes):
        value[v, 0] = 0.0
    for f in range(1, num_sets):
        mask = family.set_mask[f]
        for v in range(nodes):
            if (mask >> v) & 1:
                at_node[v] = value[v, family.minus[f, v]]
                split[v, f] = ARRIVE
                continue
            best, choice = np.inf, -2
            for q in range(family.pair_ptr[f] + 1, family.pair_ptr[f + 1]):  # the first is the undivided set
                candidate = value[v, family.pair_first[q]] + value[v, family.pair_rest[q]]
                if candidate < best:
                    best, choice = candidate, q
            at_node[v] = best
            split[v, f] = choice
        for v in range(nodes):
            best, choice = np.inf, -1
            for w in range(nodes):
                candidate = distance[v, w] + at_node[w]
                if candidate < best:
                    best, choice = candidate, w
            value[v, f] = best
            target[v, f] = choice


@compiled(allocates=False)
def _push(
    family: SubsetFamily,
    value: FloatArray,
    split: Int32Array,
    target: Int32Array,
    start: FloatArray,
    links: FreeLinks,
    first_link: Int32Array,
    routes: Routes,
    here: FloatArray,
    carried: FloatArray,
    columns: FloatArray,
) -> float:
    """Add to `columns` (N, C) the times that each node's rows cause; return what all rows pay.

    `here` (N, F) and `carried` (N, N) are scratch.
    """
    nodes, num_sets = start.shape
    total = 0.0
    for owner in range(nodes):
        mine = 0.0
        for f in range(num_sets):
            if start[owner, f] > 0.0:
                mine += start[owner, f] * value[owner, f]
        total += mine
        if not 0.0 < mine < np.inf:
            continue
        for v in range(nodes):
            for f in range(num_sets):
                here[v, f] = start[v, f] if v == owner else 0.0
            for d in range(nodes):
                carried[v, d] = 0.0
        _push_rows(family, split, target, links, first_link, routes, here, carried, columns[owner])
    return total


@compiled(allocates=False, entry=False)
def _push_rows(
    family: SubsetFamily,
    split: Int32Array,
    target: Int32Array,
    links: FreeLinks,
    first_link: Int32Array,
    routes: Routes,
    here: FloatArray,
    carried: FloatArray,
    busy: FloatArray,
) -> None:
    """Add to `busy` (C,) the times that the rows `here` cause."""
    nodes, num_sets = here.shape
    for f in range(num_sets - 1, 0, -1):
        for v in range(nodes):
            rows = here[v, f]
            if rows == 0.0:
                continue
            w = target[v, f]
            if w != v:
                carried[v, w] += rows
            choice = split[w, f]
            if choice == ARRIVE:
                here[w, family.minus[f, w]] += rows
            else:
                here[w, family.pair_first[choice]] += rows
                here[w, family.pair_rest[choice]] += rows
    for s in range(nodes):
        for d in range(nodes):
            v = s
            hops = 0  # links of price 0 may form cycles; rounding must not trap a walk there
            while carried[s, d] > 0.0 and v != d and hops < nodes:
                hops += 1
                link = first_link[v, d]
                for i in range(routes.ptr[link], routes.ptr[link + 1]):
                    c = routes.direction[i]
                    busy[c] += carried[s, d] * routes.cost[c] * routes.factor[link]
                v = links.dst[link]


def free_answer(problem: FreeProblem, weight: FloatArray, columns: FloatArray) -> float:
    """Answer the weights (C,) of connection-directions with the cheapest trees.

    Args:
        problem: what must be delivered.
        weight: (C,) >= 0.
        columns: (N, C) output, the busy times that each node's rows cause.

    Returns:
        Sum over rows of the price of their cheapest tree; inf when some set cannot be reached.
    """
    family, links, routes, start = problem
    nodes, num_sets = start.shape
    price, (distance, carried) = np.empty((1, links.src.shape[0])), np.empty((2, nodes, nodes))
    link_prices(weight[None], routes, price)
    first_link = np.empty((nodes, nodes), np.int32)
    _shortest_paths(price[0], links, distance, first_link)
    value, here = np.empty((2, nodes, num_sets))
    split, target = np.empty((2, nodes, num_sets), np.int32)
    _cheapest(family, distance, np.empty(nodes), value, split, target)
    columns[:] = 0.0
    return float(
        _push(family, value, split, target, start, links, first_link, routes, here, carried, columns)
    )
