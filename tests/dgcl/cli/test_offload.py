"""``dgcl offload``: what it prints is what the formulas say of the graph in its file."""

from pathlib import Path

import numpy as np
import pytest

from dgcl.graph import save_graph
from tests.dgcl.cli.support import Run
from tests.dgcl.offload.sets import t24


@pytest.fixture
def toy(folder: Path) -> list[object]:
    save_graph(folder / "t24.npz", t24())
    np.save(folder / "halves.npy", np.arange(24) * 2 // 24)
    return ["offload", "t24.npz", "--ranks", 2, "--part", "halves.npy", "--chunk-by", "range"]


def test_toy_graph(run: Run, toy: list[object]) -> None:
    told = run(*toy, "--chunks", 3, "--widths", "8,6,4", "--json").json
    assert (told["v_ori"], told["v_p2p"], told["v_ru"], told["slots"]) == (50, 44, 26, [10, 10])
    assert (sum(told["host_rows"]), sum(told["device_rows"])) == (26, 14)
    first, second = told["layers"]
    assert (first["rows"]["gradients_out"], second["rows"]["gradients_out"]) == (0, 26)
    assert second["bytes"]["host_in"] == (26 + 26) * 6 * 4 + 24 * 4 * 4
    text = run(*toy, "--chunks", 3, "--widths", "8,6,4")
    assert text.status == 0
    assert "read by chunks 50, by batches 44, beyond the batch before 26" in text.out


def test_fewest_chunks_that_fit(run: Run, toy: list[object]) -> None:
    peaks = {
        n: run(*toy, "--chunks", n, "--widths", "8,6", "--json").json["device_bytes"]["total"]
        for n in range(1, 13)
    }
    limit = peaks[4]
    told = run(*toy, "--memory", limit, "--widths", "8,6", "--json").json
    assert told["device_bytes"]["total"] <= limit
    assert told["chunks"] <= 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--memory", "100", "--widths", "8,6"], "the least that was found takes"),
        (["--chunks", "2", "--widths", "8"], "two numbers or more"),
        (["--widths", "8,6"], "--chunks or --memory is needed"),
        (["--chunks", "2", "--memory", "1G", "--widths", "8,6"], "not allowed with"),
    ],
)
def test_refusals(run: Run, toy: list[object], arguments: list[str], message: str) -> None:
    said = run(*toy, *arguments)
    assert said.status == 2
    assert message in said.err
