"""Compiled loops that find who reads whom: destination masks of all vertices, and vertices with equal masks.

Masks of all vertices are kept word by word, (W, N): the pass over the edges then writes at random into one
word's N entries only, which caches can hold, and everything after it reads front to back. Loaded on first use
(numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def mark_readers(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    readers: NDArray[np.int64],
    part: NDArray[np.int32],
    mask: NDArray[Any],
) -> None:
    """Set the bit of part[v] in mask[u] for each v of `readers` and each u that v reads; `mask` is one word,
    (N,).

    The owner's own bit is set as well: to test for it at every edge would cost another random read. Neighbouring
    readers of one part are one stretch of edges, and sources, which a graph has checked, are read as unsigned: both as
    in :func:`dgcl.local_graph_kernels.take_rows`.
    """
    one = mask.dtype.type(1)
    i = 0
    while i < readers.size:
        v = readers[i]
        owner, start = part[v], indptr[v]
        i += 1
        while i < readers.size and readers[i] == v + 1 and part[v + 1] == owner:
            v += 1
            i += 1
        bit = one << mask.dtype.type(owner & 63)
        for u in indices[start : indptr[v + 1]]:
            mask[np.uint64(u)] |= bit


@njit(cache=True, nogil=True)
def clear_owners(masks: NDArray[Any], part: NDArray[np.int32]) -> int:
    """Clear each owner's bit in the masks (W, N); return how many vertices are left with a reader."""
    one = masks.dtype.type(1)
    boundary = 0
    for v in range(part.size):
        masks[part[v] >> 6, v] &= ~(one << masks.dtype.type(part[v] & 63))
        for w in range(masks.shape[0]):
            if masks[w, v] != 0:
                boundary += 1
                break
    return boundary


