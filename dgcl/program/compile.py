"""From a plan to the programs of all ranks; :mod:`dgcl.program.model` says how rows are numbered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.planner.relays import relay_edges, without_idle_relays
from dgcl.planner.trees import Trees
from dgcl.program.model import Program, Schedule
from dgcl.relation.classes import ItemClasses

_MAX_ROWS = 2**31 - 1


def compile_programs(plan: Plan, classes: ItemClasses) -> list[Program]:
    """Compile a verified plan into one program per rank.

    Args:
        plan: A plan for ``classes.relation``.
        classes: The items behind the plan's classes, and the owner of every item.

    Complexity: linear in the items plus the rows sent.

    Raises:
        ValueError: A rank would hold 2**31 rows or more.
    """
    return compile_trees(without_idle_relays(plan), classes)


def compile_trees(trees: Trees, classes: ItemClasses) -> list[Program]:
    """As :func:`compile_programs`, from a plan's trees, without idle relays, alone."""
    from dgcl.program.tables import assign_trees, fill_tables, parent_edges

    relation, owner, world_size = classes.relation, classes.owner, classes.relation.world_size
    transfers = _find_transfers(relation, trees)
    rows = _number_rows(transfers, np.bincount(owner, minlength=world_size).astype(np.int64))
    if int((rows.num_owned + rows.num_halo + rows.num_relay).max(initial=0)) > _MAX_ROWS:
        raise ValueError(f"part: a rank would hold more than {_MAX_ROWS} rows; use more ranks")

    feeds = _feeding_pairs(parent_edges(trees.edge_ptr, trees.edge_src, trees.edge_dst), transfers)
    owned_index, owned_ids = _number_owned(owner, rows.num_owned)
    send_rows, halo_ids, arrival_rows, arrival_slots = fill_tables(
        owner,
        owned_index,
        assign_trees(len(owner), classes.class_ptr, classes.items, trees.tree_class, trees.tree_count),
        (trees.edge_ptr, trees.edge_src, trees.edge_dst, transfers.edge_transfer, transfers.edge_relay),
        (
            transfers.num_rows[:, 0].copy(),
            rows.sent_base[transfers.sender] + rows.send_start,
            rows.slot_start,
            rows.halo_base[transfers.receiver] + rows.halo_row - rows.num_owned[transfers.receiver],
            rows.halo_row,
            rows.relay_row,
        ),
        rows.num_owned,
        rows.num_halo + rows.num_relay,
        rows.sent_base,
    )
    programs = []
    place_of_item = _place_items(classes)
    for rank in range(world_size):
        sent = slice(rows.sent_base[rank], rows.sent_base[rank + 1])
        halo = halo_ids[rows.halo_base[rank] : rows.halo_base[rank + 1]].copy()
        relay = np.full(rows.num_relay[rank], -1, place_of_item.dtype)
        programs.append(
            Program(
                rank=rank,
                world_size=world_size,
                num_stages=transfers.num_stages,
                num_owned=int(rows.num_owned[rank]),
                num_halo=int(rows.num_halo[rank]),
                owned_ids=owned_ids[rank],
                halo_ids=halo,
                expand=_expand_schedule(rank, transfers, rows, feeds),
                fold=_fold_schedule(rank, transfers, rows, feeds),
                send_rows=send_rows[sent].copy(),
                arrival_rows=arrival_rows[sent].copy(),
                arrival_slots=arrival_slots[sent].copy(),
                places=np.concatenate((place_of_item[owned_ids[rank]], place_of_item[halo], relay)),
            )
        )
    _place_relay_rows(programs)
    return programs


def schedules(
    rank: int, relation: Relation, trees: Trees, num_owned: np.ndarray
) -> tuple[int, Schedule, Schedule]:
    """What one rank sends and receives, without the rows by number: stages, expand, fold.

    Args:
        rank: The rank.
        relation, trees: What is delivered, and how, without idle relays.
        num_owned: ``(P,)`` items that each rank owns.
    """
    from dgcl.program.tables import parent_edges

    transfers = _find_transfers(relation, trees)
    rows = _number_rows(transfers, num_owned)
    feeds = _feeding_pairs(parent_edges(trees.edge_ptr, trees.edge_src, trees.edge_dst), transfers)
    of_rank = rank, transfers, rows, feeds
    return transfers.num_stages, _expand_schedule(*of_rank), _fold_schedule(*of_rank)


