"""Reports about a plan as plain data: machine, relation, time, methods, stages, kinds of connections, bound, fold.

Every figure is derived here and nowhere else; :mod:`dgcl.planner.reading.render` makes text of it.
>>> from dgcl.topology import preset
>>> facts = report(make_plan(Relation.from_classes(8, [(0, {1, 6}, 1000), (5, {0}, 2000)]), preset("dgx1"), "spst"))
>>> facts["relation"]["deliveries"], facts["methods"][0]["method"]
(4000, 'spst')

Called by `plan_plot`, `dgcl/cli/plan` and `dgcl/cli/plans`. Free to change while the figures are those worked out by
hand, all of them JSON (`tests/planner/reading/test_report.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.planner.array_types import FloatArray
from dgcl.planner.cost import GIGA, stage_use
from dgcl.planner.fold import NoWayBackError, reverse_plan
from dgcl.planner.methods.registry import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.simulator.executed import executed_seconds, protocol

if TYPE_CHECKING:
    from dgcl.topology import Topology

COMPARED = ("direct", "spst", "auto")
BUSIEST = 3  # connections named per stage


@dataclass(frozen=True)
class Failure:
    """A method that has no plan for this relation and machine, and why."""

    method: str
    reason: str


def compare(
    relation: Relation,
    topology: Topology,
    methods: Sequence[str] = COMPARED,
    options: PlanOptions | None = None,
) -> list[Plan | Failure]:
    """Plan the same relation by several methods; one that is impossible here becomes a :class:`Failure`."""
    outcomes: list[Plan | Failure] = []
    for method in methods:
        try:
            outcomes.append(make_plan(relation, topology, method, options))
        except ValueError as error:
            outcomes.append(Failure(method, str(error)))
    return outcomes


def report(plan: Plan, others: Sequence[Plan | Failure] = ()) -> dict[str, Any]:
    """Return the report about ``plan``, JSON values only.

    Args:
        plan: the plan that machine, stages, kinds and bound are about.
        others: plans of the same relation for the table of methods (:func:`compare`); ``plan`` itself is put last
            unless a plan with its fingerprint is among them.
    """
    rows = list(others)
    if not any(isinstance(other, Plan) and other.fingerprint == plan.fingerprint for other in rows):
        rows.append(plan)
    seconds = stage_use(plan)
    bound = max((row.lower_bound_seconds for row in rows if isinstance(row, Plan)), default=0.0)
    return {
        "machine": _machine(plan.topology),
        "relation": _relation(plan),
        "takes": {
            "executed_seconds": executed_seconds(plan),
            "executed": protocol(plan.topology),
            "model_seconds": plan.predicted_seconds,
            "bound_seconds": plan.lower_bound_seconds,
        },
        "methods": [_method(row, bound) for row in rows],
        "stages": _stages(plan, seconds),
        "kinds": _kinds(plan, seconds),
        "bound": {"seconds": plan.lower_bound_seconds, "limited_by": plan.meta.get("limited_by", "")},
        "fold": _fold(plan),
    }


def _fold(plan: Plan) -> dict[str, Any]:
    """Return the cost of the fold (:mod:`dgcl.planner.fold`): gradients to their owners over the same trees."""
    try:
        fold = reverse_plan(plan)
    except NoWayBackError as error:
        return {"impossible": str(error)}
    return {
        "seconds": fold.predicted_seconds,
        "bound_seconds": fold.bound.seconds,
        "links_alike_both_ways": fold.symmetric,
    }


def _machine(topology: Topology) -> dict[str, Any]:
    kinds: dict[str, list[float]] = {}
    for connection in topology.connections:
        kinds.setdefault(connection.kind, []).append(connection.bandwidth)
    return {
        "name": topology.name,
        "devices": topology.num_devices,
        "machines": len({device.machine for device in topology.devices}),
        "sockets": len({(device.machine, device.socket) for device in topology.devices}),
        "connections": [
            {"kind": kind, "count": len(speeds), "min_GBps": min(speeds), "max_GBps": max(speeds)}
            for kind, speeds in sorted(kinds.items())
        ],
    }


def _relation(plan: Plan) -> dict[str, Any]:
    relation = plan.relation
    vertices, deliveries = relation.num_vertices, relation.deliveries
    return {
        "world_size": relation.world_size,
        "boundary_vertices": vertices,
        "num_classes": relation.num_classes,
        "deliveries": deliveries,
        "average_destinations": deliveries / vertices if vertices else 0.0,
        "row_bytes": plan.row_bytes,
        "bytes_needed": deliveries * plan.row_bytes,
    }


def _method(row: Plan | Failure, bound: float) -> dict[str, Any]:
    """A line of the table of methods; the greatest bound holds for all of them."""
    if isinstance(row, Failure):
        return {"method": row.method, "impossible": row.reason}
    sent, needed = row.trees.rows_moved(), row.relation.deliveries
    return {
        "method": row.method,
        "made_by": row.meta.get("made_by", row.method),
        "predicted_seconds": row.predicted_seconds,
        "to_bound": row.predicted_seconds / bound if bound > 0 else 1.0,
        "num_stages": row.num_stages,
        "num_trees": row.trees.num_trees,
        "bytes_sent": sent * row.row_bytes,
        "sent_to_needed": sent / needed if needed else 1.0,
        "planning_seconds": row.planning_seconds,
    }


def _stages(plan: Plan, seconds: FloatArray) -> list[dict[str, Any]]:
    arrays = plan.topology.arrays()
    stages = []
    for k, total in enumerate(plan.stage_seconds):
        order = np.argsort(-seconds[k], kind="stable")[:BUSIEST]
        stages.append(
            {
                "stage": k,
                "seconds": total,
                "share_of_plan": total / plan.predicted_seconds,
                "busiest": [
                    {
                        "connection": arrays.direction_names[c],
                        "way": way(plan.topology, int(c)),
                        "kind": _kind(plan.topology, int(c)),
                        "seconds": float(seconds[k, c]),
                        "share_of_stage": float(seconds[k, c]) / total,
                    }
                    for c in order
                    if seconds[k, c] > 0
                ],
            }
        )
    return stages


def _kinds(plan: Plan, seconds: FloatArray) -> list[dict[str, Any]]:
    """Return how the load is balanced between kinds of connections (Table 7 of the DGCL paper).

    Per kind: the sum over stages of its busiest direction's seconds, that as a share of the plan (1.0: this kind is the
    slowest in every stage), the average use of its directions over the plan, and the bytes over them.
    """
    arrays, total = plan.topology.arrays(), plan.predicted_seconds or np.inf
    kinds = np.array([_kind(plan.topology, c) for c in range(seconds.shape[1])], dtype=object)
    rows = []
    for kind in sorted(set(kinds.tolist())):
        mine = seconds[:, kinds == kind]
        busiest = float(mine.max(axis=1, initial=0.0).sum())
        rows.append(
            {
                "kind": kind,
                "directions": int(mine.shape[1]),
                "busiest_seconds": busiest,
                "share_of_plan": busiest / total,
                "average_use": float(mine.sum() / mine.shape[1] / total),
                "bytes": float((mine * arrays.bandwidth[kinds == kind] * GIGA).sum()),
            }
        )
    return rows


def way(topology: Topology, direction: int) -> str:
    """Return a direction's name; only ``a>b`` where the connection is named after its ends."""
    arrays = topology.arrays()
    connection = topology.connections[int(arrays.direction_connection[direction])]
    name, a, b = arrays.direction_names[direction], connection.a, connection.b
    if connection.duplex == "half" or connection.name not in (f"{a}-{b}", f"{b}-{a}"):
        return name
    return name.removeprefix(f"{connection.name}:")


def _kind(topology: Topology, direction: int) -> str:
    return topology.connections[int(topology.arrays().direction_connection[direction])].kind
