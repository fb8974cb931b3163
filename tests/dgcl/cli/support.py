"""What the tests of the command share."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# 0-1-2 in a line, no link between 0 and 2, so that rows for a third rank must be relayed.
LINE = {
    "schema": "dgcl-topology/1",
    "name": "line",
    "devices": [{"name": f"d{i}"} for i in range(3)],
    "connections": [
        {"name": "left", "kind": "wire", "a": "d0", "b": "d1", "bandwidth": 4.0},
        {"name": "right", "kind": "wire", "a": "d1", "b": "d2", "bandwidth": 4.0},
    ],
}


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object, and nothing after it."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Run = Callable[..., Outcome]


def save_graph(path: Path, num_nodes: int, edges: list[tuple[int, int]]):
    """A graph file as docs/cli.md has it: CSR of out-neighbours."""
    tails, heads = np.array(sorted(edges), np.int32).reshape(-1, 2).T
    indptr = np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=num_nodes))]).astype(np.int32)
    np.savez_compressed(path, num_nodes=num_nodes, directed=True, indptr=indptr, indices=heads)


def listing(folder: Path) -> dict[str, bytes]:
    """Every file of a folder and what is in it."""
    files = (Path(where) / name for where, _, names in os.walk(folder) for name in names)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}
