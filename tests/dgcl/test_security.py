"""Who may read the ranks' memory, and what is believed of what comes from outside."""

import ast
import os
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from dgcl.graph import as_graph
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.ranks import gloo_groups
from dgcl.ranks.rendezvous import Waiting
from dgcl.topology import resolve_topology
from dgcl.transport.common.segments import SegmentFile
from tests.support.samples import named

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dgcl", "planner", "topology", "kernels")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
#: Modules that unpickle: what came over the job's own group, and over pipes to processes that launch started; and, as
#: numba does, machine code from folders where only this user may write.
MAY_UNPICKLE = {"dgcl/ranks/object_messages.py", "dgcl/ranks/launcher.py", "kernels/kernel_cache.py"}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
def test_another_user_cannot_open_a_ranks_memory():
    file = SegmentFile()
    file.grow(4096)
    path = "/proc/{}/fd/{}".format(*file.handle)
    assert subprocess.run(["head", "-c1", path], capture_output=True).returncode == 0
    other = subprocess.run(["head", "-c1", path], capture_output=True, text=True, user=65534, group=65534)
    assert other.returncode != 0
    assert "Permission denied" in other.stderr


def test_memory_has_no_name_and_is_not_inherited():
    before = set(os.listdir("/dev/shm"))
    file = SegmentFile()
    file.grow(4096)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "dgcl" in name}
    assert not os.get_inheritable(file.handle[1])
    assert os.readlink(f"/proc/self/fd/{file.handle[1]}") == "/memfd:dgcl (deleted)"


def _calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Dotted names of what a module calls."""
    tree = ast.parse(path.read_text())
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _unpicklings(path: Path) -> list[str]:
    """Calls of a module that may run what a file holds."""
    found = []
    for name, call in _calls(path):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        unpickles = name.split(".")[-1] in ("loads", "Unpickler") and "json" not in name
        if (
            (unpickles and str(path.relative_to(ROOT)) not in MAY_UNPICKLE)
            or name in ("pickle.load", "torch.load", "eval", "exec", "marshal.load")
            or (name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False")
        ):
            found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}")
    return found


def test_nothing_is_unpickled_that_came_from_a_file(tmp_path, monkeypatch):
    assert len(SOURCES) > 100
    assert [line for path in SOURCES for line in _unpicklings(path)] == []
    (tmp_path / "bad.py").write_text("pickle.loads(b)\ntorch.load(f)\nnp.load(f)\njson.loads(t)\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert len(_unpicklings(tmp_path / "bad.py")) == 3


class Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self._path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._path, "w")


@named(
    "read",
    {
        "plan": Plan.load,
        "relation": Relation.load,
        "graph": as_graph,
        "topology": lambda path: resolve_topology(str(path), 3),
    },
)
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_a_pickle_in_a_file_is_refused_and_not_run(read: object, suffix: str, tmp_path):
    harmed = tmp_path / "harmed"
    path = tmp_path / f"evil{suffix}"
    evil = np.array([Evil(harmed)], dtype=object)
    names = ("num_nodes", "directed", "indptr", "indices", "meta", "source", "class_source", "world_size")
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=True, **dict.fromkeys(names, evil))
    with pytest.raises(ValueError, match=r"."):
        read(path)  # type: ignore[operator]
    assert not harmed.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_store_of_rank_0_listens_on_the_loopback_alone_where_that_is_its_address(host: str):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = gloo_groups._connect_store(host, port, 0, time.monotonic() + 30, Waiting())
    store.set("key", "value")
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    listening = {line[1] for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")}
    assert listening <= {f"0100007F:{port:04X}", f"{'0' * 24}01000000:{port:04X}"}
    assert listening
