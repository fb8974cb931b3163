"""Compiled loop that fills a rank's tables of rows to send, and of arrivals to add, without a sort.

It walks the rank's items (rows that some rank wants) in ascending global id, so each transfer's rows ascend by id. A
tree's edges are listed parents first, so an item's local row at a sender is known when an edge that leaves it is
reached. Places are unsigned where there are many of them: a signed one might count from the end, which is looked at
every time.
Called by `compile`. Free to change while the rows of a transfer ascend by id, as sender and receiver both take for
granted, and arrivals are sorted by row, then by slot (`tests/dgcl/program/test_compile.py`).
"""

import numpy as np
from numba import uint64

from dgcl.kernels.compiled import compiled


@compiled
def fill_tables(
    row_of_item: np.ndarray,
    tree_of_item: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    transfers: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    num_rows: int,
    num_sent: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fill the tables of a rank.

    Args:
        row_of_item: Of the items that it owns and somebody wants, and of those that it receives, in ascending id: the
            local row; -1 of those that it receives, which is written.
        tree_of_item: Of the same items, the tree.
        edges: Of the trees those from or to the rank: ptr; per edge whether it leads to the rank, its transfer, and
            whether its head only passes the row on.
        transfers: Per transfer: rows needed at the receiver; first place in the sender's ``send_rows``; first slot in
            its arrival buffer; first halo and first relay row at the receiver.
        num_rows, num_sent: Local rows of the rank, relay rows included, and rows that it sends.

    Returns:
        ``send_rows``, ``arrival_rows`` and ``arrival_slots``.
    """
    edge_ptr, edge_comes, edge_transfer, edge_relay = edges
    transfer_halo, transfer_send, transfer_slot, transfer_halo_row, transfer_relay_row = transfers
    send_rows = np.empty(num_sent, np.int32)
    slot_of_send = np.empty(num_sent, np.int32)
    halo_next = np.zeros(len(transfer_halo), np.int64)
    relay_next = np.zeros(len(transfer_halo), np.int64)
    start = np.zeros(num_rows + 1, np.int64)  # of the arrivals for each local row, once they are added up
    for item in range(len(tree_of_item)):
        tree = uint64(tree_of_item[item])
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
            if edge_comes[edge]:
                row_of_item[item] = row
            else:
                send = uint64(transfer_send[transfer] + i)
                send_rows[send] = row_of_item[item]
                slot_of_send[send] = transfer_slot[transfer] + i
                start[uint64(row_of_item[item] + 1)] += 1

    start = np.cumsum(start)
    arrival_rows = np.full(num_sent, -1, np.int32)
    arrival_slots = np.empty(num_sent, np.int32)
    for each in range(num_sent):
        row, slot = send_rows[uint64(each)], slot_of_send[uint64(each)]
        place = start[uint64(row)]
        start[uint64(row)] = place + 1
        # Few arrivals per row: insert in order of slots.
        while place > 0:
            before = uint64(place - 1)
            if arrival_rows[before] != row or arrival_slots[before] <= slot:
                break
            arrival_rows[uint64(place)] = row
            arrival_slots[uint64(place)] = arrival_slots[before]
            place -= 1
        arrival_rows[uint64(place)] = row
        arrival_slots[uint64(place)] = slot
    return send_rows, arrival_rows, arrival_slots
