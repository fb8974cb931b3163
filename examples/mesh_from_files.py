"""A mesh that is born distributed: each rank reads its own file, and no rank ever has the rest.

    python examples/mesh_from_files.py --write 4 parts             # what a mesh generator leaves: a file for each rank
    torchrun --nproc-per-node=4 examples/mesh_from_files.py parts

A file has the cells that a rank owns, by ids over all ranks, and for each of their faces the cell on its other side.
Heat spreads in implicit steps; each is solved by conjugate gradients, whose only exchanges are `expand` and sums.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import dgcl

STIFFNESS, STEPS, ITERATIONS = 2.0, 3, 40


def write(folder: Path, num_ranks: int, side: int = 16) -> None:
    """Cut a square mesh into strips of columns, a file for each."""
    cells = np.arange(side * side).reshape(side, side)
    a = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    b = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    sources, heads = np.concatenate([a, b]), np.concatenate([b, a])
    owner = cells.ravel() % side * num_ranks // side
    folder.mkdir(exist_ok=True)
    for rank in range(num_ranks):
        mine = owner[heads] == rank
        arrays = {"ids": np.flatnonzero(owner == rank), "sources": sources[mine], "heads": heads[mine]}
        np.savez(folder / f"cells-{rank}.npz", **arrays)


def solve(file: Path) -> Tensor | None:
    """Temperatures of all cells after some steps, on rank 0. Collective; each rank gives its own file."""
    part = np.load(file)
    comm = dgcl.build_from_local(part["ids"], (part["sources"], part["heads"]))
    graph, x = comm.local_graph("csr"), torch.sin(comm.owned_ids.double())

    def apply(p: Tensor) -> Tensor:
        degree = graph.sum(torch.ones(comm.num_local, dtype=p.dtype))
        return p + STIFFNESS * (degree * p - graph.sum(comm.expand(p)))

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return comm.all_reduce_sum((p * q).sum())

    for _ in range(STEPS):
        r = x - apply(x)
        p, old = r, dot(r, r)
        for _ in range(ITERATIONS):
            q = apply(p)
            step = old / dot(p, q)
            x, r = x + step * p, r - step * q
            new = dot(r, r)
            p, old = r + new / old * p, new
    return dgcl.collect(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=int, metavar="RANKS", help="write the files, for so many ranks")
    args = parser.parse_args()
    if args.write:
        write(args.folder, args.write)
    else:
        dgcl.init()
        x = solve(args.folder / f"cells-{os.environ.get('RANK', 0)}.npz")
        if x is not None:
            print(f"{len(x)} cells, from {x.min():.6f} to {x.max():.6f}")
