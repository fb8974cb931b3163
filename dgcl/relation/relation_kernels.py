"""Compiled loops that mark who wants which item, group items with equal masks, and divide edges.

A mask has a bit for each rank. Masks of all N items are kept word by word, (W, N): the pass over the edges then writes
at random into one word's N entries only, which caches can hold, and everything after it reads front to back. Loaded on
first use (numba).
Called by `demand`, `classes`, `local_graph`, `dgcl/grid/items`, `dgcl/aggregation/aggregator` and others. Free to
change while readers are those of sets (`tests/dgcl/relation/test_demand.py`), and classes those of the definition,
also where there are many (`tests/dgcl/relation/test_classes.py`).
"""

import itertools
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dgcl.kernels.compiled import compiled
from dgcl.planner.array_types import Int32Array, Int64Array, MaskArray


@compiled
def mark_readers(
    indptr: Int64Array,
    indices: NDArray[Any],
    readers: Int64Array,
    part: Int32Array,
    mask: NDArray[Any],
) -> None:
    """Set the bit of part[v] in mask[u] for each v of `readers` and each u that v reads.

    `mask` is one word, (N,). The owner's own bit is set as well: to test for it at every edge would cost another
    random read. Neighbouring readers of one part are one stretch of edges, and sources, which a graph has checked,
    are read as unsigned: a signed one might count from the end, which is looked at every time.
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


@compiled
def mark_pairs(items: NDArray[Any], ranks: NDArray[Any], owner: Int32Array, masks: NDArray[Any]) -> None:
    """Set the bit of each of `ranks` in the mask, (W, N), of its item, unless it is the owner."""
    one = masks.dtype.type(1)
    for pair in range(items.size):
        item, rank = np.uint64(items[pair]), ranks[pair]
        if owner[item] != rank:
            masks[rank >> 6, item] |= one << masks.dtype.type(rank & 63)


@compiled
def gather(values: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """``values[ids]``, all ids in range: with ids of 32 bits in a fifth of numpy's time."""
    result = np.empty(ids.size, values.dtype)
    for e in range(ids.size):
        result[e] = values[np.uint64(ids[e])]
    return result


@compiled
def split_edges(indptr: Int64Array, tails: Int32Array, num_owned: int) -> tuple[Any, Any]:
    """Divide the edges of some heads, those of the i-th at ``indptr[i]:indptr[i + 1]``, in one pass.

    Returns:
        Of the edges from owned rows, and of those from halo rows, heads, tails, which count from 0 in the halo too, and
        places in `tails`.
    """
    num_edges, own, halo = indptr[-1] - indptr[0], 0, 0
    for e in range(indptr[0], indptr[-1]):
        halo += tails[e] < num_owned
    heads, rows = np.empty(num_edges, np.int32), np.empty(num_edges, np.int32)
    places, first = np.empty(num_edges, np.int64), halo
    for head in range(indptr.size - 1):
        for e in range(indptr[head], indptr[head + 1]):
            row = tails[e]
            if row < num_owned:
                k = own
                own += 1
            else:
                k = halo
                halo += 1
                row -= num_owned
            heads[k], rows[k], places[k] = head, row, e
    return (heads[:first], rows[:first], places[:first]), (heads[first:], rows[first:], places[first:])


@compiled
def clear_owners(masks: NDArray[Any], owner: Int32Array) -> None:
    """Clear each owner's bit in the masks (W, N)."""
    one = masks.dtype.type(1)
    for v in range(owner.size):
        masks[owner[v] >> 6, v] &= ~(one << masks.dtype.type(owner[v] & 63))


@compiled
def wanted_by_owner(
    masks: NDArray[Any], owner: Int32Array, world_size: int
) -> tuple[Int64Array, MaskArray, Int64Array]:
    """Bring the wanted items of an owner together, so that whatever looks at them next fits the caches.

    Returns:
        items (B,), by owner, ascending for each; their masks (B, W); where each owner's begin (P + 1,).
    """
    words = masks.shape[0]
    owner_ptr = np.zeros(world_size + 1, np.int64)
    for v in range(owner.size):
        for w in range(words):
            if masks[w, v] != 0:
                owner_ptr[owner[v] + 1] += 1
                break
    owner_ptr = np.cumsum(owner_ptr)
    place = owner_ptr[:-1].copy()
    items = np.empty(owner_ptr[-1], np.int64)
    dests = np.empty((owner_ptr[-1], words), np.uint64)
    for v in range(owner.size):
        for w in range(words):
            if masks[w, v] != 0:
                i = place[owner[v]]
                place[owner[v]] = i + 1
                items[i] = v
                for u in range(words):
                    dests[i, u] = masks[u, v]
                break
    return items, dests, owner_ptr


