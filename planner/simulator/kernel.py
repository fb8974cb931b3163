"""The compiled event loop of the simulator: messages that share connections at max-min fair rates.

It knows nothing of plans, stages or costs: only messages with a size, a latency, a route, and what they wait for.
`run` says how rates are found, and what an event costs.
Called by `event_simulator`. Free to change while rates are max-min fair at all times, beside a solution in exact
numbers (`tests/planner/simulator/test_simulate.py`).
"""

from typing import Any, NamedTuple

import numpy as np

from dgcl.planner.array_types import pointers
from dgcl.planner.planner_compiled import compiled

WINDOW = 8  # directions among which the next one to fill is sought at first


class Machine(NamedTuple):
    """The directions, D of them.

    Attributes:
        capacity: as of :func:`run`.
        total: the weights of all that flows over each.
        order, place: int64, in which directions are filled, and the place of each in that.
        level, clock: what a unit of weight gets, bytes per second, and the sum of that so far.
        left, weights: scratch.
    """

    capacity: Any
    total: Any
    order: Any
    place: Any
    level: Any
    clock: Any
    left: Any
    weights: Any


class Flows(NamedTuple):
    """The messages that flow, by the direction that holds each.

    Attributes:
        ptr, hops, weight: as of :func:`run`.
        tag: (N,) at which its direction's clock is when a message is through.
        head, after: (D,) and (N,) int64, messages held by a direction are a list: the first, and what is after each.
        due: (D,) the first tag that each direction holds.
        number: (D,) int64, of each direction in its part.
        crossing: (D, D), what direction c holds over the direction that is number i of the same part: crossing[c, i].
    """

    ptr: Any
    hops: Any
    weight: Any
    tag: Any
    head: Any
    after: Any
    due: Any
    number: Any
    crossing: Any


def run(
    size: Any,
    latency: Any,
    release: Any,
    ptr: Any,
    hops: Any,
    capacity: Any,
    part_of: Any,
    next_ptr: Any,
    next_message: Any,
    behind: Any,
    weight: Any,
    sender: Any,
    room: Any,
    send_ptr: Any,
    sends: Any,
    carried: Any,
    width: Any,
) -> Any:
    """Run all messages to their end.

    A message is *issued* when its release time has come and all it waits for have arrived; `latency` seconds
    later, and not before the message queued ahead of it has arrived, its bytes start to flow; when the last
    byte is through, it has arrived. A *gate* has arrived as soon as all it waits for have. Gates are numbered from N.

    Messages that flow have max-min fair rates, each in proportion to its weight, by progressive filling (Bertsekas and
    Gallager, Data Networks, 6.5): the direction that leaves the least to each unit of weight through it (its level) is
    filled first. Its messages keep that rate, and what they use of others is taken from these. Then the next direction.

    An event costs D steps of D additions for each part of the machine that it touches, however many messages flow:

    - Each message is *held* by that direction of its route that was filled first. Only the weights that
      a direction holds over others are added up; messages are looked at where they change hands.
    - Directions are filled in the order of the last time, and the next one is looked for among a few. Rates are max-min
      fair in whatever order levels do not fall and no direction carries too much; else all begins again, among more.
    - A direction's clock advances by its level in a second. What it holds is through when the clock is at its tag.

    Args:
        size: (N,) float64, bytes. latency, release: (N,) float64, seconds.
        ptr, hops: route of each message as connection-directions.
        capacity: (D,) float64, bytes per second of each direction.
        part_of: (D,) int32, ascending; directions of two parts share no message.
        next_ptr, next_message: the messages and gates that wait for each message and each gate.
        behind: (N,) int64, the message queued behind each, or -1.
        weight: (N,) float64 > 0, whole numbers: what is left of their sums is exact.
        sender: (N,) int64, who sends each message.
        room: (S,) int64, how many messages of each sender may flow at a time.
        send_ptr, sends: the messages of each sender, in the order in which those that could flow are taken.
        carried: (K, D) float64, to which the bytes over each direction are added, by slices of `width` seconds.

    Returns:
        issued, flowing, arrived: (N,) float64 seconds, nan where a message never ran; busy: (D,) float64, seconds
        during which anything flowed over each direction.
    """
    num, num_directions = size.shape[0], capacity.shape[0]
    issued, flowing, arrived = times = np.full((3, num), np.nan)
    waiting = np.bincount(next_message, minlength=next_ptr.shape[0] - 1)
    ahead = np.ones(num, np.int64)  # what must end before the bytes flow: the latency, and the message ahead
    ahead[behind[behind >= 0]] = 2
    total, busy, rate, clock = np.zeros((4, num_directions))
    order = np.arange(num_directions)
    machine = Machine(
        capacity,
        total,
        order,
        order.copy(),
        np.ones(num_directions),
        clock,
        np.empty(num_directions),
        np.empty(num_directions),
    )
    sizes = np.bincount(part_of)
    parts = pointers(sizes)
    flows = Flows(
        ptr, hops, weight, size / weight, np.full(num_directions, -1), np.empty(num, np.int64),
        np.full(num_directions, np.inf), np.arange(num_directions) - parts[part_of],
        np.zeros((num_directions, int(sizes.max(initial=0)))),
    )  # fmt: skip
    play(
        flows, machine, times, latency, release, part_of, parts, next_ptr, next_message, behind, waiting, ahead,
        sender, room, send_ptr, sends, busy, rate, carried, width,
        np.empty(num), np.empty(num, np.int64), np.empty(waiting.shape[0], np.int64), np.empty(2 * num, np.int64),
        np.empty(num_directions), np.zeros(sizes.shape[0], np.bool_),
    )  # fmt: skip
    return issued, flowing, arrived, busy


