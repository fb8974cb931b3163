"""Ranks that are processes with devices of host memory, and exchange through the network although they need not."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import dgcl
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, Memory
from tests.dgcl.transport.cuda.fake_ranks import open_fake
from tests.dgcl.transport.cuda.gloo_as_nccl import GlooAsNccl


def exchange_by_network(edges: np.ndarray, part: np.ndarray, nccl: bool) -> dict[str, Any]:
    """One rank: what it gets in an expand and a fold, through the hosts, or by what it takes for NCCL."""
    fake = FakeCuda(Memory(), uuid=os.getpid())
    made: list[GlooAsNccl] = []

    class Backend(GlooAsNccl):
        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            super().__init__(fake, store, rank, size)
            made.append(self)

    with (
        patch("dgcl.transport.cuda.gpu.open_device", lambda device: open_fake(fake)),
        patch.object(dist, "is_nccl_available", lambda: nccl),
        patch.object(dist, "ProcessGroupNCCL", Backend, create=True),
    ):
        comm = dgcl.build_comm_info(
            edges, "uniform:2", part=part, method="direct", device="cuda", channel="network", timeout=60.0
        )
    try:
        ids = torch.cat([comm.owned_ids, comm.halo_ids])
        rows = (comm.owned_ids[:, None] * 10 + torch.arange(3)).to(torch.float32)
        expanded = comm.expand(rows)
        comm.synchronize()
        folded = comm.fold(ids[:, None].to(torch.bfloat16).expand(-1, 2))
        comm.synchronize()
        return {
            "kind": type(comm.transport).__name__,
            "expanded": expanded[:, 0].tolist() == [10.0 * number for number in ids.tolist()],
            "folded": dict(zip(comm.owned_ids.tolist(), folded[:, 0].float().tolist(), strict=True)),
            "described": comm.describe(),
            "messages": sum(backend.num_messages for backend in made),
            "sent": comm.bytes_sent["expand"].tolist(),
        }
    finally:
        comm.close()
        fake.stop()