@compiled
def number_classes(dests: MaskArray, owner_ptr: Int64Array) -> tuple[Int32Array, Int64Array, Int64Array]:
    """Number the distinct masks of each owner's items, owner by owner, in order of first appearance.

    Args:
        dests, owner_ptr: of :func:`wanted_by_owner`.

    Returns:
        the class number of each item (B,), the first item of each class (C,), and where each owner's classes
        begin (P + 1,).
    """
    numbers = np.empty(dests.shape[0], np.int32)
    first = np.empty(dests.shape[0], np.int64)
    class_ptr = np.zeros_like(owner_ptr)
    most = 0
    for owner in range(owner_ptr.size - 1):
        most = max(most, owner_ptr[owner + 1] - owner_ptr[owner])
    table = np.empty(_table_size(most), np.int32)  # open addressing, at most half full
    num_classes = 0
    for owner in range(owner_ptr.size - 1):
        low, high = owner_ptr[owner], owner_ptr[owner + 1]
        size = _table_size(high - low)
        table[:size] = -1
        for i in range(low, high):
            mixed = np.uint64(1)
            for w in range(dests.shape[1]):
                mixed = _mix(mixed ^ dests[i, w])
            slot = np.int64(mixed & np.uint64(size - 1))
            while table[slot] >= 0 and not _same(dests[first[table[slot]]], dests[i]):
                slot = (slot + 1) & (size - 1)
            if table[slot] < 0:
                table[slot] = num_classes
                first[num_classes] = i
                num_classes += 1
            numbers[i] = table[slot]
        class_ptr[owner + 1] = num_classes
    return numbers, first[:num_classes].copy(), class_ptr


@compiled(entry=False)
def _table_size(num: int) -> int:
    """Return a power of two that is at least twice `num`."""
    size = 4
    while size < 2 * num:
        size *= 2
    return size


@njit(nogil=True, inline="always")
def _mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, inline="always")
def _same(a: MaskArray, b: MaskArray) -> bool:
    """Tell whether two masks are equal."""
    for w in range(a.size):  # noqa: SIM110 (numba does not compile all() of a generator)
        if a[w] != b[w]:
            return False
    return True


def sort_classes(dests: MaskArray, class_ptr: Int64Array) -> Int64Array:
    """Return the class numbers ordered by (owner, mask as an integer).

    Args:
        dests: (C, W) masks, owner by owner, different for each. class_ptr: (P + 1,) where each owner's begin.
    """
    # From the highest byte down, masks of several words compare as texts do.
    keys = (
        dests[:, 0]
        if dests.shape[1] == 1
        else dests[:, ::-1].astype(">u8", order="C").view(f"S{8 * dests.shape[1]}")[:, 0]
    )
    order = np.empty(dests.shape[0], np.int64)
    for low, high in itertools.pairwise(class_ptr.tolist()):
        order[low:high] = low + np.argsort(keys[low:high])
    return order


@compiled
def group_items(
    items: Int64Array,
    numbers: Int32Array,
    rank: Int64Array,
    class_ptr: Int64Array,
) -> Int64Array:
    """Return the items class by class, ascending within one; fills `class_ptr`.

    Args:
        items: (B,), those of a class ascending.
        numbers: (B,) class number of each.
        rank: (C,) place of each class number in the order of the classes.
        class_ptr: (C + 1,) zeros.
    """
    for c in numbers:
        class_ptr[rank[c] + 1] += 1
    for c in range(rank.size):
        class_ptr[c + 1] += class_ptr[c]
    cursor = class_ptr[:-1].copy()
    grouped = np.empty_like(items)
    for i in range(items.size):
        c = rank[numbers[i]]
        grouped[cursor[c]] = items[i]
        cursor[c] += 1
    return grouped
