"""Compiled passes over the edges: of covers, and of what workers exchange. Loaded on first use (numba).

A *left* node is a tail with a group of its heads, a *right* node a head with a group of its tails; each cut edge joins
one of both. Sources, which a graph has checked, are read as unsigned: numba asks of a signed index whether it counts
from the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled


@compiled
def join_cut(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    heads: NDArray[np.int64],
    group: NDArray[Any],
    left: NDArray[Any],
    right: NDArray[Any],
    cut: NDArray[Any],
) -> tuple[int, int, int]:
    """Write each cut edge's left and right node and its place, head by head, those of a group one after the other.

    Returns:
        How many left and right nodes and cut edges there are.
    """
    num_left, num_right, num_cut, begin = 0, 0, 0, 0
    number = np.full(group.size, -1, left.dtype)  # of a tail, with this group of heads where at least `begin`
    groups = np.int64(group.max()) + 1
    node, head = np.empty(groups, np.int64), np.full(groups, -1, np.int64)
    for i in range(heads.size):
        v = heads[i]
        if i and group[v] != group[heads[i - 1]]:
            begin = num_left
        for edge in range(indptr[v], indptr[v + 1]):
            u = np.uint64(indices[edge])
            come = group[u]
            if come == group[v]:
                continue
            if number[u] < begin:
                number[u] = num_left
                num_left += 1
            if head[come] != v:
                head[come], node[come] = v, num_right
                num_right += 1
            left[num_cut], right[num_cut], cut[num_cut] = number[u], node[come], edge
            num_cut += 1
    return num_left, num_right, num_cut


@compiled
def sent_rows(
    left_of_edge: NDArray[Any], right_of_edge: NDArray[Any], num_left: int, num_right: int, most: int
) -> NDArray[np.bool_]:
    """(L,) whether a left node is of Koenig's cover: none that is unmatched leads to it by an alternating path.

    Phases of Hopcroft and Karp: breadth-first to the nearest unmatched right nodes, then disjoint paths to them. The
    last finds none, or begins when `most` edges were looked at: the cover has, beyond the smallest, at most the
    unmatched right nodes that are reached then. Any maximum matching gives the same cover.
    """
    ptr = np.zeros(num_left + 2, np.int64)
    for node in left_of_edge:
        ptr[node + 2] += 1
    for node in range(2, ptr.size):
        ptr[node] += ptr[node - 1]
    right = np.empty_like(right_of_edge)
    for edge in range(right.size):
        place = ptr[left_of_edge[edge] + 1]
        right[place], ptr[left_of_edge[edge] + 1] = right_of_edge[edge], place + 1
    of_left, of_right = np.full(num_left, -1, right.dtype), np.full(num_right, -1, right.dtype)
    level, path, at = np.empty(num_left, np.int32), np.empty(num_left, right.dtype), ptr[:num_left].copy()
    while True:
        is_last, nearest, done, size = most < 0, num_left, 0, 0
        for left in range(num_left):
            at[left], level[left] = ptr[left], -1
            if of_left[left] < 0:
                level[left], path[size] = 0, left
                size += 1
        while done < size and (is_last or level[path[done]] <= nearest):
            left = path[done]
            for node in right[ptr[left] : ptr[left + 1]]:
                mate = of_right[node]
                if mate < 0:
                    nearest = level[left]
                elif level[mate] < 0:
                    level[mate], path[size] = level[left] + 1, mate
                    size += 1
            most -= ptr[left + 1] - ptr[left]
            done += 1
        if is_last or nearest == num_left:
            return level < 0
        for root in range(num_left):
            depth = 0 if of_left[root] < 0 else -1
            path[0] = root
            while depth >= 0:
                left = path[depth]
                if at[left] == ptr[left + 1]:
                    depth -= 1
                    continue
                node = right[at[left]]
                mate = of_right[node]
                at[left] += 1
                if mate < 0:
                    for step in range(depth, -1, -1):
                        of_right[node] = path[step]
                        of_left[path[step]], node = node, of_left[path[step]]
                    break
                if level[mate] == level[left] + 1:
                    depth += 1
                    path[depth] = mate


@compiled
def mark_workers(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    worker: NDArray[np.int32],
    part: NDArray[np.int32],
    expand: NDArray[Any],
    fold: NDArray[Any],
    edges: NDArray[np.int64],
) -> None:
    """Set the worker's bit in `expand` (W, N) at each edge's tail, in `fold` at its head, unless it owns them; count
    edges by worker."""
    one = expand.dtype.type(1)
    for v in range(part.size):
        for edge in range(indptr[v], indptr[v + 1]):
            u, rank = np.uint64(indices[edge]), worker[edge]
            bit = one << expand.dtype.type(rank & 63)
            if part[u] != rank:
                expand[rank >> 6, u] |= bit
            if part[v] != rank:
                fold[rank >> 6, v] |= bit
            edges[rank] += 1
