"""Compiled loops that find who reads whom: destination masks of all vertices, and vertices with equal masks.

Loaded on first use (numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def mark_readers(
    indptr: NDArray[np.int64], indices: NDArray[Any], part: NDArray[np.int32], masks: NDArray[Any]
) -> None:
    """Set bit ``part[v]`` in the mask of every u that v reads; masks (N,) of any unsigned type wide enough.

    The owner's own bit is set as well: to test for it at every edge would cost another random read.
    """
    one = masks.dtype.type(1)
    for v in range(part.size):
        bit = one << masks.dtype.type(part[v])
        for k in range(indptr[v], indptr[v + 1]):
            masks[indices[k]] |= bit


@njit(cache=True, nogil=True)
def mark_readers_wide(
    indptr: NDArray[np.int64], indices: NDArray[Any], part: NDArray[np.int32], masks: NDArray[np.uint64]
) -> None:
    """Do the same for masks of several words, (N, W)."""
    for v in range(part.size):
        word = part[v] >> 6
        bit = np.uint64(1) << np.uint64(part[v] & 63)
        for k in range(indptr[v], indptr[v + 1]):
            masks[indices[k], word] |= bit


@njit(cache=True, nogil=True)
def clear_owners(masks: NDArray[Any], width: int, part: NDArray[np.int32]) -> int:
    """Clear each owner's bit in the masks, (N, W) words of `width` bits; return how many vertices are left
    with a reader.
    """
    one = masks.dtype.type(1)
    boundary = 0
    for v in range(part.size):
        masks[v, part[v] // width] &= ~(one << masks.dtype.type(part[v] % width))
        for w in range(masks.shape[1]):
            if masks[v, w] != 0:
                boundary += 1
                break
    return boundary


@njit(cache=True, nogil=True)
def number_classes(
    masks: NDArray[Any], part: NDArray[np.int32], boundary: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Number the distinct (owner, mask) pairs of boundary vertices in order of first appearance.

    Returns:
        vertices (B,) ascending, the class number of each (B,), and the first vertex of each class (C,).
    """
    words = masks.shape[1]
    vertices = np.empty(boundary, np.int64)
    classes = np.empty(boundary, np.int32)
    first = np.empty(1024, np.int64)
    table = np.full(4096, -1, np.int32)  # open addressing, kept at most half full
    num_classes = 0
    filled = 0
    for v in range(part.size):
        mixed = np.uint64(part[v] + 1)
        empty = True
        for w in range(words):
            if masks[v, w] != 0:
                empty = False
            mixed = _mix(mixed ^ np.uint64(masks[v, w]))
        if empty:
            continue
        slot = np.int64(mixed & np.uint64(table.size - 1))
        while table[slot] >= 0 and not _same_class(masks, part, first[table[slot]], v):
            slot = (slot + 1) & (table.size - 1)
        if table[slot] < 0:
            if num_classes == first.size:
                first = np.append(first, np.empty(num_classes, np.int64))
            first[num_classes] = v
            table[slot] = num_classes
            num_classes += 1
        vertices[filled] = v
        classes[filled] = table[slot]
        filled += 1
        if 2 * num_classes > table.size:
            table = _rehash(masks, part, first, num_classes, 4 * table.size)
    return vertices, classes, first[:num_classes].copy()


@njit(cache=True, nogil=True)
def _rehash(
    masks: NDArray[Any], part: NDArray[np.int32], first: NDArray[np.int64], num_classes: int, size: int
) -> NDArray[np.int32]:
    """Return a table of `size` slots that holds the classes so far."""
    table = np.full(size, -1, np.int32)
    for c in range(num_classes):
        v = first[c]
        mixed = np.uint64(part[v] + 1)
        for w in range(masks.shape[1]):
            mixed = _mix(mixed ^ np.uint64(masks[v, w]))
        slot = np.int64(mixed & np.uint64(size - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = c
    return table


@njit(cache=True, nogil=True, inline="always")
def _mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def _same_class(masks: NDArray[Any], part: NDArray[np.int32], a: int, b: int) -> bool:
    """Tell whether two vertices have the same owner and mask."""
    if part[a] != part[b]:
        return False
    for w in range(masks.shape[1]):  # noqa: SIM110 (numba compiles no all() of a generator)
        if masks[a, w] != masks[b, w]:
            return False
    return True


@njit(cache=True, nogil=True)
def sort_classes(masks: NDArray[Any], part: NDArray[np.int32], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class numbers ordered by (owner, mask as an integer): a merge sort from the bottom up."""
    size = first.size
    order = np.arange(size)
    other = np.empty_like(order)
    run = 1
    while run < size:
        for low in range(0, size, 2 * run):
            mid, high = min(low + run, size), min(low + 2 * run, size)
            i, j = low, mid
            for k in range(low, high):
                if j >= high or (i < mid and not _before(masks, part, first[order[j]], first[order[i]])):
                    other[k] = order[i]
                    i += 1
                else:
                    other[k] = order[j]
                    j += 1
        order, other = other, order
        run *= 2
    return order


@njit(cache=True, nogil=True, inline="always")
def _before(masks: NDArray[Any], part: NDArray[np.int32], a: int, b: int) -> bool:
    """Tell whether vertex a's (owner, mask as an integer) is less than b's."""
    if part[a] != part[b]:
        return bool(part[a] < part[b])
    for w in range(masks.shape[1] - 1, -1, -1):
        if masks[a, w] != masks[b, w]:
            return bool(masks[a, w] < masks[b, w])
    return False


@njit(cache=True, nogil=True)
def group_vertices(
    vertices: NDArray[np.int64],
    classes: NDArray[np.int32],
    rank: NDArray[np.int64],
    class_ptr: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the vertices class by class, ascending within one; fills class_ptr (C + 1,), given as zeros.

    Args:
        vertices: (B,) ascending.
        classes: (B,) class number of each.
        rank: (C,) place of each class number in the order of the classes.
        class_ptr: (C + 1,) zeros.
    """
    for c in classes:
        class_ptr[rank[c] + 1] += 1
    for c in range(rank.size):
        class_ptr[c + 1] += class_ptr[c]
    cursor = class_ptr[:-1].copy()
    grouped = np.empty_like(vertices)
    for i in range(vertices.size):
        c = rank[classes[i]]
        grouped[cursor[c]] = vertices[i]
        cursor[c] += 1
    return grouped
