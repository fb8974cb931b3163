"""Draws the pictures of these pages, by the dgcl command: ``python docs/pictures.py``; takes some minutes."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np

from dgcl.cli import main
from dgcl.topology.plot import new_figure, save_figure

ASSETS = Path(__file__).resolve().parent / "assets"
WEB = ("--synthetic", "web-google")

#: What each picture is drawn by, but for its name.
COMMANDS = {
    "plan_dgx1.svg": ("plan", *WEB, "--topology", "dgx1", "--compare", "auto", "--plot"),
    "plan_dgx_a100x2.svg": ("plan", *WEB, "--topology", "dgx_a100x2", "--compare", "auto", "--plot"),
    "compare.svg": ("compare", *WEB, "--topology", "dgx1,pcie8,dgx_a100x2", "--plot"),
    "topo_dgx1.svg": ("topo", "plot", "dgx1", "--out"),
}


def draw_performance(path: Path) -> None:
    """The exchange of halo rows beside Gloo's, as docs/benchmarks/performance.py found them."""
    found = json.loads((ASSETS.parent / "benchmarks" / "performance.json").read_text())
    methods = {
        "halo": "dgcl",
        "gloo-halo": "Gloo, packed by\nour kernels",
        "gloo-halo-plain": "Gloo, packed\nin plain torch",
    }
    lines = {(line["name"], line["method"]): line for line in found["4"]["graphs"]}
    graphs = [name for name, method in lines if method == "halo"]
    figure = new_figure(path, (10.0, 3.2))
    for axes, graph in zip(figure.subplots(1, len(graphs)), graphs, strict=True):
        for side, verb, colour in ((-0.2, "forward", "#3465a4"), (0.2, "backward", "#e08214")):
            times = [lines[graph, method][verb]["median"] * 1e3 for method in methods]
            bars = axes.bar(
                [place + side for place in range(len(methods))], times, 0.4, color=colour, label=verb
            )
            axes.bar_label(bars, fmt="%.1f", fontsize=8)
        copies = lines[graph, "halo"]["forward"]["copy_seconds"] * 1e3
        axes.axhline(
            copies, color="black", linestyle=":", linewidth=1.2, label="plain copies of as many bytes"
        )
        axes.set_xticks(range(len(methods)), list(methods.values()), fontsize=9)
        axes.set_ylabel("ms", fontsize=9)
        axes.set_title(
            f"{graph}: {lines[graph, 'halo']['halo_rows']:,} halo rows of 512 bytes", loc="left", fontsize=10
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    cpu = found["about"]["machine"]["cpu"]
    figure.suptitle(f"One exchange between 4 ranks: medians, {cpu}", x=0.01, ha="left", fontsize=12)
    save_figure(figure, path)


def write_mesh(path: Path) -> None:
    """A square mesh, both ways, as a text edge list."""
    number = np.arange(60 * 60).reshape(60, 60)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])
    np.savetxt(path, np.concatenate([edges, edges[:, ::-1]]), fmt="%d")


if __name__ == "__main__":
    draw_performance(ASSETS / "performance.svg")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_mesh(Path("mesh.txt"))
        for name, command in COMMANDS.items():
            if main([*command, str(ASSETS / name)]) != 0:
                raise SystemExit(f"{name} was not drawn")
