"""The event loop of the simulator, compiled: messages that share connections max-min fairly.

It knows nothing of plans, stages or costs: only messages with a size, a latency, a route, and what they wait for.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from dgcl.planner.compiled import compiled


@compiled
def fair_rates(active: Any, weight: Any, ptr: Any, hops: Any, capacity: Any, rate: Any) -> Any:
    """Write into ``rate`` the weighted max-min fair share of each message in ``active``.

    Progressive filling (Bertsekas and Gallager, Data Networks, 6.5): the direction that leaves the least to each
    unit of ``weight`` through it is filled first. Its messages keep that rate, and what they use of other directions
    is taken from these. Then the next direction. Weights are whole numbers: what is left of their sums is exact.

    Returns:
        (num_directions,) float64, what is left of ``capacity``.
    """
    left = capacity.copy()
    num = left.shape[0]
    weights = np.zeros(num)  # of messages without a rate over each direction
    first = np.zeros(num + 1, np.int64)  # messages over each direction, in the order of `active`
    for m in active:
        rate[m] = -1.0
        for h in range(ptr[m], ptr[m + 1]):
            first[hops[h] + 1] += 1
            weights[hops[h]] += weight[m]
    first = np.cumsum(first)
    over, end = np.empty(first[num], np.int64), first[:num].copy()
    for m in active:
        for h in range(ptr[m], ptr[m + 1]):
            over[end[hops[h]]] = m
            end[hops[h]] += 1
    open_ = np.flatnonzero(weights)
    while True:
        share, tightest, kept = np.inf, -1, 0
        for c in open_:
            if weights[c] > 0:
                open_[kept] = c
                kept += 1
                if left[c] < share * weights[c]:
                    share, tightest = left[c] / weights[c], int(c)
        if not kept:
            return left
        open_ = open_[:kept]
        for i in range(first[tightest], first[tightest + 1]):
            m = over[i]
            if rate[m] < 0:
                rate[m] = share * weight[m]
                for h in range(ptr[m], ptr[m + 1]):
                    left[hops[h]] = max(0.0, left[hops[h]] - rate[m])
                    weights[hops[h]] -= weight[m]


@compiled
def run(
    size: Any,
    latency: Any,
    release: Any,
    ptr: Any,
    hops: Any,
    capacity: Any,
    waits: Any,
    next_ptr: Any,
    next_message: Any,
    previous: Any,
    weight: Any,
    sender: Any,
    at_once: int,
    send_order: Any,
) -> Any:
    """Run all messages to their end.

    A message is *issued* when its release time has come and all it waits for have arrived; `latency` seconds
    later, and not before the message queued ahead of it has arrived, its bytes start to flow; when the last
    byte is through, it has arrived. A message without bytes arrives as soon as it would flow.

    Args:
        size: (N,) float64, bytes. latency, release: (N,) float64, seconds.
        ptr, hops: route of each message as connection-directions; empty for messages without bytes.
        capacity: (num_directions,) float64, bytes per second.
        waits: (N,) int64, how many messages each waits for; next_ptr, next_message: which wait for a message.
        previous: (N,) int64, the message queued ahead, or -1.
        weight: (N,) float64 > 0, see :func:`fair_rates`.
        sender: (N,) int64, who sends each message, -1 for nobody.
        at_once: how many messages of one sender may flow at a time; 0: any number.
        send_order: (N,) int64, the messages in the order in which those that could flow are taken.

    Returns:
        issued, flowing, arrived: (N,) float64 seconds, nan where a message never ran; busy: (num_directions,)
        float64, seconds during which anything flowed over each direction.
    """
    num = size.shape[0]
    issued, flowing, arrived = np.full(num, np.nan), np.full(num, np.nan), np.full(num, np.nan)
    busy, left = np.zeros(capacity.shape[0]), capacity
    waiting = waits.copy()
    behind = np.full(num, -1, np.int64)
    ahead = np.ones(num, np.int64)  # what must end before the bytes flow: the latency, and the message ahead
    for m in range(num):
        if previous[m] >= 0:
            ahead[m] = 2
            behind[previous[m]] = m
    remaining, rate = size.copy(), np.zeros(num)
    could, open_ = np.zeros(num, np.bool_), np.zeros(num, np.bool_)  # may flow now; flows
    sending = np.zeros(max(1, sender.max() + 1) if num else 1, np.int64)
    latencies = [(0.0, -1)]  # a heap of (end of its latency, message), typed by its first entry
    heapq.heappop(latencies)
    for m in range(num):
        if waiting[m] == 0:
            issued[m] = release[m]
            heapq.heappush(latencies, (release[m] + latency[m], m))
    active: Any = np.flatnonzero(open_)
    now = 0.0
    while len(latencies) or active.shape[0]:
        # 1. Go to the next moment at which anything changes.
        step = np.inf
        for m in active:
            if rate[m] > 0:
                step = min(step, remaining[m] / rate[m])
        latency_ends = len(latencies) > 0 and latencies[0][0] <= now + step
        if latency_ends:
            step = max(0.0, latencies[0][0] - now)
        if step < np.inf:
            busy += np.where(left < capacity, step, 0.0)
        done = [0]
        done.pop()
        for m in active:
            # Done within a rounding error of this moment is done now: equal messages finish together.
            if rate[m] > 0 and remaining[m] <= rate[m] * step * (1 + 1e-12):
                done.append(m)
            else:
                remaining[m] -= rate[m] * step
        now = latencies[0][0] if latency_ends else now + step
        _end_latencies(latencies, now, ahead, could)
        # 2. Release what waited for arrived messages, and start it; messages without bytes arrive at once.
        changed = True
        while changed:
            for m in done:
                arrived[m] = now
                open_[m] = False
                if at_once and sender[m] >= 0:
                    sending[sender[m]] -= 1
                if behind[m] >= 0:
                    ahead[behind[m]] -= 1
                    could[behind[m]] = ahead[behind[m]] == 0
                for i in range(next_ptr[m], next_ptr[m + 1]):
                    other = next_message[i]
                    waiting[other] -= 1
                    if waiting[other] == 0:
                        issued[other] = max(now, release[other])
                        heapq.heappush(latencies, (issued[other] + latency[other], other))
            _end_latencies(latencies, now, ahead, could)
            done.clear()
            for m in send_order:
                if not could[m]:
                    continue
                if at_once and sender[m] >= 0:
                    if sending[sender[m]] == at_once:
                        continue
                    sending[sender[m]] += 1
                could[m] = False
                flowing[m] = now
                if size[m] > 0:
                    open_[m] = True
                else:
                    done.append(m)
            changed = len(done) > 0
        active = np.flatnonzero(open_)
        left = fair_rates(active, weight, ptr, hops, capacity, rate)
    return issued, flowing, arrived, busy


@compiled(entry=False)
def _end_latencies(latencies: Any, now: float, ahead: Any, could: Any) -> None:
    """Take the latencies that end by ``now`` off the heap; their messages may flow if nothing else is ahead."""
    while len(latencies) and latencies[0][0] <= now:
        _, m = heapq.heappop(latencies)
        ahead[m] -= 1
        could[m] = ahead[m] == 0
