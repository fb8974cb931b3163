"""From a plan to the programs of all ranks; :mod:`dgcl.program.model` says how rows are numbered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgcl.planner.plan import Plan, Trees
from dgcl.planner.relation import Relation
from dgcl.planner.verify.carried import carried_trees, relay_edges
from dgcl.program.model import Program, Schedule
from dgcl.program.storage import Blocks, place
from dgcl.relation.classes import VertexClasses

_MAX_ROWS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class _Transfers:
    """All (stage, sender, receiver) of a plan, sorted by (receiver, stage, sender).

    ``num_rows[:, 0]`` are needed at the receiver, ``num_rows[:, 1]`` only passed on; ``edge_transfer[e]`` is
    the transfer of tree edge e, ``edge_relay[e]`` whether its head only passes the row on.
    """

    stage: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    num_rows: np.ndarray
    edge_transfer: np.ndarray
    edge_relay: np.ndarray

    def __len__(self) -> int:
        return len(self.stage)


def compile_programs(plan: Plan, classes: VertexClasses, part: np.ndarray) -> list[Program]:
    """Compile a verified plan into one program per rank.

    Args:
        plan: A plan for ``classes.relation``.
        classes: The vertices behind the plan's classes.
        part: ``(N,)`` owner of every vertex.

    Complexity: linear in the vertices plus the rows sent.

    Raises:
        ValueError: A rank would hold 2**31 rows or more.
    """
    from dgcl.program.tables import deal_vertices, fill_tables

    trees, world_size = carried_trees(plan), plan.relation.world_size
    transfers = _find_transfers(plan.relation, trees)
    num_owned = np.bincount(part, minlength=world_size).astype(np.int64)
    num_halo, num_passed = (
        np.bincount(transfers.receiver, weights=transfers.num_rows[:, kind], minlength=world_size).astype(
            np.int64
        )
        for kind in (0, 1)
    )
    if int((num_owned + num_halo + num_passed).max(initial=0)) > _MAX_ROWS:
        raise ValueError(f"part: a rank would hold more than {_MAX_ROWS} rows; use more ranks")

    # Where each transfer's rows land at the receiver, among its halo rows and among its relay rows (those have a
    # number each, for the fold, and a place in memory)...
    brings, sends_on = _feeding_pairs(trees, transfers)
    halo_start = _starts_within(transfers.receiver, transfers.num_rows[:, 0])
    passed_start = _starts_within(transfers.receiver, transfers.num_rows[:, 1])
    relay_start, num_relay = place(_relay_blocks(transfers, brings, sends_on), world_size)
    # ... where they lie among all that its sender sends, and, when they come back, among the sender's
    # arrivals (in order, and in memory).
    total = transfers.num_rows.sum(axis=1)
    send_start = _ordered_starts(transfers.sender, transfers.stage, transfers.receiver, total)
    slot_start = _ordered_starts(transfers.sender, -transfers.stage, transfers.receiver, total)
    place_start, num_arrivals = place(
        _arrival_blocks(plan.relation, trees, transfers, brings, sends_on), world_size
    )
    num_sent = np.bincount(transfers.sender, weights=total, minlength=world_size).astype(np.int64)
    sent_base = np.concatenate(([0], np.cumsum(num_sent)))
    halo_base = np.concatenate(([0], np.cumsum(num_halo)))
    halo_row = num_owned[transfers.receiver] + halo_start
    passed_row = (num_owned + num_halo)[transfers.receiver] + passed_start

    owned_index, owned_ids = _number_owned(part, num_owned)
    send_rows, halo_ids, arrival_rows, arrival_slots = fill_tables(
        part,
        owned_index,
        deal_vertices(len(part), classes.class_ptr, classes.vertices, trees.tree_class, trees.tree_count),
        (trees.edge_ptr, trees.edge_src, trees.edge_dst, transfers.edge_transfer, transfers.edge_relay),
        (
            transfers.num_rows[:, 0].copy(),
            sent_base[transfers.sender] + send_start,
            slot_start,
            halo_base[transfers.receiver] + halo_start,
            halo_row,
            passed_row,
        ),
        num_owned,
        num_halo + num_passed,
        sent_base,
    )

    def schedule(rank: int, fold: bool) -> Schedule:
        sign = -1 if fold else 1
        outgoing, incoming = (
            np.flatnonzero(end == rank)
            for end in (transfers.sender, transfers.receiver)[:: -1 if fold else 1]
        )
        to_peer, from_peer = (transfers.receiver, transfers.sender)[::sign]
        outgoing = outgoing[np.lexsort((to_peer[outgoing], sign * transfers.stage[outgoing]))]
        incoming = incoming[np.lexsort((from_peer[incoming], sign * transfers.stage[incoming]))]
        num_stages = int(transfers.stage.max()) + 1 if len(transfers) else 0
        stage = (num_stages - 1 - transfers.stage if fold else transfers.stage).astype(np.int32)
        needed = transfers.num_rows[:, 0]
        if fold:
            taken_from = np.stack((halo_row, passed_row), axis=1)
            put_at = np.stack((place_start, place_start + needed), axis=1)
        else:
            taken_from = np.stack((send_start, send_start + needed), axis=1)
            put_at = np.stack((halo_row, relay_start), axis=1)
        waiting, awaited = (brings, sends_on) if fold else (sends_on, brings)
        pointer, deps = _dependencies(outgoing, incoming, waiting, awaited, len(transfers))
        return Schedule(
            send_peer=to_peer[outgoing],
            send_stage=stage[outgoing],
            send_count=transfers.num_rows[outgoing],
            send_from=taken_from[outgoing],
            send_to=put_at[outgoing],
            send_dep_ptr=pointer,
            send_deps=deps,
            recv_peer=from_peer[incoming],
            recv_stage=stage[incoming],
            recv_count=transfers.num_rows[incoming],
            recv_to=put_at[incoming],
        )

    programs = []
    for rank in range(world_size):
        sent = slice(sent_base[rank], sent_base[rank + 1])
        first_relay = int(num_owned[rank] + num_halo[rank])
        come, gone = (np.flatnonzero(end == rank) for end in (transfers.receiver, transfers.sender))
        rows, slots = send_rows[sent].copy(), arrival_slots[sent].copy()
        if (passed_start[come] != relay_start[come]).any():
            places = _places(passed_start[come], relay_start[come], transfers.num_rows[come, 1])
            passing = rows >= first_relay
            rows[passing] = first_relay + places[rows[passing] - first_relay]
        if (slot_start[gone] != place_start[gone]).any():
            slots = _places(slot_start[gone], place_start[gone], total[gone])[slots]
            slots = slots[np.lexsort((slots, arrival_rows[sent]))].astype(np.int32)
        programs.append(
            Program(
                rank=rank,
                world_size=world_size,
                num_stages=int(transfers.stage.max()) + 1 if len(transfers) else 0,
                num_owned=int(num_owned[rank]),
                num_halo=int(num_halo[rank]),
                num_relay=int(num_relay[rank]),
                num_passed=int(num_passed[rank]),
                num_arrivals=int(num_arrivals[rank]),
                owned_ids=owned_ids[rank],
                halo_ids=halo_ids[halo_base[rank] : halo_base[rank + 1]].copy(),
                expand=schedule(rank, fold=False),
                fold=schedule(rank, fold=True),
                send_rows=rows,
                arrival_rows=arrival_rows[sent].copy(),
                arrival_slots=slots,
            )
        )
    return programs


def _find_transfers(relation: Relation, trees: Trees) -> _Transfers:
    world_size = relation.world_size
    num_stages = int(trees.edge_stage.max(initial=0)) + 1
    edge_dst = trees.edge_dst.astype(np.int64)
    edge_relay = relay_edges(relation, trees)
    keys, edge_transfer = np.unique(
        (edge_dst * num_stages + trees.edge_stage) * world_size + trees.edge_src, return_inverse=True
    )
    num_rows = np.zeros((len(keys), 2), np.int64)
    np.add.at(num_rows, (edge_transfer, edge_relay.astype(np.intp)), trees.edge_count())
    return _Transfers(
        stage=(keys // world_size % num_stages).astype(np.int32),
        sender=(keys % world_size).astype(np.int32),
        receiver=(keys // world_size // num_stages).astype(np.int32),
        num_rows=num_rows,
        edge_transfer=edge_transfer.astype(np.int64),
        edge_relay=edge_relay,
    )


def _starts_within(group: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Exclusive running sums of ``size`` that start anew with each run of equal ``group`` (sorted)."""
    starts = np.cumsum(size) - size
    return (starts - starts[np.searchsorted(group, group)]).astype(np.int64)


