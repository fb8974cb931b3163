"""``dgcl partition --method auto`` and ``--balance edges``: what is chosen, and what is shown beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import Run, save_graph
from tests.dgcl.prepare.test_parts_choice import EDGES, ROW, SIZE, predicted


def test_the_command_takes_it_and_says_why(run: Run, folder: Path) -> None:
    save_graph(folder / "g.npz", 2 * SIZE, EDGES)
    argv = [
        "partition",
        "g.npz",
        "--parts",
        2,
        "--topology",
        "uniform:2",
        "--method",
        "auto",
        "--row-bytes",
        ROW,
    ]
    for edge, chosen in ((0, "metis"), (10**6, "random")):
        told = run(*argv, "--work", f"{edge},0", "--out", "p.npy", "--json").json["predicted"]
        wanted = predicted(edge * 1e-9)
        for method, parts in wanted.items():
            assert told[method]["seconds"] == pytest.approx(parts.seconds)
            assert told[method]["most_edges"] == parts.edges.max()
        assert np.array_equal(np.load(folder / "p.npy"), wanted[chosen].part)
        assert f"{chosen} <-" in run(*argv, "--work", f"{edge},0", "--out", "p.npy").out
    assert (
        "--method auto needs --topology"
        in run("partition", "g.npz", "--parts", 2, "--method", "auto", "--out", "p.npy").err
    )


def test_balanced_edges_are_shown_beside_balanced_vertices(run: Run, folder: Path) -> None:
    save_graph(folder / "g.npz", 2 * SIZE, EDGES)
    argv = ["partition", "g.npz", "--parts", 2, "--balance", "edges", "--out", "p.npy"]
    told = run(*argv, "--json").json
    assert told["balanced_by_vertices"]["edges"] == predicted(0.0)["metis"].edges.tolist()
    assert max(told["edges"]) < max(told["balanced_by_vertices"]["edges"])
    assert "edges before" in run(*argv).out
