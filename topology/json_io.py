"""Reads and writes topology files: JSON of schema ``dgcl-topology/1``, one device, connection or link per line.

A file may hold one key more than the schema's, ``"about"``: an object that says where the figures come from (an
import's notes, a calibration's measurements). A :class:`Topology` does not keep it.
Called by users (load_topology and save_topology of `dgcl.topology`), `resolve` and `dgcl/cli/topo_import`. Free to
change while written files read back as equal topologies, and errors name the file in one line
(`tests/topology/test_json_io.py`).
"""

import json
import os
from pathlib import Path
from typing import Any

from dgcl.topology.checks import check_path, shown
from dgcl.topology.json_form import parse_json
from dgcl.topology.model import Topology
from dgcl.topology.read_file import read_file

_LARGEST = 512 << 20  # bytes: more than a topology of the most devices takes with all its links


def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Read a topology file.

    Raises:
        ValueError: The content is not a topology; names the file, and the line or the item.
        OSError: The file cannot be read; names it.
    """
    path = check_path(path, "path")
    try:
        text = read_file(path, _LARGEST, "topology file ", "a topology").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    try:
        return Topology.from_json(parse_json(text))
    except json.JSONDecodeError as error:
        if text.lstrip()[:1] == "<" or "GPU0" in text[:2000]:
            raise ValueError(
                f"{path}: is not JSON; nvidia-smi's matrix and NCCL's XML become a topology by: dgcl topo import"
            ) from None
        raise ValueError(
            f"{path}: line {error.lineno}, column {error.colno}: is not JSON ({error.msg})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_topology(
    topology: Topology, path: str | os.PathLike[str], *, about: dict[str, Any] | None = None
) -> None:
    """Write a topology file, with its links.

    Args:
        topology: What to write.
        path: Where to.
        about: Where its figures come from: JSON values, written as they are.

    Raises:
        OSError: The file cannot be written; names it.
    """
    if not isinstance(topology, Topology):
        raise TypeError(f"topology must be a Topology (got {shown(topology)})")
    path = check_path(path, "path")
    if not (about is None or isinstance(about, dict)):
        raise TypeError(f"about must be a dict of JSON values (got {shown(about)})")
    obj = topology.to_json() | ({"about": about} if about else {})
    try:
        Path(path).write_text(_layout(obj), encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _layout(obj: dict[str, Any]) -> str:
    """JSON text with one device, connection or link per line."""
    fields = []
    for key, value in obj.items():
        if isinstance(value, list) and value:
            lines = ",\n  ".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in value)
            fields.append(f"{json.dumps(key)}: [\n  {lines}]")
        else:
            fields.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{" + ",\n ".join(fields) + "}\n"
