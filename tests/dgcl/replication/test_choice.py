"""When "auto" replicates, when it does not, and what it says; and what happens to those who insist."""

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgcl.frameworks.layer_work import measure_work
from dgcl.graph import as_graph
from dgcl.prepare.share import Share
from dgcl.prepare.shares import prepare
from dgcl.replication import METHOD, choice
from dgcl.replication.choice import Replication
from dgcl.replication.work import Work
from tests.dgcl.replication.machines import LAYOUTS, machines

ROOT = Path(__file__).resolve().parents[3]
GRAPH = as_graph(np.random.default_rng(8).integers(0, 200, (2, 300)), num_nodes=200)
PART = np.arange(200) * 4 // 200
CHEAP, SOME, EXPENSIVE = (Work(seconds, seconds) for seconds in (1e-12, 1e-8, 1e-6))


def shares_with(
    method: str = "auto", network: float = 0.1, work: Work = CHEAP, hops: int | None = 2, **replication: Any
) -> list[Share]:
    return prepare(
        GRAPH,
        4,
        machines(LAYOUTS["two-of-two"], network),
        part=PART,
        method=method,
        strategy=Replication(hops, work=work, **replication),
    )


def layer_seconds(shares: list[Share], work: Work) -> float:
    """Twice the exchange, and the busiest rank's sums (twice) and products (three times)."""
    busy = [2 * work.edge * s.local.num_edges + 3 * work.row * s.local.num_owned for s in shares]
    return 2 * shares[0].plan.predicted_seconds + max(busy)


@pytest.mark.parametrize(
    "network, work, replicates",
    [(0.001, CHEAP, True), (1000.0, SOME, False), (0.001, EXPENSIVE, True), (10.0, EXPENSIVE, False)],
)
def test_auto_takes_what_is_faster(network: float, work: Work, replicates: bool) -> None:
    found = shares_with("auto", network, work)
    copied, plain = shares_with(METHOD, network, work), shares_with("auto", network, work, hops=None)
    assert ("replication" in found[0].plan.meta) == replicates
    assert layer_seconds(found, work) == min(layer_seconds(copied, work), layer_seconds(plain, work))
    name = METHOD if replicates else "the ordinary plan"
    assert all(share.choice.startswith(f"auto chose {name}: ") for share in found)
    assert found[0].plan.method == "auto"
    assert copied[0].plan.method == METHOD


def test_auto_says_what_both_would_take() -> None:
    text = shares_with("auto", 0.001)[0].choice
    assert text.count("of exchange") == text.count("of work") == text.count("on the fullest rank") == 2
    assert "with the ordinary plan" in text
    assert "copies of a vertex" in text


def test_auto_keeps_to_the_memory_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives the limit; and rows that do not fit are found before anything is copied."""
    monkeypatch.setattr(choice, "copy_graph", None)
    for limits in ({"limit": 10_000}, {"free": (10**9, 10**9, 10_000, 10**9)}):
        (share, *_) = shares_with("auto", 0.001, **limits)
        assert "replication" not in share.plan.meta
        assert f"{METHOD} does not fit, rank " in share.choice
        assert "and may take 10 kB" in share.choice


def test_a_given_limit_counts_and_not_what_is_free() -> None:
    assert "replication" in shares_with("auto", 0.001, limit=10**9, free=(1, 1, 1, 1))[0].plan.meta


def test_halo_rows_count_when_they_are_known() -> None:
    """Between what is known before the ranks' replicas are, and after: refused in the second look."""
    held = shares_with(METHOD)
    needed = [
        s.local.num_local * 3 * 512
        + sum(a.nbytes for a in vars(s.local).values() if isinstance(a, np.ndarray))
        for s in held
    ]
    assert shares_with(METHOD, limit=max(needed))[0].plan.method == METHOD
    with pytest.raises(MemoryError, match=r"does not fit: rank \d would hold about"):
        shares_with(METHOD, limit=max(needed) - 1)


