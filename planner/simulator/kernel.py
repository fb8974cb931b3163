"""The event loop of the simulator, compiled: messages that share connections max-min fairly.

It knows nothing of plans, stages or costs: only messages with a size, a latency, a route, and what they wait for.
"""

import heapq
from typing import Any

import numpy as np

from dgcl.planner.planner_compiled import compiled

WINDOW = 8  # directions among which the next one to fill is sought at first


@compiled
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
    issued, flowing, arrived = np.full((3, num), np.nan)
    waiting = np.bincount(next_message, minlength=next_ptr.shape[0] - 1)
    ahead = np.ones(num, np.int64)  # what must end before the bytes flow: the latency, and the message ahead
    ahead[behind[behind >= 0]] = 2
    latencies = [(0.0, -1)]  # a heap of (end of its latency, message), typed by its first entry
    heapq.heappop(latencies)
    for m in range(num):
        if waiting[m] == 0:
            issued[m] = release[m]
            heapq.heappush(latencies, (release[m] + latency[m], m))
    # Messages held by a direction are a list: head, and what is after each.
    tag, after, head = size / weight, np.empty(num, np.int64), np.full(num_directions, -1, np.int64)
    clock, total, busy, rate = np.zeros((4, num_directions))
    level = np.ones(num_directions)
    due = np.full(num_directions, np.inf)  # the first tag that each direction holds
    order, place = np.arange(num_directions), np.arange(num_directions)
    sizes = np.bincount(part_of)
    parts, touched = np.append(0, np.cumsum(sizes)), sizes < 0
    # What direction c holds over the direction that is number i of the same part: crossing[c, i].
    number = order - parts[part_of]
    crossing = np.zeros((num_directions, num_directions and sizes.max()))

    def hold(m: Any, c: Any) -> None:
        for i in range(ptr[m], ptr[m + 1]):
            crossing[c, number[hops[i]]] += weight[m]
        due[c] = min(due[c], tag[m])
        after[m], head[c] = head[c], m

    def release_all(c: Any) -> Any:
        m, head[c], due[c] = head[c], -1, np.inf
        crossing[c] = 0
        return m

    now, done = 0.0, [gate for gate in range(num, waiting.shape[0]) if waiting[gate] == 0]
    while True:
        # 1. Release what waited for arrived messages, and start it.
        free = [0]  # senders that may send more
        free.pop()
        while len(done):
            m = done.pop()
            if m < num:
                arrived[m] = now
                room[sender[m]] += 1
                free.append(sender[m])
                if behind[m] >= 0:
                    ahead[behind[m]] -= 1
            for i in range(next_ptr[m], next_ptr[m + 1]):
                other = next_message[i]
                waiting[other] -= 1
                if waiting[other] == 0:
                    if other < num:
                        issued[other] = max(now, release[other])
                        heapq.heappush(latencies, (issued[other] + latency[other], other))
                    else:
                        done.append(other)
        while len(latencies) and latencies[0][0] <= now:
            _, m = heapq.heappop(latencies)
            ahead[m] -= 1
            free.append(sender[m])
        for s in free:
            for m in sends[send_ptr[s] : send_ptr[s + 1]]:
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
                    hold(m, c)
                    touched[part_of[c]] = True
        # 2. New rates in the parts where messages began or ended.
        for part in np.flatnonzero(touched):
            low, high, touched[part] = parts[part], parts[part + 1], False
            left, weights = capacity[low:high].copy(), total[low:high].copy()
            step, last, window = low, 0.0, WINDOW
            while step < high:
                nearest, share = step, np.inf
                for i in range(step, min(high, step + window)):
                    d = order[i] - low
                    if weights[d] == 0:
                        nearest, share = i, last if left[d] > -1e-12 * capacity[d + low] else -1.0
                        break
                    if left[d] < share * weights[d]:
                        nearest, share = i, left[d] / weights[d]
                if share < last * (1 - 1e-12) and window < high - low:
                    left[:], weights[:] = capacity[low:high], total[low:high]
                    step, last, window = low, 0.0, 2 * window
                    continue
                last, tightest = share, order[nearest]
                for passed in range(nearest, step, -1):
                    c = order[passed - 1]
                    order[passed] = c
                    following = release_all(c) if crossing[c, tightest - low] > 0 else -1
                    while following >= 0:
                        m, following = following, after[following]
                        holder = c
                        for i in range(ptr[m], ptr[m + 1]):
                            if hops[i] == tightest:
                                holder = tightest
                        tag[m] += clock[holder] - clock[c]
                        hold(m, holder)
                order[step], place[tightest], level[tightest] = tightest, step, max(share, 0.0)
                taken = crossing[tightest]
                for i in range(left.shape[0]):
                    left[i] -= share * taken[i]
                    weights[i] -= taken[i]
                step += 1
            rate[low:high] = capacity[low:high] - left
        # 3. Go to the next moment at which anything changes.
        through, then = now + (due - clock) / level, now
        now = through.min() if num_directions else np.inf
        if len(latencies):
            now = min(now, latencies[0][0])
        if now == np.inf:
            return issued, flowing, arrived, busy
        clock += level * (now - then)
        for k in range(int(then / width), min(int(now / width) + 1, carried.shape[0])):
            carried[k] += rate * max(0.0, min(now, (k + 1) * width) - max(then, k * width))
        # Through within a rounding error is through now: equal messages finish together.
        soon = now * (1 + 1e-12)
        for c in np.flatnonzero(through <= soon):
            reached, touched[part_of[c]] = max(due[c], clock[c] + level[c] * (soon - now)), True
            following = release_all(c)
            while following >= 0:
                m, following = following, after[following]
                if tag[m] > reached:
                    hold(m, c)
                    continue
                done.append(m)
                for i in range(ptr[m], ptr[m + 1]):
                    total[hops[i]] -= weight[m]
                    if total[hops[i]] == 0:
                        busy[hops[i]] += now
