"""Compiled loops of ``cover``: lists the cut edges into one group of ranks, and finds their minimum vertex cover.

A *left* node is a tail, a *right* node a head with a group of its tails; each cut edge joins one of both. Sources,
which a graph has checked, are read as unsigned: numba asks of a signed index whether it counts from the end. Imports
numba, so `cover` imports it on first use.
Called by `cover`. Free to change while rows are as many as a maximum matching of scipy has edges, or, where the search
ends early, more by at most the number that is returned (`tests/dgcl/placement/test_exchanges.py`).
"""

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
    """Write each cut edge's left and right node and its place; `heads` are those of one group.

    Returns:
        How many left and right nodes and cut edges there are.
    """
    num_left, num_right, num_cut = 0, 0, 0
    number = np.full(group.size, -1, left.dtype)
    groups = np.int64(group.max()) + 1
    node, head = np.empty(groups, np.int64), np.full(groups, -1, np.int64)
    for v in heads:
        for edge in range(indptr[v], indptr[v + 1]):
            u = np.uint64(indices[edge])
            come = group[u]
            if come == group[v]:
                continue
            if number[u] < 0:
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
) -> tuple[NDArray[np.bool_], int]:
    """(L,) whether a left node is of Koenig's cover: none that is unmatched leads to it by an alternating path.

    Phases of a breadth-first search from all unmatched left nodes at once: a tree ends with the first unmatched right
    node that it reaches, and trees are disjoint, so their paths augment together (Azad, Buluc and Pothen, TPDS 2017,
    without grafting). The last finds none, or begins when `most` edges were looked at: the cover has, beyond the
    smallest, at most the unmatched right nodes that are reached then; all left nodes are taken where fewer of these are
    unmatched. Any maximum matching gives the same cover.

    Returns:
        That, and how many nodes the cover may have beyond the smallest.
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
    root, path, reached = np.empty_like(of_left), np.empty_like(of_left), np.empty_like(of_right)
    while True:
        is_last, done, size, excess = most < 0, 0, 0, 0
        for left in range(num_left):
            root[left] = -1
            if of_left[left] < 0:
                root[left], path[size] = left, left
                size += 1
        num_unmatched = size
        reached[:] = -1  # from which left node
        while done < size:
            left = path[done]
            done += 1
            if of_left[root[left]] >= 0:
                continue
            most -= ptr[left + 1] - ptr[left]
            for node in right[ptr[left] : ptr[left + 1]]:
                if reached[node] >= 0:
                    continue
                reached[node], mate = left, of_right[node]
                if mate >= 0:
                    root[mate], path[size] = root[left], mate
                    size += 1
                    continue
                excess += 1
                if not is_last:
                    while node >= 0:
                        of_right[node] = reached[node]
                        of_left[reached[node]], node = node, of_left[reached[node]]
                    break
        if is_last or not excess:
            return (root < 0) | (excess > num_unmatched), min(excess, num_unmatched)
