"""Stores the partition and one communication plan of a graph on disk, for the next job.

An entry is one npz file in a folder of the user's choice, named by a hash of everything it was made from. It is trusted
only as far as it is checked; one that fails is named in a warning and replaced, never used. What cannot be written (a
full disk, a folder without permission) is a warning, too: training does not need it.
Called by `stored_plans` and `shares`. Free to change while damaged entries, and those made from something else, are
never used, and jobs that share a folder see whole entries (`tests/dgcl/prepare/test_cache.py`). A change of what an
entry holds is a new ``SCHEMA``.
"""

import hashlib
import json
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.partition.check_part import check_part
from dgcl.planner.npz import ArraySpec, read_npz
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import FILE
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.verify.check_plan import verify_plan
from dgcl.topology import Topology

_log = logging.getLogger("dgcl")

# What is checked: it is a plain file (not a link, not a pipe) of arrays of the stated sizes, read without pickle; its
# hash is right; its description is the one asked for; the plan's own proof holds; and the relation, found anew from
# graph and parts, is the stored one (stored_plans.py). Entries are written beside their place and renamed into it, so
# that a reader sees a whole one or none however many jobs share the folder and whenever one is killed.
SCHEMA = "dgcl-cache/2"
#: The folders that decide what an entry holds.
SOURCES = (
    "graph",
    "grid",
    "partition",
    "planner",
    "program",
    "relation",
    "topology",
    "placement",
)
_ENTRY = {
    **FILE,
    "key": ArraySpec("unicode", 0),
    "part": ArraySpec("<i4", 1),
    "digest": ArraySpec("unicode", 0),
}
_ABANDONED_SECONDS = 24 * 3600.0
_UNFINISHED = ".dgcl-"


class PlanCache:
    """One entry of a cache folder: that of one key.

    Args:
        folder: Made where it does not exist.
        key: What the entry is made from (:func:`cache_key`).

    Raises:
        ValueError: ``folder`` exists and is no folder.
    """

    def __init__(self, folder: str | os.PathLike[str], key: dict[str, Any]) -> None:
        self._folder = Path(folder)
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(
                f"cache must be a folder, or not exist yet (got {self._folder}, which is a file)"
            )
        self._key = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
        self.path = self._folder / f"{hashlib.sha256(self._key.encode()).hexdigest()}.npz"

    def load(self, num_nodes: int, world_size: int) -> tuple[NDArray[np.int32], Plan] | None:
        """(part, plan) of the entry; None where there is none, and, with a warning, where it is unusable.

        Both are checked but for one thing: that the plan's relation is that of the graph.
        """
        try:
            if self.path.is_symlink():  # which could lead anywhere
                raise ValueError("it is a link, not a plain file")
            arrays = read_npz(self.path, _ENTRY, what="cache", exact=True)
            if str(arrays["digest"]) != _digest(arrays):
                raise ValueError("its hash is wrong")
            if str(arrays["key"]) != self._key:
                raise ValueError("it was made from something else")
            part = check_part(arrays["part"], num_nodes, world_size)
            plan = Plan.from_arrays(arrays)
            if plan.world_size != world_size:
                raise ValueError(f"it is a plan for {plan.world_size} ranks, not {world_size}")
            verify_plan(plan)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self.refuse(error)
            return None
        return part, plan

    def refuse(self, why: Exception) -> None:
        """Say that the entry is not used, and why."""
        _log.warning("cache entry %s is not used and is made anew: %s", self.path, why)

    def store(self, part: NDArray[np.int32], plan: Plan) -> None:
        """Write the entry, replacing what is there; where that fails, say so and go on."""
        arrays: dict[str, NDArray[Any]] = {**plan.to_arrays(), "key": np.array(self._key), "part": part}
        arrays["digest"] = np.array(_digest(arrays))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self._write(arrays)
        except (OSError, ValueError) as error:  # ValueError: what zipfile makes of a disk that is full
            _log.warning(
                "cache entry %s cannot be written (%s); this job goes on, the next one plans again",
                self.path,
                error,
            )

    def _write(self, arrays: dict[str, NDArray[Any]]) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_UNFINISHED, suffix=".part")  # mode 0600
        try:
            with open(descriptor, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(descriptor)  # a name must not outlive its contents when the machine stops
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _remove_abandoned(self) -> None:
        """Delete what writers left that were killed long ago."""
        oldest = time.time() - _ABANDONED_SECONDS
        for path in self._folder.glob(f"{_UNFINISHED}*.part"):
            with suppress(OSError):  # another job was quicker, or it is another user's
                if path.lstat().st_mtime < oldest:
                    path.unlink()


def cache_key(
    graph: Graph,
    world_size: int,
    topology: Topology,
    part: NDArray[np.int32] | None,
    partition: str,
    method: str,
    options: PlanOptions,
    balance: str,
) -> dict[str, Any]:
    """All that an entry depends on, as JSON values; graph and parts by their hashes.

    The order of the edges counts within each vertex's in-edges only, and ids of edges do not: nothing that is
    stored depends on them. Time: one sha256 over the graph, 1 to 2 GB/s (100 million edges: 0.2 to 0.5 s).
    """
    from dgcl import __version__

    return {
        "schema": SCHEMA,
        "graph": {
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "sha256": _hash_arrays(graph.indptr, graph.indices),
        },
        "world_size": world_size,
        "topology": topology.to_json(),
        "part": None if part is None else _hash_arrays(part),
        "partition": partition if part is None else "given",
        "method": method,
        "options": asdict(options),
        "balance": balance,
        "versions": {
            "dgcl": __version__,
            "numpy": np.__version__,
            **{
                name: metadata.version(name) for name in ("highspy", "pymetis", "kaminpar") if find_spec(name)
            },
            "sources": _hash_sources(),
        },
    }


def _hash_arrays(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"{little.dtype.str} {little.shape}\n".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _hash_sources() -> str:
    """Of the modules that partition and plan: a version number alone does not see an engineer at work."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in SOURCES:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    """Of everything in an entry but this and what the plan's fingerprint is of."""
    return _hash_arrays(arrays["part"], arrays["key"], arrays["meta"])
