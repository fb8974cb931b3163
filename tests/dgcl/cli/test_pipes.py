"""Named pipes and devices in the place of files: refused at once, whatever is read."""

import os
from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "command",
    [
        "topo show FILE",
        "topo import FILE",
        "check FILE",
        "simulate FILE",
        "plan FILE --topology dgx1",
        "plan graph.npz --part FILE --topology dgx1",
        "plan --relation FILE --topology dgx1",
        "plan --synthetic web-google --topology FILE",
        "partition FILE --ranks 2",
    ],
)
def test_refused(run: Run, folder: Path, command: str, kind: str):
    path = "/dev/zero"
    if kind == "pipe":
        path = "./pipe"
        os.mkfifo(folder / "pipe")  # nobody writes to it: opening it would wait
    outcome = run(*command.replace("FILE", path).split())
    assert outcome.status == 2
    assert "it is not a regular file" in outcome.err
