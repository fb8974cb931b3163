"""Ranks that end in the middle of a layer: the others hear of it at once, and nothing is left in the store.

| rank 1                                   | rank 0 gets                              |
| ---------------------------------------- | ---------------------------------------- |
| is killed in a chunk                     | a CommError, within the deadline         |
| is interrupted while gradients are written | a CommError that says so               |
| has no room for the rows of a layer      | a CommError that says so, with sizes     |
"""

import os
import re
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dgcl
from tests.dgcl.offload.sets import random_graph


class Killed(nn.Module):
    """Ends its process, on rank 1, in the chunk with this number."""

    def __init__(self, is_me: bool, chunk: int):
        super().__init__()
        self.left = chunk if is_me else -1

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return g.sum(src)


def killed_rank(folder: str):
    comm = dgcl.build_comm_info(random_graph(30, 110, 3), "uniform", timeout=60.0)
    off = dgcl.Offload(comm, chunks=4, store=folder)
    x = off.dispatch_features(torch.ones(30, 2))
    off.layer(Killed(comm.rank == 1, 2), x)


@pytest.mark.slow
def test_a_rank_that_is_killed(tmp_path, forked_ranks: None):
    with pytest.raises(dgcl.CommError, match=r"rank 1"):
        dgcl.launch(killed_rank, 2, os.fspath(tmp_path), ranks="processes")
    assert not list(tmp_path.iterdir())


def test_a_rank_that_is_interrupted_in_a_write(tmp_path):
    def run() -> str:
        comm = dgcl.build_comm_info(random_graph(30, 110, 3), "uniform", method="direct", timeout=60.0)
        off = dgcl.Offload(comm, chunks=4, store=tmp_path, method="direct")
        x = off.dispatch_features(torch.ones(30, 2)).requires_grad_()
        loss = off.layer(nn.Linear(2, 2), x, aggregate="sum", keep=True).sum()
        if comm.rank == 1:

            def interrupted(*arguments: Any):
                raise KeyboardInterrupt

            off.store.unload = interrupted  # type: ignore[method-assign]
        try:
            loss.backward()
        except (dgcl.CommError, KeyboardInterrupt) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    first, second = dgcl.launch(run, 2)
    assert second.startswith("KeyboardInterrupt")
    assert re.search(r"rank 1: layer 1 \(Linear\) failed with KeyboardInterrupt", first), first
    assert not list(tmp_path.iterdir())


def test_a_rank_whose_disk_is_full(tmp_path, monkeypatch):
    """That of rank 0 when the second layer gives rows; rank 1, which has fewer, is told."""
    allocate, rows = os.posix_fallocate, 24 * 1000 * 4

    def full(descriptor: int, offset: int, num_bytes: int):
        if num_bytes == rows:
            raise OSError(28, "No space left on device")
        allocate(descriptor, offset, num_bytes)

    def run() -> str:
        part = (torch.arange(30) % 5 == 0).int().numpy()  # rank 0 has four times as many rows
        comm = dgcl.build_comm_info(
            random_graph(30, 110, 3), "uniform", part=part, method="direct", timeout=60.0
        )
        off = dgcl.Offload(comm, chunks=4, store=tmp_path, method="direct")
        x, kept = off.dispatch_features(torch.ones(30, 2)), {"aggregate": "sum", "keep": True}
        h = off.layer(nn.Linear(2, 8), x, **kept)
        try:
            off.layer(nn.Linear(8, 1000), h, **kept)
        except (dgcl.CommError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            off.close()
        return "nothing"

    monkeypatch.setattr(os, "posix_fallocate", full)
    first, second = dgcl.launch(run, 2)
    said = r"store: 96 kB of rows do not fit into .*, where .* are free \(No space left on device\)"
    assert re.match(rf"OSError: .*{said}", first), first
    assert re.search(rf"rank 0: layer 2 \(Linear\) failed with OSError: .*{said}", second), second
    assert not list(tmp_path.iterdir())