def _ordered_starts(group: np.ndarray, major: np.ndarray, minor: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Exclusive running sums of ``size`` within each ``group``, in the order (major, minor)."""
    order = np.lexsort((minor, major, group))
    starts = np.empty(len(size), np.int64)
    starts[order] = _starts_within(group[order], size[order])
    return starts


def _number_owned(part: np.ndarray, num_owned: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Each vertex's place among its owner's rows, and each rank's vertices in ascending global id."""
    narrow = part.astype(np.int16 if len(num_owned) < 2**15 else np.int32)  # numpy sorts 16 bits by radix
    order = np.argsort(narrow, kind="stable")
    index = np.empty(len(part), np.int32)
    owned_ids = []
    for end, size in zip(np.cumsum(num_owned), num_owned, strict=True):
        owned_ids.append(order[end - size : end].astype(np.int64))
        index[owned_ids[-1]] = np.arange(size, dtype=np.int32)
    return index, owned_ids


def _feeding_pairs(trees: Trees, transfers: _Transfers) -> tuple[np.ndarray, np.ndarray]:
    """Distinct (transfer that brings a row to a rank, transfer that sends the row on from there)."""
    from dgcl.program.tables import parent_edges

    parent = parent_edges(trees.edge_ptr, trees.edge_src, trees.edge_dst)
    inner = np.flatnonzero(parent >= 0)
    size = max(len(transfers), 1)
    pairs = np.unique(transfers.edge_transfer[parent[inner]] * size + transfers.edge_transfer[inner])
    return pairs // size, pairs % size


def _relay_blocks(transfers: _Transfers, brings: np.ndarray, sends_on: np.ndarray) -> Blocks:
    """What transfers leave in the receivers' relay memory."""
    num_rows, kept = transfers.num_rows[:, 1], np.zeros(len(transfers), np.bool_)
    return Blocks(transfers.stage, transfers.sender, transfers.receiver, num_rows, kept, brings, sends_on)


def _arrival_blocks(
    relation: Relation, trees: Trees, transfers: _Transfers, brings: np.ndarray, sends_on: np.ndarray
) -> Blocks:
    """What transfers leave in the arrival buffers on their way back; sums for owned rows stay there."""
    root = relation.source[trees.tree_class[trees.edge_tree()]] == trees.edge_src
    kept = np.zeros(len(transfers), np.bool_)
    kept[transfers.edge_transfer[root]] = True
    stage = transfers.stage.max(initial=0) - transfers.stage
    num_rows = transfers.num_rows.sum(axis=1)
    return Blocks(stage, transfers.receiver, transfers.sender, num_rows, kept, sends_on, brings)


def _places(number: np.ndarray, start: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The place of each row, for transfers whose rows are numbered from ``number`` on and lie from ``start`` on."""
    order = np.argsort(number, kind="stable")
    order = order[size[order] > 0]
    return np.repeat((start - number)[order], size[order]) + np.arange(int(size.sum()))


def _dependencies(
    tasks: np.ndarray, others: np.ndarray, waiting: np.ndarray, awaited: np.ndarray, num_transfers: int
) -> tuple[np.ndarray, np.ndarray]:
    """CSR: for each of ``tasks``, the places in ``others`` of the transfers that it waits for."""
    place_task = np.full(num_transfers, -1, np.int64)
    place_other = np.full(num_transfers, -1, np.int64)
    place_task[tasks] = np.arange(len(tasks))
    place_other[others] = np.arange(len(others))
    mine = (place_task[waiting] >= 0) & (place_other[awaited] >= 0)
    task, other = place_task[waiting[mine]], place_other[awaited[mine]]
    pointer = np.concatenate(([0], np.cumsum(np.bincount(task, minlength=len(tasks))))).astype(np.int64)
    return pointer, other[np.lexsort((other, task))].astype(np.int32)