def _place_items(classes: ItemClasses) -> np.ndarray:
    """``(N,)`` each item's number in the order (class, id); -1: nobody wants it."""
    number = len(classes.items)
    places = np.full(len(classes.owner), -1, np.int32 if number <= _MAX_ROWS else np.int64)
    places[classes.items] = np.arange(number)
    return places


def _place_relay_rows(programs: list[Program]) -> None:
    """Fill in the places of relay rows, stage by stage, from those of the ranks that send them."""
    relaying = sorted(
        (int(program.expand.send_stage[send]), program.rank, send)
        for program in programs
        for send in np.flatnonzero(program.expand.send_count[:, 1])
    )
    for _, rank, send in relaying:
        program, schedule = programs[rank], programs[rank].expand
        peer = programs[schedule.send_peer[send]]
        count, begin = schedule.send_count[send, 1], schedule.send_from[send, 1]
        first = peer.num_local + schedule.send_to[send, 1]
        assert program.places is not None
        assert peer.places is not None
        peer.places[first : first + count] = program.places[program.send_rows[begin : begin + count]]


@dataclass(frozen=True, eq=False)
class _Transfers:
    """All T transfers (stage, sender, receiver) of a plan, sorted by (receiver, stage, sender).

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

    @property
    def num_stages(self) -> int:
        return int(self.stage.max(initial=-1)) + 1


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


@dataclass(frozen=True, eq=False)
class _Rows:
    """Where rows lie: counts per rank, and first places per transfer.

    Attributes:
        num_owned, num_halo, num_relay: ``(P,)`` rows of each kind.
        sent_base, halo_base: ``(P + 1,)`` where each rank's sends, and halo rows, begin among those of all ranks.
        halo_row, relay_row: ``(T,)`` first local row at the receiver of what it needs, and of what it passes on.
        send_start: ``(T,)`` first place among all rows that the sender sends.
        slot_start: ``(T,)`` first place among the sender's arrivals, when the rows come back in the fold.
    """

    num_owned: np.ndarray
    num_halo: np.ndarray
    num_relay: np.ndarray
    sent_base: np.ndarray
    halo_base: np.ndarray
    halo_row: np.ndarray
    relay_row: np.ndarray
    send_start: np.ndarray
    slot_start: np.ndarray


def _number_rows(transfers: _Transfers, num_owned: np.ndarray) -> _Rows:
    world_size = len(num_owned)
    total = transfers.num_rows.sum(axis=1)

    def per_rank(rank_of: np.ndarray, size: np.ndarray) -> np.ndarray:
        return np.bincount(rank_of, weights=size, minlength=world_size).astype(np.int64)

    num_halo, num_relay = (per_rank(transfers.receiver, transfers.num_rows[:, kind]) for kind in (0, 1))
    halo_start, relay_start = (
        _starts_within(transfers.receiver, transfers.num_rows[:, kind]) for kind in (0, 1)
    )
    return _Rows(
        num_owned=num_owned,
        num_halo=num_halo,
        num_relay=num_relay,
        sent_base=np.concatenate(([0], np.cumsum(per_rank(transfers.sender, total)))),
        halo_base=np.concatenate(([0], np.cumsum(num_halo))),
        halo_row=num_owned[transfers.receiver] + halo_start,
        relay_row=(num_owned + num_halo)[transfers.receiver] + relay_start,
        send_start=_ordered_starts(transfers.sender, transfers.stage, transfers.receiver, total),
        slot_start=_ordered_starts(transfers.sender, -transfers.stage, transfers.receiver, total),
    )


def _expand_schedule(
    rank: int, transfers: _Transfers, rows: _Rows, feeds: tuple[np.ndarray, np.ndarray]
) -> Schedule:
    """What one rank sends and receives in an expand; ``feeds`` of :func:`_feeding_pairs`."""
    outgoing, incoming = (np.flatnonzero(end == rank) for end in (transfers.sender, transfers.receiver))
    outgoing = outgoing[np.lexsort((transfers.receiver[outgoing], transfers.stage[outgoing]))]
    incoming = incoming[np.lexsort((transfers.sender[incoming], transfers.stage[incoming]))]
    brings, sends_on = feeds
    first_relay = (rows.num_owned + rows.num_halo)[transfers.receiver]
    put_at = np.stack((rows.halo_row, rows.relay_row - first_relay), axis=1)
    taken_from = np.stack((rows.send_start, rows.send_start + transfers.num_rows[:, 0]), axis=1)
    pointer, deps = _dependencies(outgoing, incoming, sends_on, brings, len(transfers))
    return Schedule(
        send_peer=transfers.receiver[outgoing],
        send_stage=transfers.stage[outgoing],
        send_count=transfers.num_rows[outgoing],
        send_from=taken_from[outgoing],
        send_to=put_at[outgoing],
        send_dep_ptr=pointer,
        send_deps=deps,
        recv_peer=transfers.sender[incoming],
        recv_stage=transfers.stage[incoming],
        recv_count=transfers.num_rows[incoming],
        recv_to=put_at[incoming],
    )


def _fold_schedule(
    rank: int, transfers: _Transfers, rows: _Rows, feeds: tuple[np.ndarray, np.ndarray]
) -> Schedule:
    """The same transfers backwards: stages in reverse, sender and receiver swapped."""
    stage = transfers.num_stages - 1 - transfers.stage
    outgoing, incoming = (np.flatnonzero(end == rank) for end in (transfers.receiver, transfers.sender))
    outgoing = outgoing[np.lexsort((transfers.sender[outgoing], stage[outgoing]))]
    incoming = incoming[np.lexsort((transfers.receiver[incoming], stage[incoming]))]
    brings, sends_on = feeds
    put_at = np.stack((rows.slot_start, rows.slot_start + transfers.num_rows[:, 0]), axis=1)
    taken_from = np.stack((rows.halo_row, rows.relay_row), axis=1)
    pointer, deps = _dependencies(outgoing, incoming, brings, sends_on, len(transfers))
    return Schedule(
        send_peer=transfers.sender[outgoing],
        send_stage=stage[outgoing].astype(np.int32),
        send_count=transfers.num_rows[outgoing],
        send_from=taken_from[outgoing],
        send_to=put_at[outgoing],
        send_dep_ptr=pointer,
        send_deps=deps,
        recv_peer=transfers.receiver[incoming],
        recv_stage=stage[incoming].astype(np.int32),
        recv_count=transfers.num_rows[incoming],
        recv_to=put_at[incoming],
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


def _number_owned(owner: np.ndarray, num_owned: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Each item's place among its owner's rows, and each rank's items in ascending global id."""
    narrow = owner.astype(np.int16 if len(num_owned) < 2**15 else np.int32)  # numpy sorts 16 bits by radix
    order = np.argsort(narrow, kind="stable")
    index = np.empty(len(owner), np.int32)
    owned_ids = []
    for end, size in zip(np.cumsum(num_owned), num_owned, strict=True):
        owned_ids.append(order[end - size : end].astype(np.int64))
        index[owned_ids[-1]] = np.arange(size, dtype=np.int32)
    return index, owned_ids


def _feeding_pairs(parent: np.ndarray, transfers: _Transfers) -> tuple[np.ndarray, np.ndarray]:
    """Distinct (transfer that brings a row to a rank, transfer that sends the row on from there).

    ``parent[e]`` is the tree edge that enters the sender of edge e, -1 at the root.
    """
    inner = np.flatnonzero(parent >= 0)
    size = max(len(transfers), 1)
    pairs = np.unique(transfers.edge_transfer[parent[inner]] * size + transfers.edge_transfer[inner])
    return pairs // size, pairs % size


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
