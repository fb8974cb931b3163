"""The simulator: sharing solved by hand, and protocol orders."""

import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Plan, PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.event_simulator import ORDERS, simulate
from dgcl.planner.simulator.kernel import run
from dgcl.planner.simulator.plan_messages import messages
from dgcl.planner.simulator.trace import chrome_trace
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Connection, Device, Topology, preset
from tests.support.plan_cost import trees_of
from tests.support.planner_oracle import Edge, tree_edges
from tests.support.random_machines import instances
from tests.support.samples import named
from tests.support.small_machines import line, small_topology, switched

GB = 10**9


def plan_of(topology: Topology, classes: list, trees: list[tuple[int, int, list[Edge]]]) -> Plan:
    """A plan of the given trees; nothing but what the simulator reads."""
    relation = Relation.from_classes(topology.num_devices, classes)
    return Plan(relation, trees_of(*trees), topology, {"row_bytes": GB})


# Max-min fair sharing


@given(st.data())
def test_messages_flow_at_max_min_fair_rates_all_the_time(data: st.DataObject):
    """Beside exact numbers: all rates rise together, by weight, each until a direction on its way is full."""
    capacity = data.draw(st.lists(st.integers(1, 99).map(float), min_size=12, max_size=20))
    routes = data.draw(
        st.lists(st.sets(st.sampled_from(range(len(capacity))), min_size=1), min_size=12, max_size=30)
    )
    num, none = len(routes), np.zeros(len(routes) + 1, np.int64)
    weight, begin, size = (
        np.array(data.draw(st.lists(st.integers(low, low + 3), min_size=num, max_size=num)), float)
        for low in (1, 0, 2)
    )
    left, now, want = [Fraction(bytes_) for bytes_ in size], Fraction(), [0.0] * num
    width, slices = Fraction(1, 7), np.zeros((40, len(capacity)))
    while any(left):
        rising = {m for m in range(num) if left[m] and begin[m] <= now}
        rate, free = dict.fromkeys(rising, Fraction()), [Fraction(width) for width in capacity]
        while rising:
            load = [sum(Fraction(weight[m]) for m in rising if c in routes[m]) for c in range(len(free))]
            rise = min(free[c] / load[c] for c in range(len(free)) if load[c])
            free = [free[c] - rise * load[c] for c in range(len(free))]
            for m in rising:
                rate[m] += rise * Fraction(weight[m])
            rising = {m for m in rising if all(free[c] for c in routes[m])}
        step = min([left[m] / rate[m] for m in rate] + [Fraction(time) - now for time in begin if time > now])
        for k in range(40):
            within = max(Fraction(), min(now + step, (k + 1) * width) - max(now, k * width))
            for m in rate if within else ():
                slices[k, list(routes[m])] += float(within * rate[m])
        now += step
        for m in rate:
            left[m] -= step * rate[m]
            want[m] = float(now)
    arrived = run(
        size, begin, 0 * size, np.cumsum([0, *map(len, routes)]), np.concatenate([*map(list, routes)]),
        np.array(capacity), np.zeros(len(capacity), np.int32), none, none[:0], none[1:] - 1, weight,
        none[1:], none[1:] + num, np.array([0, num]), np.arange(num),
        carried := 0 * slices, float(width),
    )[2]  # fmt: skip
    assert carried == pytest.approx(slices, rel=1e-6, abs=1e-6)
    assert arrived == pytest.approx(want, rel=1e-9)


# Whole plans, solved by hand


def test_two_messages_share_and_the_longer_goes_on_alone():
    """0 sends 1 GB to 1 and 3 GB to 2 through one port of 1 GB/s: done at 2 s and 4 s."""
    plan = plan_of(switched(3, 1.0), [(0, {1}, 1), (0, {2}, 3)], [(0, 1, [(0, 1, 0)]), (1, 3, [(0, 2, 0)])])
    result = simulate(plan)
    assert result.arrived.tolist() == pytest.approx([2.0, 4.0])
    assert result.seconds == pytest.approx(4.0)
    assert result.rank_finish.tolist() == pytest.approx([4.0, 2.0, 4.0])
    busy = dict(zip(result.direction_names, result.direction_busy.tolist(), strict=True))
    assert busy["p0:d0>switch"] == pytest.approx(4.0)
    assert busy["p1:switch>d1"] == pytest.approx(2.0)
    assert busy["p1:d1>switch"] == 0


