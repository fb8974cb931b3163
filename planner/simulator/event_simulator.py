"""Simulates a plan message by message, to test the cost model (``cost.py``), with which it shares no code.

>>> from dgcl.planner import Relation, make_plan
>>> from dgcl.topology import preset
>>> plan = make_plan(Relation.from_classes(8, [(0, {1, 6}, 10**6), (5, {0}, 10**6)]), preset("dgx1"))
>>> simulate(plan, order="barrier").seconds >= plan.predicted_seconds * (1 - 1e-9)
True

Called by `executed`, `trace`, `dgcl/cli/simulate` and `dgcl/cli/warmup`. Free to change while times, waiting and order
are those worked out by hand, and no stage is faster than the model (`tests/planner/simulator/test_simulate.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array, pointers, ranges
from dgcl.planner.plan import Plan
from dgcl.planner.simulator.plan_messages import Messages, messages
from dgcl.planner.simulator.simulated_machine import capacities, links_of, narrowest
from dgcl.topology.checks import check_choice

if TYPE_CHECKING:
    from dgcl.topology import Topology

Order = Literal["eager", "neighbours", "barrier"]
ORDERS: tuple[Order, ...] = ("eager", "neighbours", "barrier")
Shares = Literal["equal", "bytes"]
SHARES: tuple[Shares, ...] = ("equal", "bytes")

SECONDS, SOON = 4e-8, 60.0  # of processor time for each message and direction; from where on that is said
_log = logging.getLogger("dgcl")


# It assumes less: stages do not begin and end together. A message starts when its rows have arrived and the peer
# is ready, and shares every connection max-min fairly with whatever else flows there.


@dataclass(frozen=True, eq=False)
class Simulation:
    """The outcome of a simulation, by message and by connection-direction.

    Attributes:
        seconds: when the last message arrived.
        messages: what was sent.
        bytes: (N,) float64 of each message.
        issued, flowing, arrived: (N,) float64 seconds: rows present and peer ready; first byte; last byte.
        direction_names: of the topology's connection-directions.
        direction_bytes, direction_busy: bytes over each, and seconds during which anything flowed there.
        direction_used: bytes over what each could carry in the simulated time.
        slices: (K, num_directions), the same of each of K slices of the time.
        rank_finish: (P,) seconds at which each rank has sent and received all it has to.
        rank_wait: (P,) seconds from its entry until then in which a rank sends nothing: it waits for rows, or for a
            receiver. Ranks write into their receivers' memory, so one that only receives waits.
    """

    seconds: float
    messages: Messages
    bytes: FloatArray
    issued: FloatArray
    flowing: FloatArray
    arrived: FloatArray
    direction_names: tuple[str, ...]
    direction_bytes: FloatArray
    direction_busy: FloatArray
    direction_used: FloatArray
    slices: FloatArray
    rank_finish: FloatArray
    rank_wait: FloatArray

    def to_json(self) -> dict[str, Any]:
        """Return the totals as a JSON object (:func:`dgcl.planner.simulator.trace.chrome_trace` has every message)."""
        return {
            "seconds": self.seconds,
            "num_messages": self.messages.num,
            "bytes_sent": float(self.bytes.sum()),
            "connections": [
                {"name": name, "used": float(u), "bytes": float(b), "busy_seconds": float(s)}
                for name, u, b, s in zip(
                    self.direction_names,
                    self.direction_used,
                    self.direction_bytes,
                    self.direction_busy,
                    strict=True,
                )
                if b > 0
            ],
            "ranks": [
                {"rank": r, "finish_seconds": float(f), "wait_seconds": float(w)}
                for r, (f, w) in enumerate(zip(self.rank_finish, self.rank_wait, strict=True))
            ],
        }


def simulate(
    plan: Plan,
    *,
    topology: Topology | None = None,
    row_bytes: int | None = None,
    order: Order = "eager",
    shares: Shares = "equal",
    sends_at_once: int | None = None,
    slow: Mapping[int, float] | None = None,
    start: Mapping[int, float] | None = None,
    slices: int = 0,
) -> Simulation:
    """Simulate the messages of a plan.

    Args:
        plan: the plan.
        topology: another machine to replay it on, with as many devices and a link for every pair that the
            plan uses; None: the plan's own.
        row_bytes: bytes of a row; None: the plan's own.
        order: when a rank may send for a stage. "eager": as soon as the rows are present and the peer is in the
            call (CPU ranks); messages to one peer stay in order. "neighbours": not before it has sent and received
            everything of earlier stages (GPUs). "barrier": not before everyone has (what the cost model assumes).
        shares: how messages that meet share a connection: max-min fairly each as much as another ("equal"), or in
            proportion to their bytes ("bytes"), as thread blocks do that a kernel deals to its receivers by bytes.
        sends_at_once: how many messages a rank sends at a time, the earliest stages first: 1 is a rank that copies with
            one core or one copy engine; None: any number, as a kernel does that writes to all peers.
        slow: rank -> factor >= 1 by which everything that touches its device is slower.
        start: rank -> seconds by which it comes late; nothing flows from or to it before.
        slices: into how many parts the time is cut to say when connections are used; events are then played twice.

    Where it is about to take more than a minute of processor time, a warning says how long.

    Raises:
        ValueError: An argument out of range, a pair without a link on ``topology`` (names it), or messages that wait
            for each other in a cycle, which those of a verified plan never do.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from dgcl.planner.simulator.kernel import run

    machine = plan.topology if topology is None else topology
    width = plan.row_bytes if row_bytes is None else row_bytes
    slow, start = slow or {}, start or {}
    _check(plan, machine, width, order, shares, sends_at_once, slow, start)
    sends = messages(plan.trees, plan.world_size)
    num, ranks, arrays = sends.num, plan.world_size, machine.arrays()
    link = links_of(sends, machine)
    capacity = capacities(machine, slow)
    late = np.array([start.get(rank, 0.0) for rank in range(ranks)], np.float64)
    size = sends.rows.astype(np.float64) * width
    before, after, num_gates = _gates(sends, order)
    lengths = np.diff(arrays.link_ptr)[link]
    route = arrays.link_directions[ranges(arrays.link_ptr[link], lengths)]
    users = np.repeat(np.arange(num), lengths)
    limits = narrowest(users, route, capacity)
    counts = limits[route] == route
    users, hops = users[counts], route[counts]
    work = SECONDS * num * len(np.unique(hops))
    if work > SOON:
        _log.warning("simulating %d messages of %d ranks takes about %.0f minutes", num, ranks, work / 60)
    ptr = _ends(users, num)
    # Directions that share messages, directly or by way of others, are a part, and beside each other.
    pairs = coo_array((np.ones(hops.shape[0]), (hops[ptr[users]], hops)), (capacity.shape[0],) * 2)
    part = connected_components(pairs, directed=False)[1]
    by_part = np.argsort(part, kind="stable")
    number = np.argsort(by_part)
    # Of GPUs each sends to the next rank first, so that not all of them send to the lowest one at a time.
    ahead = (sends.dst - (sends.src if order == "neighbours" else 0)) % ranks
    played = (
        size,
        arrays.link_latency[link],
        np.maximum(late[sends.src], late[sends.dst]),
        ptr,
        number[hops],
        capacity[by_part],
        part[by_part],
        _ends(before, num + num_gates),
        after[np.argsort(before, kind="stable")],
        sends.behind(),
        size if shares == "bytes" else np.ones(num),
        sends.src,
        np.full(ranks, sends_at_once or num),
        _ends(sends.src, ranks),
        np.lexsort((ahead, sends.stage, sends.src)),
    )
    carried = np.zeros((slices, capacity.shape[0]))
    issued, flowing, arrived, busy = run(*played, carried[:0], 1.0)
    if np.isnan(arrived).any():
        raise ValueError(
            "the plan's messages wait for each other in a cycle: `dgcl check` says where it is broken"
        )
    total = float(arrived.max(initial=0.0))
    slice_seconds = total / max(1, slices) or 1.0
    if slices:
        run(*played, carried, slice_seconds)
    moved = np.bincount(hops, size[users], capacity.shape[0]).astype(float)[limits]
    finish, wait = _waiting(sends, late, flowing, arrived)
    return Simulation(
        seconds=total,
        messages=sends,
        bytes=size,
        issued=issued,
        flowing=flowing,
        arrived=arrived,
        direction_names=arrays.direction_names,
        direction_bytes=moved,
        direction_busy=busy[number[limits]],
        direction_used=moved / (capacity * (total or 1.0)),
        slices=carried[:, number[limits]] / (capacity * slice_seconds),
        rank_finish=finish,
        rank_wait=wait,
    )