@compiled(allocates=False, entry=False)
def _hold(flows: Flows, m: int, c: int) -> None:
    """Let direction c hold message m."""
    for i in range(flows.ptr[m], flows.ptr[m + 1]):
        flows.crossing[c, flows.number[flows.hops[i]]] += flows.weight[m]
    flows.due[c] = min(flows.due[c], flows.tag[m])
    flows.after[m], flows.head[c] = flows.head[c], m


@compiled(allocates=False, entry=False)
def _release_all(flows: Flows, c: int) -> int:
    """Let direction c hold nothing; return the first message that it held, -1 for none."""
    m, flows.head[c], flows.due[c] = flows.head[c], -1, np.inf
    for i in range(flows.crossing.shape[1]):
        flows.crossing[c, i] = 0.0
    return m


@compiled(inline=False, allocates=False, entry=False)
def _share_out(flows: Flows, machine: Machine, low: int, high: int) -> None:
    """Fill directions ``low:high``, a part, one after the other; messages go to the one that was filled first."""
    capacity, total, order, place, level, clock, left, weights = machine
    ptr, hops, tag, after, crossing = flows.ptr, flows.hops, flows.tag, flows.after, flows.crossing
    mine, its_weights = left[low:high], weights[low:high]
    step, last, window, begins = low, 0.0, WINDOW, True
    while step < high:
        if begins:
            step, last, begins = low, 0.0, False
            for c in range(low, high):
                left[c], weights[c] = capacity[c], total[c]
        nearest, share = step, np.inf
        for i in range(step, min(high, step + window)):
            d = order[i]
            if weights[d] == 0:
                nearest, share = i, last if left[d] > -1e-12 * capacity[d] else -1.0
                break
            if left[d] < share * weights[d]:
                nearest, share = i, left[d] / weights[d]
        if share < last * (1 - 1e-12) and window < high - low:
            window, begins = 2 * window, True
            continue
        last, tightest = share, order[nearest]
        for passed in range(nearest, step, -1):
            c = order[passed - 1]
            order[passed] = c
            following = _release_all(flows, c) if crossing[c, tightest - low] > 0 else -1
            while following >= 0:
                m, following = following, after[following]
                holder = c
                for i in range(ptr[m], ptr[m + 1]):
                    if hops[i] == tightest:
                        holder = tightest
                tag[m] += clock[holder] - clock[c]
                _hold(flows, m, holder)
        order[step], place[tightest], level[tightest] = tightest, step, max(share, 0.0)
        taken = crossing[tightest]
        for i in range(high - low):
            mine[i] -= share * taken[i]
            its_weights[i] -= taken[i]
        step += 1


@compiled(allocates=False, entry=False)
def _is_before(ends: Any, m: int, other: int) -> bool:
    """Tell whether the latency of message m ends before that of another; of equal ones the lower number is first."""
    return bool(ends[m] < ends[other] or (ends[m] == ends[other] and m < other))