def test_a_relay_waits_for_its_rows():
    plan = plan_of(line(3), [(0, {2}, 6)], [(0, 6, [(0, 1, 0), (1, 2, 1)])])
    result = simulate(plan)
    assert (result.flowing.tolist(), result.arrived.tolist()) == ([0.0, 6.0], [6.0, 12.0])
    assert result.rank_wait.tolist() == [0.0, 6.0, 12.0]


@named(
    "change, wait",
    {
        "plain": ({}, [1.0, 0.0, 2.0]),
        "barrier": ({"order": "barrier"}, [2.0, 1.0, 2.0]),
        "who comes late makes others wait": ({"start": {1: 5.0}}, [6.0, 0.0, 7.0]),
        "a slow receiver": ({"slow": {2: 2.0}}, [1.0, 0.0, 3.0]),
    },
)
def test_who_waits(change: dict[str, Any], wait: list[float]):
    """Over links of 1 GB/s rank 0 sends 1 GB to 1, who passes it on to 2 and has 2 GB for 0.

    Rank 2 sends nothing, so it waits all the time; 0 waits for what 1 has, once it has sent its own.
    """
    plan = plan_of(line(3), [(0, {2}, 1), (1, {0}, 2)], [(0, 1, [(0, 1, 0), (1, 2, 1)]), (1, 2, [(1, 0, 1)])])
    result = simulate(plan, **change)
    assert result.rank_wait.tolist() == pytest.approx(wait)


@pytest.mark.parametrize("change", [{}, {"order": "neighbours"}, {"sends_at_once": 1}, {"start": {2: 0.1}}])
def test_a_rank_waits_while_it_sends_nothing(change: dict[str, Any]):
    """By looking at many instants: in the call, not done, and none of its messages flows."""
    relation = synthetic_relation("reddit", 8, scale=0.01)
    result = simulate(make_plan(relation, preset("dgx1"), method="spst"), **change)
    sent, steps = result.messages, 20_000
    instants = (np.arange(steps) + 0.5) * result.seconds / steps
    for rank in range(8):
        begin, end = (times[sent.src == rank] for times in (result.flowing, result.arrived))
        sends = (
            np.searchsorted(np.sort(begin), instants, "right") - np.searchsorted(np.sort(end), instants)
        ) > 0
        entry = change.get("start", {}).get(rank, 0.0)
        waits = (instants > entry) & (instants < result.rank_finish[rank]) & ~sends
        assert result.rank_wait[rank] == pytest.approx(
            waits.mean() * result.seconds, abs=20 / steps * result.seconds
        )


def test_messages_to_one_peer_keep_their_order():
    """Both could flow at once, but the second stage's waits its turn; the one to rank 2 does not."""
    edges = [(0, 2, [(0, 1, 0)]), (0, 2, [(0, 1, 1)]), (1, 4, [(0, 2, 1)])]
    wires = small_topology(3, [(0, 1, 1.0), (0, 2, 1.0)])
    result = simulate(plan_of(wires, [(0, {1}, 4), (0, {2}, 4)], edges))
    assert result.flowing.tolist() == [0.0, 2.0, 0.0]
    assert result.arrived.tolist() == [2.0, 4.0, 4.0]


def test_latency_is_paid_per_message_before_its_bytes():
    topology = Topology(
        "slow start",
        tuple(Device(f"d{r}") for r in range(3)),
        (
            Connection("a", "w", "d0", "d1", 1.0, latency=0.5),
            Connection("b", "w", "d1", "d2", 2.0, latency=0.25),
        ),
    )
    plan = plan_of(topology, [(0, {2}, 4)], [(0, 4, [(0, 1, 0), (1, 2, 1)])])
    result = simulate(plan)
    assert result.issued.tolist() == [0.0, 4.5]
    assert result.flowing.tolist() == [0.5, 4.75]
    assert result.seconds == pytest.approx(6.75)


def test_full_duplex_does_not_share_and_half_duplex_does():
    classes, trees = [(0, {1}, 4), (1, {0}, 2)], [(0, 4, [(0, 1, 0)]), (1, 2, [(1, 0, 0)])]
    full = simulate(plan_of(small_topology(2, [(0, 1, 1.0)]), classes, trees))
    half = simulate(plan_of(small_topology(2, [(0, 1, 1.0)], "half"), classes, trees))
    assert full.arrived.tolist() == pytest.approx([4.0, 2.0])
    assert half.arrived.tolist() == pytest.approx([6.0, 4.0])


