"""Whether an aggregate is kept.

| case                              | judged by                                                    |
| --------------------------------- | ------------------------------------------------------------ |
| room decides                      | four times the aggregate, to the byte, of the fullest rank   |
| kept, made again                  | the same bits; rows counted over sets of vertices            |
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dgcl
from dgcl.offload.schedule import reorganise
from tests.dgcl.offload.sets import chunks_of, random_graph

GRAPH = random_graph(30, 110, 3)
PART = (np.arange(30) % 5 == 0).astype(np.int32)  # rank 0 has four times as many rows
WIDTH = 4
ROW_BYTES = WIDTH * 8


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


class Product(nn.Module):
    def __init__(self):
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


def counted() -> tuple[list[int], list[int]]:
    """Of each rank its rows, and the rows that it loads."""
    reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks_of(GRAPH, PART, 2, 4)]
    return np.bincount(PART).tolist(), reorganise(reads, PART)[1].host_rows.tolist()


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("full_rank", [0, 1])
def test_room_decides(monkeypatch, caplog, full_rank: int, own_rows: bool):
    rows, loads = counted()
    needed = 4 * rows[full_rank] * ROW_BYTES
    caplog.set_level(logging.INFO, "dgcl")

    def run(comm: dgcl.Communicator, off: dgcl.Offload, free: int) -> tuple[dict[str, int], str]:
        mine = 2 * free if comm.rank == full_rank else 1 << 40  # two ranks share what is free
        monkeypatch.setattr(off.store, "free_bytes", lambda: mine)
        return step(off, own_rows=own_rows)[0], off.describe()

    for free, way in ((needed, "kept: that takes"), (needed - 1, "made again: to keep it takes")):
        caplog.clear()
        kept = free == needed
        for rank, (moved, text) in enumerate(on_ranks(lambda comm, off, free=free: run(comm, off, free))):
            assert [moved.get(kind, 0) for kind in ("kept", "kept_again")] == [rows[rank] * kept] * 2
            assert moved["loaded"] == loads[rank]
            assert moved.get("loaded_again", 0) == (rows[rank] * own_rows if kept else loads[rank])
            assert f"aggregates of 32 bytes a row are {way}" in text
        (line,) = [each.message for each in caplog.records if "aggregates" in each.message]
        assert f"(layer 1 (Product)) are {way}" in line


@pytest.mark.parametrize("own_rows", [False, True])
def test_both_ways_give_the_same_bits(own_rows: bool):
    kept, again = (
        on_ranks(lambda comm, off, keep=keep: step(off, own_rows=own_rows, keep=keep))
        for keep in (True, False)
    )
    for (moved, one), (moved_again, other) in zip(kept, again, strict=True):
        assert moved["kept"]
        assert "kept" not in moved_again
        assert all(mine.equal(theirs) for mine, theirs in zip(one, other, strict=True))


def test_nothing_is_decided_without_a_backward():
    def run(comm: dgcl.Communicator, off: dgcl.Offload):
        x = off.dispatch_features(torch.ones(30, WIDTH, dtype=torch.float64))
        off.infer(lambda off, x: off.layer(Product(), x, aggregate="mean"), x)
        off.layer(Product(), x, aggregate="mean", constant=True).sum().backward()
        assert "aggregates of" not in off.describe()

    on_ranks(run)
