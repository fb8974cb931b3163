"""Compiles a communication plan into each rank's program: the rows to send, to receive and to add.

A *plan* has trees, along which rows travel from their owners to the ranks that need them;
:mod:`dgcl.program.rank_program` says how a rank numbers its rows. A :class:`Frame` needs only the counts of rows, not
their ids, so each rank can compile its own program by itself, in time linear in its rows. The result is checked, as
compiled code indexes by its tables.
Called by `contribution_programs`, `window_programs`, `dgcl/prepare/share`, `dgcl/prepare/shares`,
`dgcl/prepare/part_files` and others. Free to change while rows are numbered as said there, and each row reaches every
rank that needs it, and no other but as a relay (`tests/dgcl/program/test_compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dgcl.graph.id_arrays import any_outside
from dgcl.planner.array_types import ranges
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.planner.relays import relay_edges, without_idle_relays
from dgcl.planner.trees import Trees
from dgcl.program.rank_program import Program, ProgramError, Schedule
from dgcl.relation.classes import ItemClasses

_MAX_ROWS = 2**31 - 1
_Pair = tuple[np.ndarray, np.ndarray]


def compile_programs(plan: Plan, classes: ItemClasses) -> list[Program]:
    """Compile a verified plan into the programs of all ranks, one after the other.

    Args:
        plan: A plan for ``classes.relation``.
        classes: The items behind the plan's classes, and the owner of every item.

    Raises:
        ValueError: A rank would hold 2**31 rows or more.
    """
    frame, items = items_of_ranks(plan, classes)
    return [compile_program(frame, rank, *mine)[0] for rank, mine in enumerate(items)]


def items_of_ranks(
    plan: Plan, classes: ItemClasses
) -> tuple[Frame, Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """What :func:`compile_program` takes: the frame of a plan, and of each rank its items."""
    items, num_owned = classes.items, np.bincount(classes.owner, minlength=plan.world_size)
    frame = frame_of(plan, num_owned)
    return frame, (
        (ids, np.searchsorted(ids, items[frame.places_of(rank)]), items[frame.places_through(rank)])
        for rank, ids in enumerate(ids_by_owner(classes.owner, num_owned))
    )


def frame_of(plan: Plan, num_owned: np.ndarray) -> Frame:
    """Where the rows of all ranks lie by a plan; ``num_owned``: ``(P,)`` items that each rank owns."""
    return Frame.of(plan.relation, without_idle_relays(plan), num_owned)


def ids_by_owner(owner: np.ndarray, num_owned: np.ndarray) -> list[np.ndarray]:
    """Each rank's items, int64, ascending; ``num_owned`` says how many they are."""
    narrow = owner.astype(np.int16 if len(num_owned) < 2**15 else np.int32)  # numpy sorts 16 bits by radix
    return np.split(np.argsort(narrow, kind="stable").astype(np.int64), np.cumsum(num_owned)[:-1])


