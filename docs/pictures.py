"""Draws the pictures of these pages, by the dgcl command: ``python docs/pictures.py``; takes some minutes."""

import json
import os
import tempfile
from pathlib import Path

from dgcl.cli import main
from dgcl.topology.plot import new_figure, save_figure

ASSETS = Path(__file__).resolve().parent / "assets"
WEB = ("--synthetic", "web-google")

#: What each picture is drawn by, but for its name.
COMMANDS = {
    "plan_dgx1.svg": ("plan", *WEB, "--topology", "dgx1", "--plot"),
    "plan_dgx_a100x2.svg": ("plan", *WEB, "--topology", "dgx_a100x2", "--plot"),
    "topo_dgx1.svg": ("topo", "plot", "dgx1", "--out"),
}


def draw_performance(path: Path) -> None:
    """The exchange of halo rows beside Gloo's, by the figures of docs/performance.md."""
    figures = json.loads((ASSETS.parent / "figures" / "performance.json").read_text())["exchanges"]
    methods = {"halo": "dgcl", "gloo-halo": "Gloo, packed by our kernels"}
    rows = {(row["graph"], row["method"]): row for row in figures["tables"][0]}
    graphs = list(dict.fromkeys(graph for graph, _ in rows))
    figure = new_figure(path, (5.4, 6.6))
    for axes, graph in zip(figure.subplots(len(graphs), 1), graphs, strict=True):
        for side, verb, colour in ((-0.2, "forward", "#3465a4"), (0.2, "backward", "#e08214")):
            times = [rows[graph, method][f"{verb} us"] / 1e3 for method in methods]
            places = [place + side for place in range(len(methods))]
            axes.bar_label(axes.bar(places, times, 0.4, color=colour, label=verb), fmt="%.1f", fontsize=8)
        ours = rows[graph, "halo"]
        copies = ours["forward us"] * ours["forward of copies"] / 1e3
        axes.axhline(copies, color="black", linestyle=":", label="plain copies of as many bytes")
        axes.set_xticks(range(len(methods)), list(methods.values()))
        axes.set_ylabel("ms")
        axes.set_title(f"{graph}: {ours['halo rows']:,} halo rows of 512 bytes", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, loc="upper left")
    cpu = figures["about"].removeprefix("Measured on ").partition(",")[0]
    figure.suptitle(f"One exchange between 4 ranks: medians, {cpu}", x=0.01, ha="left")
    save_figure(figure, path)


if __name__ == "__main__":
    draw_performance(ASSETS / "performance.svg")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in COMMANDS.items():
            if main([*command, str(ASSETS / name)]) != 0:
                raise SystemExit(f"{name} was not drawn")