def test_who_insists_is_told_what_it_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "copy_graph", None)
    with pytest.raises(
        MemoryError, match=rf"'{METHOD}' does not fit: rank \d would hold at least .* Take fewer hops"
    ):
        shares_with(METHOD, limit=10_000)
    monkeypatch.setattr("dgcl.replication.choice.available_memory", lambda: 5_000)
    with pytest.raises(MemoryError, match=r"rank 0 would take .* to copy the graph, and 5 kB are free there"):
        shares_with(METHOD)


def test_hops_must_be_told() -> None:
    with pytest.raises(ValueError, match=rf"hops must be given with method '{METHOD}'"):
        shares_with(METHOD, hops=None)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="hops must be an integer from 1 to 1000"):
            shares_with("auto", hops=wrong)  # type: ignore[arg-type]


def test_auto_without_hops_says_that_it_cannot(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dgcl"):
        shares = shares_with("auto", 0.001, hops=None)
    assert f"{METHOD} was not considered: hops, the number of layers, was not given" in caplog.text
    assert shares[0].choice == ""


@pytest.mark.parametrize("method", [METHOD, "auto"])
def test_on_one_machine_nothing_is_replicated(method: str) -> None:
    shares = prepare(GRAPH, 4, "uniform", part=PART, method=method, strategy=Replication(2))
    plain = prepare(GRAPH, 4, "uniform", part=PART)
    assert shares[0].plan.fingerprint == plain[0].plan.fingerprint
    assert all(share.local.num_replicas == 0 for share in shares)
    assert shares[0].choice == "the ordinary plan: all ranks are on one machine, so nothing is replicated"
    assert plain[0].choice == ""


def test_another_method_is_not_weighed() -> None:
    assert shares_with("direct", 0.001)[0].plan.method == "direct"


def test_ranks_that_only_another_machine_joins() -> None:
    """Rank 0 and 1 share a machine and no wire: rows go by rank 2, so replicas cannot do without it."""
    from dgcl.topology import Connection, Device, Topology

    devices = tuple(Device(f"d{rank}", machine=(0, 0, 1)[rank]) for rank in range(3))
    wires = tuple(Connection(f"w{rank}", "wire", f"d{rank}", "d2", 0.001) for rank in (0, 1))
    topology = Topology("detour", devices, wires)
    edges = np.array([[0, 1, 1, 0, 2], [1, 0, 2, 2, 0]])
    arguments: dict[str, Any] = {"part": np.arange(3), "strategy": Replication(1, work=CHEAP)}
    (share, *_) = prepare(edges, 3, topology, **arguments)
    assert f"{METHOD} is impossible" in share.choice
    with pytest.raises(ValueError, match="rows are needed but cannot get there"):
        prepare(edges, 3, topology, method=METHOD, **arguments)


def test_only_a_missing_route_makes_replicas_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error of the planner is one, and not a reason to take the ordinary plan."""
    plan = choice.make_plan

    def fail_inside(relation: Any, topology: Any, *others: Any) -> Any:
        if "inside machines" in topology.name:
            raise ValueError("a mistake of ours")
        return plan(relation, topology, *others)

    monkeypatch.setattr(choice, "make_plan", fail_inside)
    with pytest.raises(ValueError, match="a mistake of ours"):
        shares_with("auto", 0.001)


def test_the_cache_gives_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(hops: int) -> list[Share]:
        topology = machines(LAYOUTS["two-of-two"], 0.001)
        wanted = Replication(hops, work=CHEAP)
        return prepare(GRAPH, 4, topology, cache=tmp_path, strategy=wanted)

    first, other = made(2), made(1)
    assert first[0].plan.fingerprint != other[0].plan.fingerprint
    monkeypatch.setattr(choice, "make_plan", None)
    again = made(2)
    for mine, theirs in zip(first, again, strict=True):
        assert mine.plan.fingerprint == theirs.plan.fingerprint
        for name in ("owned_ids", "halo_ids", "indices", "num_replicas"):
            assert np.array_equal(getattr(mine.local, name), getattr(theirs.local, name))


def test_what_is_cached_are_plans_and_not_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same entries serve a job with other costs, and one with less memory."""

    def made(work: Work, **limits: Any) -> list[Share]:
        topology = machines(LAYOUTS["two-of-two"], 0.1)
        return prepare(
            GRAPH, 4, topology, part=PART, cache=tmp_path, strategy=Replication(2, work=work, **limits)
        )

    first = made(CHEAP)
    assert "replication" in first[0].plan.meta
    entries = sorted(tmp_path.iterdir())
    assert len(entries) == 2
    monkeypatch.setattr(choice, "make_plan", None)
    for shares in (made(Work(1e-3, 1e-3)), made(CHEAP, limit=10_000), made(CHEAP, free=(10_000,) * 4)):
        assert "replication" not in shares[0].plan.meta
        assert shares[0].choice.startswith("auto chose the ordinary plan: ")
    assert made(CHEAP)[0].plan.fingerprint == first[0].plan.fingerprint
    monkeypatch.setattr(choice, "available_memory", lambda: 5_000)
    assert "5 kB are free there" in made(CHEAP)[0].choice
    assert sorted(tmp_path.iterdir()) == entries


@pytest.mark.parametrize("limit", [10_000, "halo"])
def test_what_was_asked_for_must_fit_also_where_it_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | str
) -> None:
    def made(limit: int | None = None) -> list[Share]:
        wanted = Replication(2, limit)
        topology = machines(LAYOUTS["two-of-two"], 0.1)
        return prepare(GRAPH, 4, topology, part=PART, method=METHOD, cache=tmp_path, strategy=wanted)

    first = made()
    if limit == "halo":  # one byte less than the fullest rank holds
        limit = max(
            s.local.num_local * 3 * 512
            + sum(a.nbytes for a in vars(s.local).values() if isinstance(a, np.ndarray))
            for s in first
        )
        limit -= 1
    monkeypatch.setattr(choice, "make_plan", None)
    with pytest.raises(MemoryError, match="does not fit: rank"):
        made(int(limit))
    assert made()[0].plan.fingerprint == first[0].plan.fingerprint


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1G"])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(ValueError, match="memory_limit must be a positive whole number of bytes"):
        shares_with("auto", limit=limit)