# 0 -> 1 -> 2 early (stage 0, 1) beside 0 -> 3 late (stage 1), all over ports of 1 GB/s.
SWITCH = switched(4, 1.0)
MIXED = plan_of(
    SWITCH,
    [(0, {1}, 4), (0, {3}, 4), (1, {2}, 2), (1, {3}, 2)],
    [(0, 4, [(0, 1, 0)]), (1, 4, [(0, 3, 1)]), (2, 2, [(1, 2, 0)]), (3, 2, [(1, 3, 1)])],
)


@named(
    "options, arrived",
    {
        # stage 0: 0>1, 1>2; stage 1: 0>3, 1>3.
        "stage 1 begins at 4, rank 3's port is shared": ({"order": "barrier"}, [4, 2, 10, 8]),
        "rank 1 receives until 4": ({"order": "neighbours"}, [4, 2, 10, 8]),
        "rank 0 goes on at 4": ({"order": "neighbours", "slow": {2: 4.0}}, [4, 8, 8, 10]),
        "nobody goes on before 8": ({"order": "barrier", "slow": {2: 4.0}}, [4, 8, 14, 12]),
        "twice the bytes, twice the rate": ({"order": "barrier", "shares": "bytes"}, [4, 2, 10, 10]),
        "all at once, each half a port": ({"order": "eager"}, [8, 4, 8, 4]),
        "one core per rank": ({"order": "eager", "sends_at_once": 1}, [4, 2, 8, 4]),
        "rank 1 comes a second late": ({"order": "barrier", "start": {1: 1.0}}, [5, 3, 11, 9]),
    },
)
def test_orders(options: dict[str, Any], arrived: list[float]):
    result = simulate(MIXED, **options)
    kinds = list(zip(result.messages.stage.tolist(), result.messages.src.tolist(), strict=True))
    assert kinds == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert result.arrived.tolist() == pytest.approx(arrived)


