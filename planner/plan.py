"""A plan: trees for all classes, the topology they were made for, and what they cost. Pure data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dgcl.planner.npz import read_npz, write_npz
from dgcl.planner.plan_io import ARRAYS, FILE, check_ranges, parse_meta
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.topology.arrays import LinkNumbers
from dgcl.topology.json_form import description_from_json

if TYPE_CHECKING:
    from dgcl.topology import Topology

_UNSIGNED = frozenset({"planning_seconds", "version", "fingerprint"})


@dataclass(frozen=True, eq=False)
class Plan:
    """Trees, what they deliver, the topology, and what they cost. Made by ``make_plan`` or read by ``Plan.load``.

    Attributes:
        relation: what is delivered.
        trees: how.
        topology: the machine that the plan is for; its links are explicit.
        meta: the plan file's meta object (docs/plan-format.md), JSON values only; its topology is without links.
    """

    relation: Relation
    trees: Trees
    topology: Topology
    meta: dict[str, Any]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.relation.world_size

    @property
    def method(self) -> str:
        """Name of the planner that made these trees."""
        return str(self.meta["method"])

    @property
    def row_bytes(self) -> int:
        """Bytes per vertex row that the stated seconds are for."""
        return int(self.meta["row_bytes"])

    @property
    def stage_seconds(self) -> list[float]:
        """Predicted seconds of each stage."""
        return list(self.meta["stage_seconds"])

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds of one allgather: the sum over stages."""
        return float(self.meta["predicted_seconds"])

    @property
    def lower_bound_seconds(self) -> float:
        """Seconds that no plan in the model can beat."""
        return float(self.meta["lower_bound_seconds"])

    @property
    def gap(self) -> float:
        """predicted / lower bound - 1; 0 when nothing is sent."""
        return float(self.meta["gap"])

    @property
    def direct_seconds(self) -> float | None:
        """Predicted seconds of peer-to-peer in the same model; None if a needed pair has no link."""
        value = self.meta["direct_seconds"]
        return None if value is None else float(value)

    @property
    def planning_seconds(self) -> float:
        """Seconds from relation in memory to plan in memory."""
        return float(self.meta["planning_seconds"])

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.meta["stage_seconds"])

    @property
    def fingerprint(self) -> str:
        """Hex sha256 over the arrays and the canonical meta (defined by :func:`fingerprint`)."""
        return str(self.meta["fingerprint"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/plan-format.md) at exactly ``path``."""
        write_npz(path, self.to_arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file and check its structure (:func:`dgcl.planner.check_plan_file` proves the rest).

        Raises:
            ValueError: Not a plan file; names the file and what is wrong.
            OSError: The file cannot be opened.
        """
        arrays = read_npz(path, FILE, what="plan", exact=True)
        try:
            return cls.from_arrays(arrays)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)}: not a valid plan file: {error}") from None

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the plan's file, by the names of :data:`dgcl.planner.plan_io.FILE`."""
        text = json.dumps(self.meta, allow_nan=False)
        return {**plan_arrays(self), "meta": np.array(text)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Plan:
        """Return the plan of a plan file's arrays; checked as by :meth:`load`.

        Raises:
            ValueError, TypeError: Not the arrays of a plan; says what is wrong.
        """
        from dgcl.topology import Topology

        meta = parse_meta(arrays["meta"].item())
        classes = (arrays[f"class_{name}"] for name in ("source", "dests", "count"))
        relation = Relation(meta["world_size"], *classes)
        of_trees: Any = (arrays[name] for name in ARRAYS if name.startswith(("tree_", "edge_")))
        trees = Trees(*of_trees)
        name, devices, connections, more = description_from_json(meta["topology"])
        if more is not None:
            raise ValueError("meta.topology must be without links, which are arrays of the file")
        links: Any = LinkNumbers(*(arrays[f"link_{name}"] for name in LinkNumbers._fields))
        check_ranges(relation, trees, links, len(devices), len(connections))
        return cls(relation, trees, Topology(name, devices, connections, links), meta)


def plan_arrays(plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a plan file under their names in it."""
    of = {
        **{f"class_{name}": array for name, array in vars(plan.relation).items()},
        **vars(plan.trees),
        **{f"link_{name}": array for name, array in plan.topology.arrays().links._asdict().items()},
    }
    return {name: of[name] for name in ARRAYS}


def fingerprint(plan: Plan) -> str:
    """Return the hex sha256 of a plan, whatever its meta states.

    The bytes hashed, in this order:

    1. for each of class_source, class_dests, class_count, tree_class, tree_count, edge_ptr, edge_src, edge_dst,
       edge_stage, link_src, link_dst, link_ptr, link_route: the ASCII line ``"NAME DTYPE SHAPE\\n"``, where DTYPE is
       numpy's little-endian code (``<i4``, ``<u8``, ``<i8``) and SHAPE the sizes in decimal joined by commas; then
       the array's little-endian bytes in C order;
    2. the meta object without the keys planning_seconds, version and fingerprint, as ASCII JSON with sorted
       keys and no spaces: ``json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False)``.
       (Python writes a float with the fewest digits that read back as the same float.)
    """
    digest = hashlib.sha256()
    for name, values in plan_arrays(plan).items():
        array = np.ascontiguousarray(values, dtype=ARRAYS[name].dtype)
        digest.update(f"{name} {ARRAYS[name].dtype} {','.join(map(str, array.shape))}\n".encode("ascii"))
        digest.update(array.data.cast("B") if array.size else b"")
    signed = {key: value for key, value in plan.meta.items() if key not in _UNSIGNED}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest.update(text.encode("ascii"))
    return digest.hexdigest()