@njit(cache=True, nogil=True)
def number_classes(
    masks: NDArray[Any], part: NDArray[np.int32], boundary: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
    """Number the distinct (owner, mask) pairs of boundary vertices in order of first appearance.

    Returns:
        vertices (B,) ascending, the class number of each (B,), and of each class its owner (C,) and mask (C,
        W).
    """
    words = masks.shape[0]
    vertices = np.empty(boundary, np.int64)
    numbers = np.empty(boundary, np.int32)
    capacity = min(boundary, 1024)
    owners = np.empty(capacity, np.int32)
    dests = np.empty((capacity, words), np.uint64)
    hashes = np.empty(capacity, np.uint64)
    table = np.full(4096, -1, np.int32)  # open addressing, at most half full
    num_classes = 0
    filled = 0
    row = np.empty(words, np.uint64)
    for v in range(part.size):
        union = np.uint64(0)
        for w in range(words):
            row[w] = masks[w, v]
            union |= row[w]
        if union == 0:
            continue
        mixed = np.uint64(part[v] + 1)
        for w in range(words):
            mixed = _mix(mixed ^ row[w])
        slot = np.int64(mixed & np.uint64(table.size - 1))
        while True:
            c = table[slot]
            if c < 0 or (hashes[c] == mixed and owners[c] == part[v] and _same(dests[c], row)):
                break
            slot = (slot + 1) & (table.size - 1)
        if c < 0:
            c = num_classes
            if c == capacity:
                capacity = min(boundary, 2 * capacity)
                owners = _grown(owners, capacity)
                hashes = _grown(hashes, capacity)
                dests = _grown(dests.reshape(-1), capacity * words).reshape(capacity, words)
            owners[c] = part[v]
            hashes[c] = mixed
            dests[c] = row
            table[slot] = c
            num_classes += 1
            if 2 * num_classes > table.size:
                table = _rehash(hashes[:num_classes], 4 * table.size)
        vertices[filled] = v
        numbers[filled] = c
        filled += 1
    return vertices, numbers, owners[:num_classes], dests[:num_classes]


@njit(cache=True, nogil=True)
def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return a longer array that begins with `array`."""
    longer = np.empty(size, array.dtype)
    longer[: array.size] = array
    return longer


@njit(cache=True, nogil=True)
def _rehash(hashes: NDArray[np.uint64], size: int) -> NDArray[np.int32]:
    """Return a table of `size` slots that holds the classes so far."""
    table = np.full(size, -1, np.int32)
    for c in range(hashes.size):
        slot = np.int64(hashes[c] & np.uint64(size - 1))
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
def _same(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> bool:
    """Tell whether two masks are equal."""
    for w in range(a.size):  # noqa: SIM110 (numba does not compile all() of a generator)
        if a[w] != b[w]:
            return False
    return True


@njit(cache=True, nogil=True)
def sort_classes(owners: NDArray[np.int32], dests: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the class numbers ordered by (owner, mask as an integer): by owner, then a merge sort for each.

    Masks of several words are compared by one 64-bit key first; see :func:`_key`.
    """
    num_classes, words = dests.shape
    num_owners = (owners.max() if num_classes else -1) + 1
    starts = np.zeros(num_owners + 1, np.int64)
    for c in range(num_classes):
        starts[owners[c] + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(num_classes, np.int64)
    keys = np.empty(num_classes, np.uint64)
    cursor = starts[:-1].copy()
    for c in range(num_classes):
        k = cursor[owners[c]]
        cursor[owners[c]] = k + 1
        order[k] = c
        keys[k] = dests[c, 0] if words == 1 else _key(dests[c])
    spare_order, spare_keys = np.empty_like(order), np.empty_like(keys)
    for owner in range(num_owners):
        start, stop = starts[owner], starts[owner + 1]
        _merge_sort(
            keys[start:stop], order[start:stop], spare_keys[start:stop], spare_order[start:stop], dests
        )
    return order


@njit(cache=True, nogil=True)
def _merge_sort(
    keys: NDArray[np.uint64],
    order: NDArray[np.int64],
    spare_keys: NDArray[np.uint64],
    spare_order: NDArray[np.int64],
    dests: NDArray[np.uint64],
) -> None:
    """Sort `order` in place by key, and by the whole mask where keys are equal; from the bottom up."""
    size = order.size
    a, a_order, b, b_order = keys, order, spare_keys, spare_order
    run = 1
    swapped = False
    while run < size:
        for low in range(0, size, 2 * run):
            mid, high = min(low + run, size), min(low + 2 * run, size)
            i, j = low, mid
            for k in range(low, high):
                if i < mid and j < high:
                    take_left = a[i] < a[j] or (
                        a[i] == a[j] and not _less(dests[a_order[j]], dests[a_order[i]])
                    )
                else:
                    take_left = i < mid
                if take_left:
                    b[k], b_order[k] = a[i], a_order[i]
                    i += 1
                else:
                    b[k], b_order[k] = a[j], a_order[j]
                    j += 1
        a, a_order, b, b_order = b, b_order, a, a_order
        swapped = not swapped
        run *= 2
    if swapped:
        order[:] = spare_order


@njit(cache=True, nogil=True)
def _key(mask: NDArray[np.uint64]) -> np.uint64:
    """Return the four highest set bits of a mask, each as position + 1 in 16 bits, highest first.

    To compare masks as integers is to compare their set bits from the highest down, so a smaller key means a
    smaller mask; only masks that share their four highest bits need a longer look.
    """
    key = np.uint64(0)
    found = 0
    for w in range(mask.size - 1, -1, -1):
        word = mask[w]
        while word != 0 and found < 4:
            bit = 63
            while (word >> np.uint64(bit)) & np.uint64(1) == 0:
                bit -= 1
            word ^= np.uint64(1) << np.uint64(bit)
            key = (key << np.uint64(16)) | np.uint64(64 * w + bit + 1)
            found += 1
        if found == 4:
            break
    return key << np.uint64(16 * (4 - found)) if found else key


@njit(cache=True, nogil=True, inline="always")
def _less(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> bool:
    """Compare two masks as integers."""
    for w in range(a.size - 1, -1, -1):
        if a[w] != b[w]:
            return bool(a[w] < b[w])
    return False


@njit(cache=True, nogil=True)
def group_vertices(
    vertices: NDArray[np.int64],
    numbers: NDArray[np.int32],
    rank: NDArray[np.int64],
    class_ptr: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the vertices class by class, ascending within one; fills `class_ptr`.

    Args:
        vertices: (B,) ascending.
        numbers: (B,) class number of each.
        rank: (C,) place of each class number in the order of the classes.
        class_ptr: (C + 1,) zeros.
    """
    for c in numbers:
        class_ptr[rank[c] + 1] += 1
    for c in range(rank.size):
        class_ptr[c + 1] += class_ptr[c]
    cursor = class_ptr[:-1].copy()
    grouped = np.empty_like(vertices)
    for i in range(vertices.size):
        c = rank[numbers[i]]
        grouped[cursor[c]] = vertices[i]
        cursor[c] += 1
    return grouped
