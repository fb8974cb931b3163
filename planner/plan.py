"""A plan: a relation, the trees that deliver it, the topology, and the stated costs. Pure data.

Loading checks a file's shapes, ranges and meta; that the plan delivers, at these costs, ``verify/check_plan.py``
proves.
Called by users, `planner/methods/registry`, `planner/verify/check_plan`, `dgcl/program/compile`,
`dgcl/prepare/part_files` and others. Free to change while a plan that was saved loads as it was, and a broken file is
refused with its fault (`tests/planner/test_plan_files.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dgcl.planner.npz import read_npz, write_npz
from dgcl.planner.plan_io import FILE, check_ranges, parse_meta, plan_arrays
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


@dataclass(frozen=True, eq=False)
class Plan:
    """Trees, what they deliver, the topology, and what they cost. Made by ``make_plan`` or read by ``Plan.load``.

    Attributes:
        relation: what is delivered.
        trees: how.
        topology: the machine that the plan is for; its links are explicit.
        meta: the plan file's meta object (docs/plan-format.md), JSON values only.
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
        """Hex sha256 over the arrays and the canonical meta (defined by :func:`dgcl.planner.plan_io.fingerprint`)."""
        return str(self.meta["fingerprint"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/plan-format.md) at exactly ``path``."""
        write_npz(path, self.to_arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; shapes, dtypes, ranges, pointers, meta and topology are checked.

        :func:`dgcl.planner.check_plan_file` proves the rest.

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
        text = json.dumps(self.meta, allow_nan=False, separators=(",", ":"))
        return {**plan_arrays(self.relation, self.trees), "meta": np.array(text)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Plan:
        """Return the plan of a plan file's arrays; checked as by :meth:`load`.

        Raises:
            ValueError, TypeError: Not the arrays of a plan; says what is wrong.
        """
        from dgcl.topology import Topology

        meta = parse_meta(arrays["meta"].item())
        relation = Relation(
            meta["world_size"], arrays["class_source"], arrays["class_dests"], arrays["class_count"]
        )
        trees = Trees(
            arrays["tree_class"], arrays["tree_count"], arrays["edge_ptr"], arrays["edge_src"], arrays["edge_dst"],
            arrays["edge_stage"],
        )  # fmt: skip
        check_ranges(relation, trees)
        topology = Topology.from_json(meta["topology"])
        if topology.num_devices != relation.world_size:
            raise ValueError(
                f"meta.topology has {topology.num_devices} devices for {relation.world_size} ranks"
            )
        return cls(relation, trees, topology, meta)
