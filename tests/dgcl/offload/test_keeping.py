"""Whether an aggregate is kept: by closed forms over sets of vertices, at the rate where both ways take equally long.

| case                              | judged by                                                    |
| --------------------------------- | ------------------------------------------------------------ |
| time decides                      | the rate of writes at which the formula has equality, +- 1%  |
| room decides                      | four times the aggregate, to the byte, of the fullest rank   |
| ranks whose hosts differ          | rows counted on each rank: all follow the slowest            |
| kept, made again                  | the same bits; the counts of either formula                  |
| what is measured                  | positive, and not seen by the store's account                |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dgcl
from dgcl.offload import keeping
from dgcl.offload.host_store import HostStore
from dgcl.offload.schedule import reorganise
from dgcl.replication.work import Work
from tests.dgcl.offload.sets import chunks_of, random_graph

GRAPH = random_graph(30, 110, 3)
PART = (np.arange(30) % 5 == 0).astype(np.int32)  # rank 0 has four times as many rows
WIDTH = 4
ROW_BYTES = WIDTH * 8
READ, EDGE = 3e-6, 7e-6  # seconds of a byte


def on_ranks(function: Callable[..., Any], **options: Any) -> list[Any]:
    def run() -> Any:
        comm = dgcl.build_comm_info(GRAPH, "uniform", part=PART, method="direct")
        settings: dict[str, Any] = {
            "chunks": 4,
            "chunk_by": "range",
            "method": "direct",
        }
        off = dgcl.Offload(comm, **{**settings, **options})
        result = function(comm, off)
        off.close()
        comm.close()
        return result

    return dgcl.launch(run, 2)


def measure(monkeypatch: pytest.MonkeyPatch, write: float, slow_rank: int = -1) -> None:
    """Let measurements find these rates; on one rank a byte is written in a second."""

    def host(store: HostStore) -> tuple[float, float]:
        return READ, 1.0 if getattr(store, "rank", None) == slow_rank else write

    monkeypatch.setattr(keeping, "host_seconds", host)
    monkeypatch.setattr(keeping, "measure_together", lambda control, row_bytes: Work(EDGE * row_bytes, 0.0))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 3, generator=torch.Generator().manual_seed(1)).double())

    def forward(self, aggregate: Tensor, own: Tensor | None = None) -> Tensor:
        out = torch.tanh(aggregate @ self.weight)
        return out if own is None else out + own[:, :1]


def step(off: dgcl.Offload, **options: Any) -> tuple[dict[str, int], list[Tensor]]:
    """Rows that a layer with its backward counts, and its gradients."""
    values = torch.randn(30, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, layer = off.dispatch_features(values).requires_grad_(), Product()
    off.account.rows.clear()
    off.layer(layer, x, aggregate="sum", **options).square().sum().backward()
    return dict(off.account.rows), [x.grad, layer.weight.grad]


def counted() -> tuple[list[int], list[int], list[int]]:
    """Of each rank its rows, the rows that it loads, and its in-edges."""
    reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks_of(GRAPH, PART, 2, 4)]
    loads = reorganise(reads, PART)[1].host_rows.tolist()
    _, heads = GRAPH.edges()
    return np.bincount(PART).tolist(), loads, np.bincount(PART[heads]).tolist()


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_time_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    own_rows: bool,
    prefetch: bool,
) -> None:
    rows, loads, edges = counted()
    caplog.set_level(logging.INFO, "dgcl")

    def seconds(off: dgcl.Offload) -> tuple[float, float]:
        """(of the exchanges and what is made again; of equality the seconds of a written byte)."""
        exchange = off._arrangement.exchange_seconds / off.comm.plan.row_bytes * ROW_BYTES
        each = [(m * READ, e * EDGE) for m, e in zip(loads, edges, strict=True)]
        again = exchange + ROW_BYTES * max(
            max(pair) if prefetch and off.store.on_disk else sum(pair) for pair in each
        )
        return again, again / (max(rows) * ROW_BYTES) - READ * (1 + own_rows)

    options = {"store": tmp_path, "prefetch": prefetch}
    ((again, equal), _) = on_ranks(lambda comm, off: seconds(off), **options)
    assert equal > 0
    for factor, kept in ((0.99, True), (1.01, False)):
        measure(monkeypatch, factor * equal)
        caplog.clear()
        told = on_ranks(lambda comm, off: (step(off, own_rows=own_rows)[0], off.describe()), **options)
        for rank, (moved, text) in enumerate(told):
            assert (moved.get("kept", 0), moved.get("kept_again", 0)) == (
                (rows[rank],) * 2 if kept else (0, 0)
            )
            assert moved["loaded"] == loads[rank]
            assert moved.get("loaded_again", 0) == (rows[rank] * own_rows if kept else loads[rank])
            way = "kept: predicted" if kept else f"made again: predicted {again:.3g} s"
            assert f"aggregates of 32 bytes a row{' and own rows' if own_rows else ''} are {way}" in text
        (line,) = [each.message for each in caplog.records if "aggregates" in each.message]
        assert f"(layer 1 (Product)) are {'kept' if kept else 'made again'}: predicted" in line


def test_ranks_follow_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(comm: dgcl.Communicator, off: dgcl.Offload) -> int:
        off.store.rank = comm.rank  # type: ignore[attr-defined]
        return step(off)[0].get("kept", 0)

    for slow_rank in (-1, 0, 1):
        measure(monkeypatch, 1e-9, slow_rank)
        assert all(bool(kept) == (slow_rank < 0) for kept in on_ranks(run))


@pytest.mark.parametrize("full_rank", [0, 1])
def test_room_decides(monkeypatch: pytest.MonkeyPatch, full_rank: int) -> None:
    measure(monkeypatch, 0.0)
    needed = 4 * counted()[0][full_rank] * ROW_BYTES

    def run(comm: dgcl.Communicator, off: dgcl.Offload, free: int) -> tuple[int, str]:
        mine = 2 * free if comm.rank == full_rank else 1 << 40  # two ranks share what is free
        monkeypatch.setattr(off.store, "free_bytes", lambda: mine)
        return step(off)[0].get("kept", 0), off.describe()

    assert all(kept for kept, _ in on_ranks(lambda comm, off: run(comm, off, needed)))
    for kept, text in on_ranks(lambda comm, off: run(comm, off, needed - 1)):
        assert not kept
        assert "made again: to keep it takes" in text


@pytest.mark.parametrize("own_rows", [False, True])
def test_both_ways_give_the_same_bits(own_rows: bool) -> None:
    kept, again = (
        on_ranks(lambda comm, off, keep=keep: step(off, own_rows=own_rows, keep=keep))
        for keep in (True, False)
    )
    for (moved, one), (moved_again, other) in zip(kept, again, strict=True):
        assert moved["kept"]
        assert "kept" not in moved_again
        assert all(mine.equal(theirs) for mine, theirs in zip(one, other, strict=True))


def test_nothing_is_decided_without_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(keeping, "measure_together", never)

    def run(comm: dgcl.Communicator, off: dgcl.Offload) -> None:
        x = off.dispatch_features(torch.ones(30, WIDTH, dtype=torch.float64))
        off.infer(lambda off, x: off.layer(Product(), x, aggregate="mean"), x)
        off.layer(Product(), x, aggregate="mean", constant=True).sum().backward()
        assert "aggregates of" not in off.describe()

    on_ranks(run)


@pytest.mark.parametrize("cached", [None, True, False])
def test_what_is_measured(tmp_path: Path, cached: bool | None) -> None:
    store = HostStore(None if cached is None else tmp_path, cached is not False)
    assert all(0 < seconds < 1e-3 for seconds in keeping.host_seconds(store))
    assert (store.bytes_read, store.bytes_written, store.peak) == (0, 0, {})
    assert not list(tmp_path.iterdir())
    before = store.free_bytes()
    assert before > 0
    if cached is not None:
        rows = store.empty((1 << 20, 4), torch.float32)
        assert store.free_bytes() < before
        del rows
