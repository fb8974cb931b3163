"""The linear passes of :mod:`dgcl.program`, compiled: one walk over the items in ascending global id.

Walking in ascending id makes every transfer's rows ascend by id without a sort; a tree's edges are listed
parents first, so an item's local row at a sender is known when an edge that leaves it is reached.

Places are unsigned where there are many of them: a signed one might count from the end, which is looked at every time.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from dgcl.kernels.compiled import compiled


@compiled
def assign_trees(
    num_items: int,
    class_ptr: np.ndarray,
    items: np.ndarray,
    tree_class: np.ndarray,
    tree_count: np.ndarray,
) -> np.ndarray:
    """``(N,)`` int32: the tree that carries each item's row, -1 where nobody wants it.

    The items of a class, in ascending global id, go to its trees in the order in which trees are listed.
    """
    tree_of_item = np.full(num_items, -1, np.int32)
    position = class_ptr[:-1].copy()
    for tree in range(len(tree_class)):
        start = position[tree_class[tree]]
        for i in range(start, start + tree_count[tree]):
            tree_of_item[items[i]] = tree
        position[tree_class[tree]] = start + tree_count[tree]
    return tree_of_item


@compiled
def parent_edges(edge_ptr: np.ndarray, edge_src: np.ndarray, edge_dst: np.ndarray) -> np.ndarray:
    """``(E,)`` int64: the edge that enters each edge's sender, -1 at the root."""
    parent = np.full(len(edge_src), -1, np.int64)
    for tree in range(len(edge_ptr) - 1):
        for edge in range(edge_ptr[tree], edge_ptr[tree + 1]):
            for before in range(edge_ptr[tree], edge):
                if edge_dst[before] == edge_src[edge]:
                    parent[edge] = before
                    break
    return parent


@compiled
def fill_tables(
    owner: np.ndarray,
    owned_index: np.ndarray,
    tree_of_item: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    transfers: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    num_owned: np.ndarray,
    num_received: np.ndarray,
    sent_base: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fill the tables of all ranks, one behind the other.

    Args:
        owner, owned_index, tree_of_item: Per item: its owner, its place among the owner's rows, its tree
            or -1.
        edges: Of the trees: ptr, src, dst; per edge its transfer, and whether its head only passes the row
            on.
        transfers: Per transfer: rows needed at the receiver; first place in the concatenated ``send_rows``;
            first slot in the sender's arrival buffer; first place in the concatenated ``halo_ids``; first
            halo and first relay row at the receiver.
        num_owned, num_received: Per rank.
        sent_base: ``(P + 1,)`` where each rank's sends start.

    Returns:
        ``send_rows`` (all sends), ``halo_ids`` (all halo rows), ``arrival_rows`` and ``arrival_slots`` (all
        fold arrivals, as many as rows sent; those of a rank start at ``sent_base[rank]``, sorted by local
        row, then slot).
    """
    edge_ptr, edge_src, edge_dst, edge_transfer, edge_relay = edges
    transfer_halo, transfer_send, transfer_slot, transfer_halo_id, transfer_halo_row, transfer_relay_row = (
        transfers
    )
    num_sent = sent_base[-1]
    send_rows = np.empty(num_sent, np.int32)
    num_halo_rows = 0
    for transfer in range(len(transfer_halo)):
        num_halo_rows += transfer_halo[transfer]
    halo_ids = np.empty(num_halo_rows, np.int64)
    halo_next = np.zeros(len(transfer_halo), np.int64)
    relay_next = np.zeros(len(transfer_halo), np.int64)
    world_size = len(num_owned)
    row_at = np.empty(world_size, np.int64)

    # Arrivals of the fold at a rank, counted per local row of that rank, then placed.
    row_base = np.zeros(world_size + 1, np.int64)
    for rank in range(world_size):
        row_base[rank + 1] = row_base[rank] + num_owned[rank] + num_received[rank]
    arrivals_of_row = np.zeros(row_base[-1] + 1, np.int32)
    slot_of_send = np.empty(num_sent, np.int32)

    for item in range(len(owner)):
        if tree_of_item[item] < 0:
            continue
        tree = uint64(tree_of_item[item])
        row_at[uint64(owner[item])] = owned_index[item]
        for each in range(edge_ptr[tree], edge_ptr[tree + uint64(1)]):
            edge = uint64(each)
            transfer = uint64(edge_transfer[edge])
            if edge_relay[edge]:
                i = relay_next[transfer]
                relay_next[transfer] = i + 1
                row = transfer_relay_row[transfer] + i
                i += transfer_halo[transfer]
            else:
                i = halo_next[transfer]
                halo_next[transfer] = i + 1
                row = transfer_halo_row[transfer] + i
                halo_ids[uint64(transfer_halo_id[transfer] + i)] = item
            sender = uint64(edge_src[edge])
            send = uint64(transfer_send[transfer] + i)
            send_rows[send] = row_at[sender]
            slot_of_send[send] = transfer_slot[transfer] + i
            arrivals_of_row[uint64(row_base[sender] + row_at[sender])] += 1
            row_at[uint64(edge_dst[edge])] = row

    arrival_rows = np.full(num_sent, -1, np.int32)
    arrival_slots = np.empty(num_sent, np.int32)
    for rank in range(world_size):
        first_row, first = row_base[rank], sent_base[rank]
        start = np.empty(row_base[rank + 1] - first_row, np.int64)
        position = first
        for local in range(len(start)):
            start[local] = position
            position += arrivals_of_row[uint64(first_row + local)]
        for each in range(first, sent_base[rank + 1]):
            row, slot = send_rows[uint64(each)], slot_of_send[uint64(each)]
            place = start[uint64(row)]
            start[uint64(row)] = place + 1
            # Few arrivals per row: insert in order of slots.
            while place > first:
                before = uint64(place - 1)
                if arrival_rows[before] != row or arrival_slots[before] <= slot:
                    break
                arrival_rows[uint64(place)] = row
                arrival_slots[uint64(place)] = arrival_slots[before]
                place -= 1
            arrival_rows[uint64(place)] = row
            arrival_slots[uint64(place)] = slot
    return send_rows, halo_ids, arrival_rows, arrival_slots