@compiled(inline=False, allocates=False, entry=False)
def _push(heap: Any, ends: Any, num: int, m: int) -> None:
    """Add a message to a binary heap of `num`."""
    at = num
    while at > 0 and _is_before(ends, m, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = m


@compiled(inline=False, allocates=False, entry=False)
def _pop(heap: Any, ends: Any, num: int) -> int:
    """Remove the first message of a binary heap of `num`, and return it."""
    first, last, at = heap[0], heap[num - 1], 0
    while 2 * at + 2 < num:
        below = 2 * at + 1
        if below + 2 < num and _is_before(ends, heap[below + 1], heap[below]):
            below += 1
        if not _is_before(ends, heap[below], last):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last
    return int(first)


@compiled(allocates=False)
def play(
    flows: Flows, machine: Machine, times: Any, latency: Any, release: Any, part_of: Any, parts: Any, next_ptr: Any,
    next_message: Any, behind: Any, waiting: Any, ahead: Any, sender: Any, room: Any, send_ptr: Any, sends: Any,
    busy: Any, rate: Any, carried: Any, width: float, ends: Any, heap: Any, done: Any, free: Any, through: Any,
    touched: Any,
) -> None:  # fmt: skip
    """Play all messages, in plain loops: numba compiles each expression of whole arrays for a fifth of a second.

    The arguments not described by :func:`run` are its first state, and scratch: `heap` are the messages whose latency
    runs, by its end in `ends`; `done` what has arrived, and `free` senders that may send more.
    """
    ptr, hops, weight, tag, after = flows.ptr, flows.hops, flows.weight, flows.tag, flows.after
    capacity, total, _, place, level, clock, left, _ = machine
    due = flows.due  # taken out once: each use of a field counts references
    issued, flowing, arrived = times[0], times[1], times[2]
    num, num_directions = issued.shape[0], capacity.shape[0]
    num_heap = num_done = num_free = 0
    for m in range(num):
        if waiting[m] == 0:
            issued[m], ends[m] = release[m], release[m] + latency[m]
            _push(heap, ends, num_heap, m)
            num_heap += 1
    for gate in range(num, waiting.shape[0]):
        if waiting[gate] == 0:
            done[num_done] = gate
            num_done += 1
    now = 0.0
    while True:
        # 1. Release what waited for arrived messages, and start it.
        while num_done:
            num_done -= 1
            m = done[num_done]
            if m < num:
                arrived[m] = now
                room[sender[m]] += 1
                free[num_free] = sender[m]
                num_free += 1
                if behind[m] >= 0:
                    ahead[behind[m]] -= 1
            for i in range(next_ptr[m], next_ptr[m + 1]):
                other = next_message[i]
                waiting[other] -= 1
                if waiting[other] == 0:
                    if other < num:
                        issued[other] = max(now, release[other])
                        ends[other] = issued[other] + latency[other]
                        _push(heap, ends, num_heap, other)
                        num_heap += 1
                    else:
                        done[num_done] = other
                        num_done += 1
        while num_heap and ends[heap[0]] <= now:
            m = _pop(heap, ends, num_heap)
            num_heap -= 1
            ahead[m] -= 1
            free[num_free] = sender[m]
            num_free += 1
        for each in range(num_free):
            s = free[each]
            for n in range(send_ptr[s], send_ptr[s + 1]):
                m = sends[n]
                if ahead[m] == 0 and room[s]:
                    room[s] -= 1
                    ahead[m] = -1
                    flowing[m] = now
                    c = hops[ptr[m]]
                    for i in range(ptr[m], ptr[m + 1]):
                        h = hops[i]
                        if place[h] < place[c]:
                            c = h
                        if total[h] == 0:
                            busy[h] -= now
                        total[h] += weight[m]
                    tag[m] += clock[c]
                    _hold(flows, m, c)
                    touched[part_of[c]] = True
        num_free = 0
        # 2. New rates in the parts where messages began or ended.
        for part in range(parts.shape[0] - 1):
            if not touched[part]:
                continue
            low, high, touched[part] = parts[part], parts[part + 1], False
            _share_out(flows, machine, low, high)
            for c in range(low, high):
                rate[c] = capacity[c] - left[c]
        # 3. Go to the next moment at which anything changes.
        then, now = now, np.inf
        for c in range(num_directions):
            through[c] = then + (due[c] - clock[c]) / level[c] if level[c] > 0.0 else np.inf
            now = min(now, through[c])
        if num_heap:
            now = min(now, ends[heap[0]])
        if now == np.inf:
            return
        for k in range(int(then / width), min(int(now / width) + 1, carried.shape[0])):
            during = max(0.0, min(now, (k + 1) * width) - max(then, k * width))
            for c in range(num_directions):
                carried[k, c] += rate[c] * during
        # Through within a rounding error is through now: equal messages finish together.
        soon = now * (1 + 1e-12)
        for c in range(num_directions):
            clock[c] += level[c] * (now - then)
        for c in range(num_directions):
            if through[c] > soon:
                continue
            reached, touched[part_of[c]] = max(due[c], clock[c] + level[c] * (soon - now)), True
            following = _release_all(flows, c)
            while following >= 0:
                m, following = following, after[following]
                if tag[m] > reached:
                    _hold(flows, m, c)
                    continue
                done[num_done] = m
                num_done += 1
                for i in range(ptr[m], ptr[m + 1]):
                    total[hops[i]] -= weight[m]
                    if total[hops[i]] == 0:
                        busy[hops[i]] += now