def test_replay_on_another_machine():
    plan = make_plan(
        Relation.from_classes(3, [(0, {1, 2}, 4)]), switched(3, 1.0), "direct", PlanOptions(row_bytes=GB)
    )
    assert simulate(plan, topology=switched(3, 4.0)).seconds == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"sends from rank 0 \(d0\) to rank 2 \(d2\), but topology 'line'"):
        simulate(plan, topology=line(3))
    with pytest.raises(ValueError, match="4 devices but the plan is for 3 ranks"):
        simulate(plan, topology=switched(4))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"order": "late"}, "order must be one of eager, neighbours, barrier"),
        ({"shares": "weight"}, "shares must be one of equal, bytes"),
        ({"sends_at_once": 0}, "sends_at_once must be >= 1"),
        ({"row_bytes": 0}, "row_bytes must be >= 1"),
        ({"slow": {0: 0.5}}, r"slow\[0\] must be a finite number >= 1"),
        ({"slow": {9: 2.0}}, "slow names rank 9"),
        ({"start": {1: -1.0}}, r"start\[1\] must be a finite number >= 0"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        simulate(MIXED, **options)


def test_a_long_simulation_is_announced(monkeypatch, caplog):
    monkeypatch.setattr("dgcl.planner.simulator.event_simulator.SECONDS", 60.0)
    simulate(MIXED)
    assert "simulating 4 messages of 4 ranks takes about" in caplog.text


def test_a_plan_that_waits_in_a_circle_is_refused():
    plan = plan_of(SWITCH, [(0, {1, 2}, 1)], [(0, 1, [(1, 2, 0), (2, 1, 0)])])
    with pytest.raises(ValueError, match="wait for each other in a cycle"):
        simulate(plan)


@named(
    "order, seconds",
    {
        "all meet at the lowest rank": ("eager", 6.0),
        "each begins with the next rank, and none meet": ("neighbours", 3.0),
    },
)
def test_one_send_at_a_time_to_all_others(order: Any, seconds: float):
    """Four ranks with a port each, and a row for everybody.

    By the lowest rank first: 3 s at rank 0's port, while rank 0 has sent all; then 2 > 1 and 3 > 1 with 1 > 2, 1 > 3;
    then 2 > 3 with 3 > 2, a second each but for 2 > 1 and 3 > 1, which share a port.
    """
    everybody = range(4)
    classes = [(rank, set(everybody) - {rank}, 1) for rank in everybody]
    trees = [(rank, 1, [(rank, other, 0) for other in everybody if other != rank]) for rank in everybody]
    plan = plan_of(switched(4, 1.0), classes, trees)
    assert simulate(plan, order=order, sends_at_once=1).seconds == pytest.approx(seconds)


# Random plans


@given(instances(), st.sampled_from(ORDERS), st.sampled_from([None, 1, 2]))
def test_every_plan_runs_to_its_end_and_moves_its_bytes(
    case: tuple[Relation, Topology], order: Any, at_once: int | None
):
    plan = make_plan(*case, "spst", PlanOptions(row_bytes=10**6))
    result = simulate(plan, order=order, sends_at_once=at_once)
    assert result.bytes.sum() == plan.trees.rows_moved() * 10**6
    assert (result.issued <= result.flowing).all()
    assert (result.flowing < result.arrived).all()
    names = dict(zip(result.direction_names, result.direction_bytes.tolist(), strict=True))
    bandwidth = plan.topology.arrays().bandwidth * 1e9
    assert (result.direction_busy * bandwidth >= result.direction_bytes * (1 - 1e-6)).all()
    assert (result.direction_busy <= result.seconds * (1 + 1e-9)).all()
    assert len(names) == plan.topology.arrays().num_directions
    assert (result.rank_finish <= result.seconds).all()
    for i, after in zip(result.messages.before, result.messages.after, strict=True):
        assert result.arrived[i] <= result.issued[after] * (1 + 1e-12)
    assert result.seconds >= plan.lower_bound_seconds * (1 - 1e-9)


@given(instances())
def test_dependences_are_those_of_single_rows(case: tuple[Relation, Topology]):
    """Follow every tree: the message that carries its rows waits for the one that brought them, and for no others."""
    plan = make_plan(*case, "spst")
    found = messages(plan.trees, plan.world_size)
    ends = zip(found.stage.tolist(), found.src.tolist(), found.dst.tolist(), strict=True)
    number = {end: m for m, end in enumerate(ends)}
    want, rows = set(), dict.fromkeys(range(found.num), 0)
    for t in range(plan.trees.num_trees):
        brought: dict[int, int] = {}
        for s, d, k in tree_edges(plan.trees, t):
            brought[d] = number[k, s, d]
            rows[brought[d]] += int(plan.trees.tree_count[t])
            if s in brought:
                want.add((brought[s], brought[d]))
    assert found.rows.tolist() == [*rows.values()]
    got = list(zip(found.before.tolist(), found.after.tolist(), strict=True))
    assert set(got) == want
    assert len(got) == len(want)


@given(instances(latency=False))
def test_one_stage_on_one_shared_port_is_what_the_model_says(case: tuple[Relation, Topology]):
    """With barriers a stage never takes less than the model says: the busiest connection has that much to
    carry.
    """
    plan = make_plan(*case, "spst")
    assert simulate(plan, order="barrier").seconds >= plan.predicted_seconds * (1 - 1e-9)
    by_bytes = simulate(plan, order="barrier", shares="bytes")
    assert by_bytes.seconds == pytest.approx(
        plan.predicted_seconds, rel=1e-6
    )  # all end when the busiest does


# The trace


def test_the_trace_has_a_bar_per_message():
    result = simulate(MIXED, slices=50)
    trace = json.loads(json.dumps(chrome_trace(result)))
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(bars) == result.messages.num
    assert max(bar["ts"] + bar["dur"] for bar in bars) == pytest.approx(result.seconds * 1e6)
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for bar in bars:
        lanes.setdefault((bar["pid"], bar["tid"]), []).append((bar["ts"], bar["ts"] + bar["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == set(lanes)
    counters: dict[str, list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append((event["ts"], event["args"]["used"]))
    assert set(counters) == {
        n for n, b in zip(result.direction_names, result.direction_bytes, strict=True) if b
    }
    for name, steps in counters.items():
        area = sum(use * (after - at) for (at, use), (after, _) in itertools.pairwise(steps))
        mean = result.direction_used[result.direction_names.index(name)]
        assert area / (result.seconds * 1e6) == pytest.approx(mean, abs=1e-3)
        assert steps[-1][1] == 0
