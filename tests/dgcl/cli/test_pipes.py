"""Named pipes and devices in the place of files: refused at once, whatever is read."""

import os
from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "command",
    [
        ("topo", "show", "FILE"),
        ("topo", "import", "FILE"),
        ("check", "FILE"),
        ("simulate", "FILE"),
        ("plan", "FILE", "--topology", "dgx1"),
        ("plan", "graph.npz", "--part", "FILE", "--topology", "dgx1"),
        ("plan", "--synthetic", "web-google", "--topology", "FILE"),
        ("partition", "FILE", "--ranks", "2", "--out", "part.npy"),
    ],
    ids=" ".join,
)
def test_refused(run: Run, folder: Path, command: tuple[str, ...], kind: str):
    path = "/dev/zero"
    if kind == "pipe":
        path = "./pipe"
        os.mkfifo(folder / "pipe")  # nobody writes to it: opening it would wait
    outcome = run(*(path if word == "FILE" else word for word in command))
    assert outcome.status == 2
    assert "it is not a regular file" in outcome.err