def compile_program(
    frame: Frame, rank: int, owned_ids: np.ndarray, wanted_rows: np.ndarray, incoming: np.ndarray
) -> tuple[Program, np.ndarray]:
    """The program of one rank, of the right form by itself. Linear in its items plus the rows that it sends.

    Args:
        frame: Where the rows of all ranks lie.
        rank: The rank.
        owned_ids: Of all items that it owns, in the order of their rows.
        wanted_rows: The rows of those that some rank wants, in the order of their places.
        incoming: Ids of the items that reach it, relayed ones among them, in the order of their places.

    Returns:
        The program, and which of ``incoming`` each halo row is.

    Raises:
        ValueError: It would hold 2**31 rows or more; or there are other numbers of items than the plan has.
    """
    from dgcl.program.program_kernels import fill_tables

    num_owned, num_halo, num_relay = (
        int(n[rank]) for n in (frame.num_owned, frame.num_halo, frame.num_relay)
    )
    if (frame.num_owned + frame.num_halo + frame.num_relay).max() > _MAX_ROWS:  # on every rank alike
        raise ValueError(f"part: a rank would hold more than {_MAX_ROWS} rows; use more ranks")
    mine, through = frame.places_of(rank), frame.places_through(rank)
    counts = (len(owned_ids), len(wanted_rows), len(incoming))
    if counts != (num_owned, len(mine), len(through)):
        raise ValueError(
            f"rank {rank} owns {counts[0]} items, of which {counts[1]} are wanted, and {counts[2]} reach it; by the"
            f" plan {num_owned}, {len(mine)} and {len(through)}"
        )
    order = np.argsort(np.concatenate([owned_ids[wanted_rows], incoming], dtype=np.int64))
    narrow = np.int32 if frame.relation.num_vertices <= _MAX_ROWS else np.int64
    places = np.concatenate([mine, through], dtype=narrow)[order]
    rows = np.concatenate([wanted_rows, np.full(len(incoming), -1)], dtype=np.int32)[order]
    local_places = np.full(num_owned + num_halo + num_relay, -1, narrow)
    del through  # as long as what is read, like others below
    transfers, trees = frame.transfers, frame.trees
    mine = (trees.edge_src == rank) | (trees.edge_dst == rank)
    send_rows, arrival_rows, arrival_slots = fill_tables(
        rows,
        frame.tree_of(places),
        (
            np.concatenate([[0], np.cumsum(mine)])[trees.edge_ptr],
            trees.edge_dst[mine] == rank,
            transfers.edge_transfer[mine],
            transfers.edge_relay[mine],
        ),
        (
            transfers.num_rows[:, 0].copy(),
            frame.send_start,
            frame.slot_start,
            frame.halo_row,
            frame.relay_row,
        ),
        num_owned + num_halo + num_relay,
        int(frame.num_sent[rank]),
    )
    local_places[rows] = places
    del places
    item_of = np.empty(len(local_places), np.int32)
    item_of[rows] = order
    arrivals = item_of[num_owned : num_owned + num_halo] - len(wanted_rows)
    program = Program(
        rank=rank,
        world_size=len(frame.num_owned),
        num_stages=transfers.num_stages,
        num_owned=num_owned,
        num_halo=num_halo,
        owned_ids=owned_ids,
        halo_ids=incoming[arrivals].astype(np.int64),
        expand=frame.expand(rank),
        fold=frame.fold(rank),
        send_rows=send_rows,
        arrival_rows=arrival_rows,
        arrival_slots=arrival_slots,
        places=local_places,
    )
    del order, rows, item_of
    check_rows(program)
    return program, arrivals


def check_rows(program: Program) -> None:
    """Raise unless compiled code may index by a program's tables, whatever the ids were that it was made from.

    Raises:
        ProgramError: An id is negative, a row is not there, or one is sent as two items.
    """
    num_rows, places = program.num_local + program.num_relay, program.places[: program.num_owned]
    problem = ""
    for name, end in (
        ("send_rows", num_rows),
        ("arrival_rows", num_rows),
        ("arrival_slots", program.num_arrivals),
    ):
        if any_outside(getattr(program, name), end):
            problem = f"{name} name a row that is not there"
    if (program.owned_ids < 0).any() or (program.halo_ids < 0).any():
        problem = "a negative id"
    elif not problem:
        sent = np.bincount(program.send_rows, minlength=len(places))[: len(places)] > 0
        if not np.array_equal(places != -1, sent):
            problem = "places must be those of the owned rows that are sent"
    if problem:
        raise ProgramError(f"program of rank {program.rank}: {problem}")


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
        edge_transfer=edge_transfer,
        edge_relay=edge_relay,
    )