def _check(
    plan: Plan,
    machine: Topology,
    row_bytes: int,
    order: str,
    shares: str,
    sends_at_once: int | None,
    slow: Mapping[int, float],
    start: Mapping[int, float],
) -> None:
    if machine.num_devices != plan.world_size:
        raise ValueError(
            f"topology {machine.name!r} has {machine.num_devices} devices but the plan is for"
            f" {plan.world_size} ranks"
        )
    if row_bytes < 1:
        raise ValueError(f"row_bytes must be >= 1 (got {row_bytes})")
    check_choice(order, "order", ORDERS)
    check_choice(shares, "shares", SHARES)
    if sends_at_once is not None and sends_at_once < 1:
        raise ValueError(f"sends_at_once must be >= 1, or None for any number (got {sends_at_once})")
    for name, values, low in (("slow", slow, 1.0), ("start", start, 0.0)):
        for rank, value in values.items():
            if not 0 <= rank < plan.world_size:
                raise ValueError(f"{name} names rank {rank}: the plan has ranks 0 to {plan.world_size - 1}")
            if not low <= value < float("inf"):
                raise ValueError(f"{name}[{rank}] must be a finite number >= {low:g} (got {value})")


def _ends(kinds: Int64Array, num: int) -> Int64Array:
    """Return (num + 1,) pointers into things sorted by their kind."""
    return pointers(np.bincount(kinds, minlength=num))


