"""Memory and time of one attention layer, for docs/performance.md.

``python docs/attention_figures.py GRAPH LAYER WHO...``: one layer of 4 heads x 32 of rows of 128, forward and backward,
on one thread. GRAPH: "mesh" (400 x 400 vertices), or an .npz file of this library's, taken both ways with self loops.
LAYER: GATConv, GATv2Conv or TransformerConv. WHO: dgcl (its layer), pyg, dgl; pyg+dgcl, dgl+dgcl: their layers, and
rows of ``dispatch``. Of one the peak of memory above what there was before (VmHWM): with MALLOC_MMAP_THRESHOLD_=65536
in the environment that of tensors, without what malloc keeps of dead ones. Of several processor times, in turns.
"""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEADS, WIDTH, ROUNDS = 4, 32, 3


def edges_of(name: str) -> tuple[int, np.ndarray]:
    """Number of vertices, and edges sorted by heads."""
    if name == "mesh":
        at = np.arange(160_000).reshape(400, 400)
        pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:]), (at[:-1, :-1], at[1:, 1:])]
        tails, heads = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], 1)
        n = at.size
    else:
        graph = np.load(name)
        n = len(graph["indptr"]) - 1
        tails, heads = np.stack([graph["indices"], np.repeat(np.arange(n), np.diff(graph["indptr"]))])
    loops = np.arange(n) * (n + 1)
    ids = np.unique(np.concatenate([heads * n + tails, tails * n + heads, loops]))
    return n, np.stack([ids % n, ids // n])


def layer_of(
    who: str, kind: str, n: int, edges: np.ndarray, x: Tensor
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of rows, and the rows."""
    torch.manual_seed(1)
    options: dict[str, Any] = {"heads": HEADS, "add_self_loops": False, "bias": False}
    if kind == "TransformerConv":
        options = {"heads": HEADS, "root_weight": False}
    ends = torch.from_numpy(edges)
    import dgcl
    import dgcl.nn

    dgcl.init()
    if who.startswith("pyg"):
        import torch_geometric.nn as pyg
        from torch_geometric.data import Data

        layer, data = getattr(pyg, kind)(HEADS * WIDTH, WIDTH, **options), Data(x=x, edge_index=ends)
        if who != "pyg":
            data = dgcl.dispatch(data, topology="uniform")
            dgcl.distribute(layer, check=False)
        return lambda x: layer(x, data.edge_index), data.x
    if who.startswith("dgl"):
        import dgl

        graph = dgl.graph(tuple(ends), num_nodes=n)
        graph.ndata["x"] = x
        layer = getattr(dgl.nn, kind)(HEADS * WIDTH, WIDTH, HEADS, bias=False)
        if who == "dgl":
            graph.create_formats_()
        else:
            graph = dgcl.dispatch(graph, topology="uniform")
            dgcl.distribute(layer, check=False)
        return lambda x: layer(graph, x).flatten(1), graph.ndata["x"]
    small = dgcl.build_comm_info(np.array([[0, 1], [1, 0]]), "uniform")
    getattr(dgcl.nn, kind)(4, 4)(torch.ones(2, 4), comm=small).sum().backward()  # which compiles
    comm = dgcl.build_comm_info(edges, "uniform")
    ours = getattr(dgcl.nn, kind)(HEADS * WIDTH, WIDTH, **options)
    return lambda x: ours(x, comm=comm), x


def status(name: str) -> float:
    """Megabytes of this process, by the kernel's name of them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1e3


def main(name: str, kind: str, *candidates: str) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    n, edges = edges_of(name)
    torch.manual_seed(0)
    x, wanted = torch.randn(n, HEADS * WIDTH), torch.randn(n, HEADS * WIDTH)
    layers = {who: layer_of(who, kind, n, edges, x) for who in candidates}
    times: dict[str, float] = {}
    for _ in range(1 if len(layers) == 1 else ROUNDS):
        for who, (layer, x) in layers.items():
            rows = x.detach().clone().requires_grad_()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before, start = status("VmRSS"), time.process_time()
            (layer(rows) * wanted).sum().backward()
            times[who] = min(times.get(who, np.inf), time.process_time() - start)
    if len(layers) == 1:
        print(f"{kind} of {candidates[0]}: {status('VmHWM') - before:.0f} MB")
        return
    for who, seconds in times.items():
        print(f"{kind} of {who}: {1e3 * seconds:.0f} ms, {seconds / times[candidates[0]]:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
