"""Prints what training steps take: chunks, predicted bytes of device memory, and resident bytes, anonymous and shared.

python -m tests.dgcl.offload.peak FOLDER CHUNKS_OR_LIMIT,... [GRAPH.npz [LAYER [metis|random]]]

Bytes are those above what was resident after set-up. Without a graph one rank has a band graph; with one, two processes
have a part each and the line is that of the rank that holds most. Rows are files in FOLDER, on a disk, so that they do
not count; shared memory is that of exchanges.
"""

import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import dgcl
from dgcl.graph import as_graph
from tests.dgcl.offload.limited import band

NUM_NODES = 30_000


class Layer(nn.Module):
    def __init__(self, name: str, width: int, out: int):
        super().__init__()
        self.name = name
        if name == "mean":
            self.conv: nn.Module = nn.Linear(width, out)
        elif name == "GCNConv":  # which takes no pair of rows
            self.conv = pyg.GCNConv(width, out, normalize=False)
        elif name.startswith("GAT"):
            self.conv = getattr(pyg, name)((width, width), out // 4, heads=4, add_self_loops=False)
        else:
            self.conv = getattr(pyg, name)(width, out)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        if self.name == "mean":
            return self.conv(g.mean(src))
        if self.name == "GCNConv":
            return self.conv(src, g.edge_index)[: len(dst)].relu()
        return self.conv((src, dst), g.edge_index).relu()


def resident() -> int:
    status = Path("/proc/self/status").read_text()
    return sum(int(status.split(name)[1].split()[0]) * 1024 for name in ("RssAnon:", "RssShmem:"))


def peak_of_step(
    comm: dgcl.Communicator, how: str, folder: str, name: str, widths: tuple[int, ...]
) -> tuple[int, int, int]:
    """(chunks, predicted, measured), the bytes of the rank that holds most."""
    layers = [Layer(name, *pair) for pair in pairwise(widths)]
    off = dgcl.Offload(
        comm,
        **({"chunks": int(how)} if how.isdigit() else {"memory_limit": how}),
        widths=widths,
        layers=layers,
        kind="csr" if name == "mean" else "pyg",
        store=folder,
        store_cached=False,
        keep_graphs=False,
    )
    device = off.memory().device
    assert device is not None
    ones = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (comm.num_nodes, widths[0]), (0, 0))
    h, labels = off.dispatch_features(ones), torch.zeros(off.num_owned, dtype=torch.int64)
    before, peak, is_over = resident(), 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(6):  # a busy machine may not look at the moment that counts
        rows = h
        for layer in layers:
            rows = off.layer(layer, rows)
        loss = off.cross_entropy(rows, labels)
        del rows
        loss.backward()
        del loss
    is_over.set()
    watcher.join()
    off.close()
    held, predicted = max(comm.control.exchange((peak - before, device.total)))
    return off.num_chunks, predicted, held


def on_rank(folder: str, how: str, graph: str = "", name: str = "mean", parts: str = "metis") -> list[Any]:
    """Of each number of chunks, or limit."""
    torch.set_num_threads(1)
    widths = (128, 128, 40) if graph else (256, 256, 256)
    peak_of_step(
        dgcl.build_comm_info(as_graph(band(1000))), "2", folder, name, widths
    )  # loads what a first step loads
    comm = dgcl.build_comm_info(graph or as_graph(band(NUM_NODES)), partition=parts)
    return [peak_of_step(comm, each, folder, name, widths) for each in how.split(",")]


if __name__ == "__main__":
    for line in dgcl.launch(on_rank, 1 + (len(sys.argv) > 3), *sys.argv[1:], ranks="processes")[0]:
        print(*line)