def _gates(sends: Messages, order: Order) -> tuple[Int64Array, Int64Array, int]:
    """Return which messages wait for which, with gates: one per (stage, rank) or one per stage; and their number.

    A gate waits for all messages of its stage (that its rank sends or receives) and for the gate of the stage before.
    Messages of the next stage (that its rank sends) wait for the gate.
    """
    if order == "eager" or sends.num == 0:
        return sends.before, sends.after, 0
    ends = np.stack([sends.src, sends.dst]) * (order == "neighbours")
    stages, groups = int(sends.stage.max()) + 1, int(ends.max()) + 1
    gates = sends.num + sends.stage * groups + ends
    mine, later = np.arange(sends.num), sends.stage > 0
    chain = sends.num + np.arange((stages - 1) * groups)
    before = np.concatenate([mine, mine, gates[0, later] - groups, chain])
    return before, np.concatenate([*gates, mine[later], chain + groups]), stages * groups


def _waiting(
    sends: Messages, entry: FloatArray, flowing: FloatArray, arrived: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return when each rank is done, and for how long between its entry and then it sends nothing."""
    finish, wait = np.zeros((2, len(entry)))
    np.maximum.at(finish, sends.src, arrived)
    np.maximum.at(finish, sends.dst, arrived)
    for rank in np.flatnonzero(finish):
        sent = np.flatnonzero(sends.src == rank)
        sent = sent[np.argsort(flowing[sent], kind="stable")]
        ends = np.maximum.accumulate(np.append(entry[rank], arrived[sent]))  # latest so far
        idle = np.maximum(flowing[sent] - ends[:-1], 0.0).sum()  # before each send
        wait[rank] = idle + finish[rank] - ends[-1]
    return finish, wait