@dataclass(frozen=True, eq=False)
class Frame:
    """Where the rows of all ranks lie: counts per rank, and first places per transfer; nothing of single items.

    Attributes:
        relation, trees: What is delivered, and how, without idle relays.
        transfers: The plan's.
        feeds: Of :func:`_feeding_pairs`.
        num_owned, num_halo, num_relay, num_sent: ``(P,)`` rows of each kind.
        halo_row, relay_row: ``(T,)`` first local row at the receiver of what it needs, and of what it passes on.
        send_start: ``(T,)`` first place among all rows that the sender sends.
        slot_start: ``(T,)`` first place among the sender's arrivals, when the rows come back in the fold.
    """

    relation: Relation
    trees: Trees
    transfers: _Transfers
    feeds: _Pair
    num_owned: np.ndarray
    num_halo: np.ndarray
    num_relay: np.ndarray
    num_sent: np.ndarray
    halo_row: np.ndarray
    relay_row: np.ndarray
    send_start: np.ndarray
    slot_start: np.ndarray

    @classmethod
    def of(cls, relation: Relation, trees: Trees, num_owned: np.ndarray) -> Frame:
        """The frame of trees without idle relays; ``num_owned``: ``(P,)`` items that each rank owns."""
        transfers = _find_transfers(relation, trees)
        world_size, total = len(num_owned), transfers.num_rows.sum(axis=1)

        def per_rank(rank_of: np.ndarray, size: np.ndarray) -> np.ndarray:
            return np.bincount(rank_of, weights=size, minlength=world_size).astype(np.int64)

        num_halo, num_relay = (per_rank(transfers.receiver, transfers.num_rows[:, kind]) for kind in (0, 1))
        halo_start, relay_start = (
            _starts_within(transfers.receiver, transfers.num_rows[:, kind]) for kind in (0, 1)
        )
        return cls(
            relation,
            trees,
            transfers,
            _feeding_pairs(trees.parents(world_size), transfers),
            num_owned=num_owned,
            num_halo=num_halo,
            num_relay=num_relay,
            num_sent=per_rank(transfers.sender, total),
            halo_row=num_owned[transfers.receiver] + halo_start,
            relay_row=(num_owned + num_halo)[transfers.receiver] + relay_start,
            send_start=_ordered_starts(transfers.sender, transfers.stage, transfers.receiver, total),
            slot_start=_ordered_starts(transfers.sender, -transfers.stage, transfers.receiver, total),
        )

    @cached_property
    def by_class(self) -> np.ndarray:
        """The trees in the order in which they take consecutive places: class by class, as they are listed."""
        return np.argsort(self.trees.tree_class, kind="stable")

    def tree_of(self, places: np.ndarray) -> np.ndarray:
        """The tree that carries each item, by its place."""
        ends = np.cumsum(self.trees.tree_count[self.by_class])
        return self.by_class[np.searchsorted(ends, places, side="right")]

    def places_of(self, rank: int) -> np.ndarray:
        """The places of the items that a rank owns and some rank wants."""
        source, count = self.relation.source, self.relation.count
        return np.arange(count[source < rank].sum(), count[source <= rank].sum())

    def places_through(self, rank: int) -> np.ndarray:
        """The places of all items that reach a rank, ascending, those that it only passes on among them."""
        trees, reached = self.trees, np.zeros(self.trees.num_trees, bool)
        reached[trees.edge_tree()[trees.edge_dst == rank]] = True
        here, counts = reached[self.by_class], trees.tree_count[self.by_class]
        first, count = (np.cumsum(counts) - counts)[here], counts[here]
        return ranges(first, count)

    def expand(self, rank: int) -> Schedule:
        """What one rank sends and receives in an expand."""
        transfers, (brings, sends_on) = self.transfers, self.feeds
        first_relay = (self.num_owned + self.num_halo)[transfers.receiver]
        taken_from = np.stack((self.send_start, self.send_start + transfers.num_rows[:, 0]), axis=1)
        put_at = np.stack((self.halo_row, self.relay_row - first_relay), axis=1)
        ends = transfers.sender, transfers.receiver
        return self._schedule(rank, ends, transfers.stage, (sends_on, brings), (taken_from, put_at))

    def fold(self, rank: int) -> Schedule:
        """The same transfers backwards: stages in reverse, sender and receiver swapped."""
        transfers = self.transfers
        taken_from = np.stack((self.halo_row, self.relay_row), axis=1)
        put_at = np.stack((self.slot_start, self.slot_start + transfers.num_rows[:, 0]), axis=1)
        stage = (transfers.num_stages - 1 - transfers.stage).astype(np.int32)
        return self._schedule(
            rank, (transfers.receiver, transfers.sender), stage, self.feeds, (taken_from, put_at)
        )

    def _schedule(self, rank: int, ends: _Pair, stage: np.ndarray, feeds: _Pair, places: _Pair) -> Schedule:
        """What a rank sends and receives.

        Args:
            rank: The rank.
            ends: (T,) the sender and the receiver of each transfer.
            stage: (T,) when it is.
            feeds: Pairs of transfers, of which the first waits for the second.
            places: (T, 2) where its rows are taken from, and where they are put.
        """
        (sender, receiver), (taken_from, put_at), num_rows = ends, places, self.transfers.num_rows
        outgoing, incoming = (np.flatnonzero(end == rank) for end in ends)
        outgoing = outgoing[np.lexsort((receiver[outgoing], stage[outgoing]))]
        incoming = incoming[np.lexsort((sender[incoming], stage[incoming]))]
        pointer, deps = _dependencies(outgoing, incoming, *feeds, len(stage))
        return Schedule(
            send_peer=receiver[outgoing],
            send_stage=stage[outgoing],
            send_count=num_rows[outgoing],
            send_from=taken_from[outgoing],
            send_to=put_at[outgoing],
            send_dep_ptr=pointer,
            send_deps=deps,
            recv_peer=sender[incoming],
            recv_stage=stage[incoming],
            recv_count=num_rows[incoming],
            recv_to=put_at[incoming],
        )