def test_the_same_input_gives_the_same_plan() -> None:
    first, second = (shares_with(METHOD) for _ in range(2))
    assert first[0].plan.fingerprint == second[0].plan.fingerprint


@pytest.mark.parametrize("row_bytes", [1, 512, 1 << 20])
def test_work_is_measured_in_positive_seconds(row_bytes: int) -> None:
    work = measure_work(row_bytes)
    assert 0 < work.edge < math.inf
    assert 0 < work.row < math.inf
    assert "ns an edge" in str(work)


@pytest.mark.slow
def test_planning_replicas_loads_no_torch() -> None:
    """As is done where there is no GPU to wait for."""
    code = (
        "import sys, numpy as np\n"
        "from dgcl.graph import as_graph\n"
        "from dgcl.planner import PlanOptions\n"
        "from dgcl.program.strategy import Problem\n"
        "from dgcl.replication.choice import Replication\n"
        "from dgcl.replication.work import Work\n"
        "from tests.dgcl.replication.machines import machines\n"
        "graph, part = as_graph(np.array([[0, 1, 2, 3], [1, 2, 3, 0]])), np.arange(4, dtype=np.int32)\n"
        "wanted = Replication(1, work=Work(0.0, 0.0))\n"
        "wanted.arrange(Problem(graph, part, machines([0, 0, 1, 1]), 'auto', PlanOptions()))\n"
        "print('torch' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "False\n"
