"""Prints (predicted bytes of device memory, anonymous resident bytes above those after set-up) of training steps.

python -m tests.dgcl.offload.peak FOLDER CHUNKS...
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dgcl
from dgcl.graph import as_graph
from tests.dgcl.offload.limited import band

NUM_NODES, WIDTH = 30_000, 256


class Mean(nn.Module):
    """A product of means."""

    def __init__(self):
        super().__init__()
        self.product = nn.Linear(WIDTH, WIDTH)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        return self.product(g.mean(src))


def anonymous() -> int:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")
    )
    return int(line.split()[1]) * 1024


def peak_of_step(comm: dgcl.Communicator, chunks: int, folder: str) -> tuple[int, int]:
    """(predicted, measured) bytes."""
    options = {"store": folder, "store_cached": False, "keep_graphs": False, "prefetch": False}
    layers = [Mean(), Mean()]
    off = dgcl.Offload(comm, chunks=chunks, widths=(WIDTH,) * 3, layers=layers, chunk_by="range", **options)
    device = off.memory().device
    assert device is not None
    ones = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (comm.num_nodes, WIDTH), (0, 0))
    h, labels = off.dispatch_features(ones), torch.zeros(comm.num_nodes, dtype=torch.int64)
    before, peak, is_over = anonymous(), 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.is_set():
            peak = max(peak, anonymous())
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
    return device.total, peak - before


def main(folder: str, *chunks: str):
    torch.set_num_threads(1)
    dgcl.init()
    peak_of_step(dgcl.build_comm_info(as_graph(band(1000))), 2, folder)  # loads what a first step loads
    comm = dgcl.build_comm_info(as_graph(band(NUM_NODES)))
    for number in chunks:
        print(*peak_of_step(comm, int(number), folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
