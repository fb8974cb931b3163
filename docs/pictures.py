"""Draws the pictures of these pages, by the dgcl command: ``python docs/pictures.py``; takes some minutes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from dgcl.cli import main

ASSETS = Path(__file__).resolve().parent / "assets"
WEB = ("--synthetic", "web-google")

#: What each picture is drawn by, but for its name.
COMMANDS = {
    "plan_dgx1.svg": ("plan", *WEB, "--topology", "dgx1", "--compare", "auto", "--plot"),
    "plan_dgx_a100x2.svg": ("plan", *WEB, "--topology", "dgx_a100x2", "--compare", "auto", "--plot"),
    "compare.svg": ("compare", *WEB, "--topology", "dgx1,pcie8,dgx_a100x2", "--plot"),
    "topo_dgx1.svg": ("topo", "plot", "dgx1", "--out"),
    "partition.svg": ("partition", "mesh.txt", "--parts", "8", "--out", "part.npy", "--plot"),
}


def write_mesh(path: Path, side: int = 60) -> None:
    """A square mesh, both ways, as a text edge list."""
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])
    np.savetxt(path, np.concatenate([edges, edges[:, ::-1]]), fmt="%d")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_mesh(Path("mesh.txt"))
        for name, command in COMMANDS.items():
            if main([*command, str(ASSETS / name)]) != 0:
                raise SystemExit(f"{name} was not drawn")
