"""The event loop of the simulator, compiled: messages that share connections max-min fairly.

It knows nothing of plans, stages or costs: only messages with a size, a latency, a route, and what they wait for.
"""

import heapq
from typing import Any

import numpy as np

from dgcl.planner.compiled import compiled


@compiled
def fair_rates(
    active: Any, weight: Any, ptr: Any, hops: Any, user_ptr: Any, users: Any, capacity: Any, rate: Any
) -> Any:
    """Write into ``rate`` the weighted max-min fair share of each message in ``active``.

    Progressive filling (Bertsekas and Gallager, Data Networks, 6.5): the direction that leaves the least to each
    unit of ``weight`` through it is filled first. Its messages keep that rate, and what they use of other directions
    is taken from these. Then the next direction. Weights are whole numbers: what is left of their sums is exact.
    Rates of messages that are not active are not negative.

    Returns:
        (num_directions,) float64, what is left of ``capacity``.
    """
    left = capacity.copy()
    weights = np.zeros(left.shape[0])  # of messages without a rate over each direction
    for m in active:
        rate[m] = -1.0
        for h in range(ptr[m], ptr[m + 1]):
            weights[hops[h]] += weight[m]
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
        for m in users[user_ptr[tightest] : user_ptr[tightest + 1]]:
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
    user_ptr: Any,
    users: Any,
    capacity: Any,
    waits: Any,
    next_ptr: Any,
    next_message: Any,
    previous: Any,
    weight: Any,
    sender: Any,
    room: Any,
    send_ptr: Any,
    sends: Any,
) -> Any:
    """Run all messages to their end.

    A message is *issued* when its release time has come and all it waits for have arrived; `latency` seconds
    later, and not before the message queued ahead of it has arrived, its bytes start to flow; when the last
    byte is through, it has arrived. A message without bytes arrives as soon as it would flow.

    Args:
        size: (N,) float64, bytes. latency, release: (N,) float64, seconds.
        ptr, hops: route of each message as connection-directions; empty for messages without bytes.
        user_ptr, users: the messages over each direction, ascending.
        capacity: (num_directions,) float64, bytes per second.
        waits: (N,) int64, how many messages each waits for; next_ptr, next_message: which wait for a message.
        previous: (N,) int64, the message queued ahead, or -1.
        weight: (N,) float64 > 0, see :func:`fair_rates`.
        sender: (N,) int64, who sends each message.
        room: (S,) int64, how many messages of each sender may flow at a time.
        send_ptr, sends: the messages of each sender, in the order in which those that could flow are taken.

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
    could = np.zeros(num, np.bool_)  # may flow now
    latencies = [(0.0, -1)]  # a heap of (end of its latency, message), typed by its first entry
    heapq.heappop(latencies)
    for m in range(num):
        if waiting[m] == 0:
            issued[m] = release[m]
            heapq.heappush(latencies, (release[m] + latency[m], m))
    active, num_active = np.empty(num, np.int64), 0  # those that flow
    now = 0.0
    while len(latencies) or num_active:
        # 1. Go to the next moment at which anything changes.
        step = np.inf
        for m in active[:num_active]:
            if rate[m] > 0:
                step = min(step, remaining[m] / rate[m])
        latency_ends = len(latencies) > 0 and latencies[0][0] <= now + step
        if latency_ends:
            step = max(0.0, latencies[0][0] - now)
        if step < np.inf:
            busy += np.where(left < capacity, step, 0.0)
        done, flow = [0], num_active
        done.pop()
        num_active = 0
        for m in active[:flow]:
            # Done within a rounding error of this moment is done now: equal messages finish together.
            if rate[m] > 0 and remaining[m] <= rate[m] * step * (1 + 1e-12):
                done.append(m)
            else:
                remaining[m] -= rate[m] * step
                active[num_active] = m
                num_active += 1
        now = latencies[0][0] if latency_ends else now + step
        # 2. Release what waited for arrived messages, and start it; messages without bytes arrive at once.
        while True:
            free = [0]  # senders that may send more
            free.pop()
            for m in done:
                arrived[m] = now
                room[sender[m]] += 1
                free.append(sender[m])
                if behind[m] >= 0:
                    ahead[behind[m]] -= 1
                    could[behind[m]] = ahead[behind[m]] == 0
                for i in range(next_ptr[m], next_ptr[m + 1]):
                    other = next_message[i]
                    waiting[other] -= 1
                    if waiting[other] == 0:
                        issued[other] = max(now, release[other])
                        heapq.heappush(latencies, (issued[other] + latency[other], other))
            while len(latencies) and latencies[0][0] <= now:
                _, m = heapq.heappop(latencies)
                ahead[m] -= 1
                could[m] = ahead[m] == 0
                free.append(sender[m])
            done.clear()
            for s in free:
                for m in sends[send_ptr[s] : send_ptr[s + 1]]:
                    if could[m] and room[s]:
                        room[s] -= 1
                        could[m] = False
                        flowing[m] = now
                        if size[m] > 0:
                            active[num_active] = m
                            num_active += 1
                        else:
                            done.append(m)
            if not done:
                break
        left = fair_rates(active[:num_active], weight, ptr, hops, user_ptr, users, capacity, rate)
    return issued, flowing, arrived, busy