def _starts_within(group: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Exclusive running sums of ``size`` that start anew with each run of equal ``group`` (sorted)."""
    starts = np.cumsum(size) - size
    return starts - starts[np.searchsorted(group, group)]


def _ordered_starts(group: np.ndarray, major: np.ndarray, minor: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Exclusive running sums of ``size`` within each ``group``, in the order (major, minor)."""
    order = np.lexsort((minor, major, group))
    starts = np.empty(len(size), np.int64)
    starts[order] = _starts_within(group[order], size[order])
    return starts


def _feeding_pairs(parent: np.ndarray, transfers: _Transfers) -> _Pair:
    """Distinct (transfer that brings a row to a rank, transfer that sends the row on from there).

    ``parent[e]`` is the tree edge that enters the sender of edge e, -1 at the root.
    """
    inner = np.flatnonzero(parent >= 0)
    size = max(len(transfers), 1)
    pairs = np.unique(transfers.edge_transfer[parent[inner]] * size + transfers.edge_transfer[inner])
    return pairs // size, pairs % size


def _dependencies(
    tasks: np.ndarray, others: np.ndarray, waiting: np.ndarray, awaited: np.ndarray, num_transfers: int
) -> _Pair:
    """CSR: for each of ``tasks``, the places in ``others`` of the transfers that it waits for."""
    place_task = np.full(num_transfers, -1, np.int64)
    place_other = np.full(num_transfers, -1, np.int64)
    place_task[tasks] = np.arange(len(tasks))
    place_other[others] = np.arange(len(others))
    mine = (place_task[waiting] >= 0) & (place_other[awaited] >= 0)
    task, other = place_task[waiting[mine]], place_other[awaited[mine]]
    pointer = np.concatenate(([0], np.cumsum(np.bincount(task, minlength=len(tasks)))))
    return pointer, other[np.lexsort((other, task))].astype(np.int32)
