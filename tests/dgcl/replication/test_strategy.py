"""Replicas as a strategy: what fits and what does not, where there is nothing to replicate, and what is cached."""

from typing import Any

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.prepare.share import Share
from dgcl.replication import strategy
from dgcl.replication.strategy import Replicas
from tests.dgcl.replication.machines import LAYOUTS, machines
from tests.dgcl.support_shares import prepare

GRAPH = as_graph(np.random.default_rng(8).integers(0, 200, (2, 300)), num_nodes=200)
PART = np.arange(200) * 4 // 200


def shares_with(hops: int = 2, **limits: Any) -> list[Share]:
    topology = machines(LAYOUTS["two-of-two"], 0.1)
    return prepare(GRAPH, 4, topology, part=PART, strategy=Replicas(hops, **limits))


def needed(shares: list[Share]) -> int:
    """Bytes of the fullest rank: rows of 512 bytes of two layers and the result, and the local graph."""
    return max(
        s.local.num_local * 3 * 512
        + sum(a.nbytes for a in vars(s.local).values() if isinstance(a, np.ndarray))
        for s in shares
    )


def test_it_says_what_replicas_take():
    share, *others = shares_with()
    assert "copies of a vertex" in share.choice
    assert "on the fullest rank" in share.choice
    assert all(other.choice == share.choice for other in others)
    assert share.plan.meta["replication"]["hops"] == 2
    assert shares_with()[0].plan.fingerprint == share.plan.fingerprint


def test_halo_rows_count_when_they_are_known():
    """Between what is known before the ranks' replicas are, and after: refused in the second look."""
    most = needed(shares_with())
    assert (
        "replication" in shares_with(memory_limit=most, free=(1, 1, 1, 1))[0].plan.meta
    )  # a limit goes before what is free
    with pytest.raises(MemoryError, match=r"do not fit: rank \d would hold about"):
        shares_with(memory_limit=most - 1)


def test_what_is_far_too_large_is_not_copied(monkeypatch):
    monkeypatch.setattr(strategy, "copy_graph", None)
    for limits in ({"memory_limit": 10_000}, {"free": (10**9, 10**9, 10_000, 10**9)}):
        with pytest.raises(
            MemoryError,
            match=r"do not fit: rank \d would hold at least .* take 10 kB.* Take fewer",
        ):
            shares_with(**limits)
    monkeypatch.setattr(strategy, "available_memory", lambda: 5_000)
    with pytest.raises(MemoryError, match=r"rank 0 would take .* to copy the graph, and 5 kB are free there"):
        shares_with()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_hops_are_a_number_of_layers(wrong: Any):
    with pytest.raises((TypeError, ValueError), match="hops must be an integer from 1 to 1000"):
        Replicas(wrong)


def test_on_one_machine_nothing_is_replicated():
    shares = prepare(GRAPH, 4, "uniform", part=PART, strategy=Replicas(2))
    plain = prepare(GRAPH, 4, "uniform", part=PART)
    assert shares[0].plan.fingerprint == plain[0].plan.fingerprint
    assert all(share.local.num_replicas == 0 for share in shares)
    assert shares[0].choice == "the ordinary plan: all ranks are on one machine, so nothing is replicated"
    assert plain[0].choice == ""


def test_ranks_that_only_another_machine_joins():
    """Rank 0 and 1 share a machine and no wire: rows go by rank 2, so replicas cannot do without it."""
    from dgcl.topology import Connection, Device, Topology

    devices = tuple(Device(f"d{rank}", machine=(0, 0, 1)[rank]) for rank in range(3))
    wires = tuple(Connection(f"w{rank}", "wire", f"d{rank}", "d2", 0.001) for rank in (0, 1))
    topology = Topology("detour", devices, wires)
    edges = np.array([[0, 1, 1, 0, 2], [1, 0, 2, 2, 0]])
    with pytest.raises(ValueError, match="rows are needed but cannot get there"):
        prepare(edges, 3, topology, part=np.arange(3), strategy=Replicas(1))


def test_the_cache_gives_the_same_again(tmp_path, monkeypatch):
    def made(hops: int) -> list[Share]:
        topology = machines(LAYOUTS["two-of-two"], 0.001)
        return prepare(GRAPH, 4, topology, cache=tmp_path, strategy=Replicas(hops))

    first, other = made(2), made(1)
    assert first[0].plan.fingerprint != other[0].plan.fingerprint
    monkeypatch.setattr(strategy, "make_plan", None)
    again = made(2)
    for mine, theirs in zip(first, again, strict=True):
        assert mine.plan.fingerprint == theirs.plan.fingerprint
        for name in ("owned_ids", "halo_ids", "indices", "num_replicas"):
            assert np.array_equal(getattr(mine.local, name), getattr(theirs.local, name))


def test_it_must_fit_also_where_it_is_cached(tmp_path, monkeypatch):
    def made(limit: int | None = None) -> list[Share]:
        topology = machines(LAYOUTS["two-of-two"], 0.1)
        return prepare(GRAPH, 4, topology, part=PART, cache=tmp_path, strategy=Replicas(2, limit))

    first = made()
    monkeypatch.setattr(strategy, "make_plan", None)
    for limit in (10_000, needed(first) - 1):
        with pytest.raises(MemoryError, match="do not fit: rank"):
            made(limit)
    assert made()[0].plan.fingerprint == first[0].plan.fingerprint
