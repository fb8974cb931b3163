"""Checks all that a plan states: delivery, costs, bound, gap, fingerprint, and its fold (the plan reversed).

Delivery is proved; costs, gap and fingerprint are recomputed; the stated bound is only compared with the plan itself
and peer-to-peer. :func:`check_plan_file` needs nothing but the file.
Called by users, `dgcl/cli/check`, `dgcl/cli/plans`, `dgcl/prepare/cache` and `dgcl/prepare/part_files`. Free to change
while every mutated file and every false figure, signed or not, is refused with its fault
(`tests/planner/verify/test_check.py`).
"""

import os
from dataclasses import asdict, dataclass
from typing import Any

from dgcl.planner.bounds.best import cut_bound
from dgcl.planner.cost import direct_seconds, predicted_seconds, stage_seconds
from dgcl.planner.fold import NoWayBackError, is_symmetric, reverse_plan
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.planning_errors import PlanError
from dgcl.planner.relays import without_idle_relays
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology.checks import shown

#: What a report has from the plan as it is there.
_STATED = (
    "method", "world_size", "row_bytes", "num_stages", "predicted_seconds", "lower_bound_seconds", "gap",
    "direct_seconds", "fingerprint",
)  # fmt: skip
_RELATIVE = 1e-9  # room for the order of additions in another numpy, nothing more


@dataclass(frozen=True)
class Report:
    """What :func:`check_plan_file` proved; every figure but two is recomputed from the file.

    Attributes:
        path: the file.
        method, world_size, row_bytes, num_classes, num_trees, num_edges, num_stages: what the plan is.
        boundary_vertices: vertices that some other rank needs.
        deliveries: (vertex, destination) pairs, each served exactly once.
        bytes_needed, bytes_sent: deliveries and tree edges, in bytes.
        predicted_seconds, direct_seconds: as stated and found true.
        lower_bound_seconds, gap: as stated, not proved: the bound is only compared with the cost of this plan (without
            idle relays) and of peer-to-peer, and is above neither.
        cut_bound_seconds: the bound by cuts, recomputed: no plan takes less.
        fold_seconds, fold_bound_seconds: cost of the fold, proved to add every contribution once, and a bound on any
            fold (:class:`dgcl.planner.fold.Fold`); None where some link has none the other way.
        fingerprint: recomputed and equal to the stated one.
    """

    path: str
    method: str
    world_size: int
    row_bytes: int
    num_classes: int
    num_trees: int
    num_edges: int
    num_stages: int
    boundary_vertices: int
    deliveries: int
    bytes_needed: int
    bytes_sent: int
    predicted_seconds: float
    lower_bound_seconds: float
    gap: float
    direct_seconds: float | None
    cut_bound_seconds: float
    fold_seconds: float | None
    fold_bound_seconds: float | None
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)


def verify_plan(plan: Plan) -> None:
    """Prove delivery and recompute everything that the plan states about itself.

    Raises:
        PlanError: Something is not as stated; says what.
    """
    from dgcl.topology import Topology

    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan must be a Plan (got {shown(plan)}); dgcl.planner.check_plan_file(path) takes a file"
        )
    if plan.meta["topology"] != plan.topology.to_json():  # as it is in plans of our own making
        stated = Topology.from_json(plan.meta["topology"])
        if stated != plan.topology:
            raise PlanError("meta.topology is not the topology that the plan carries")
    _verify(plan)


def _verify(plan: Plan) -> float:
    """Prove a plan whose topology is known to be that of its meta; return its seconds without idle relays."""
    meta = plan.meta
    if meta["world_size"] != plan.relation.world_size:
        raise PlanError(
            f"meta.world_size is {meta['world_size']} but the relation has {plan.relation.world_size} ranks"
        )
    verify_trees(plan.relation, plan.trees, plan.topology)
    seconds = _check_cost(plan)
    computed = fingerprint(plan_arrays(plan.relation, plan.trees), meta)
    if computed != meta["fingerprint"]:
        raise PlanError(f"meta.fingerprint is {meta['fingerprint']!r} but arrays and meta give {computed!r}")
    return seconds


def _check_cost(plan: Plan) -> float:
    """Return the seconds without idle relays; PlanError unless stated costs, bound and gap are the recomputed ones."""
    meta = plan.meta
    stages = stage_seconds(plan.trees, plan.topology.arrays(), plan.row_bytes).tolist()
    if len(stages) != len(meta["stage_seconds"]):
        raise PlanError(
            f"meta.stage_seconds has {len(meta['stage_seconds'])} stages, the edges {len(stages)}"
        )
    for k, (stated, computed) in enumerate(zip(meta["stage_seconds"], stages, strict=True)):
        _require_equal(f"stage_seconds[{k}]", stated, computed)
    _require_equal("predicted_seconds", meta["predicted_seconds"], sum(stages))
    predicted, bound = meta["predicted_seconds"], meta["lower_bound_seconds"]
    _require_not_beaten(bound, "the plan itself", predicted)
    if predicted > 0 and bound <= 0:
        raise PlanError(
            "meta.lower_bound_seconds is 0 although rows are sent, which takes time on every link"
        )
    gap = predicted / bound - 1 if predicted > 0 else 0.0
    if abs(meta["gap"] - gap) > _RELATIVE * (1 + abs(gap)):
        raise PlanError(f"meta.gap is {meta['gap']!r} but predicted / bound - 1 is {gap!r}")
    direct = direct_seconds(plan.relation, plan.topology, plan.row_bytes)
    if (direct is None) != (meta["direct_seconds"] is None):
        raise PlanError(f"meta.direct_seconds is {meta['direct_seconds']!r} but recomputed it is {direct!r}")
    if direct is not None:
        _require_equal("direct_seconds", meta["direct_seconds"], direct)
        _require_not_beaten(bound, "peer-to-peer", direct)
    needed = without_idle_relays(plan)
    if needed is not plan.trees:
        predicted = predicted_seconds(needed, plan.topology.arrays(), plan.row_bytes)
        _require_not_beaten(bound, "the plan without idle relays", predicted)
    return float(predicted)


def _require_not_beaten(bound: float, what: str, seconds: float) -> None:
    if bound > seconds * (1 + _RELATIVE):
        raise PlanError(f"meta.lower_bound_seconds {bound!r} is above what {what} takes, {seconds!r}")


def _require_equal(name: str, stated: float, computed: float) -> None:
    if abs(stated - computed) > _RELATIVE * max(abs(stated), abs(computed)):
        raise PlanError(f"meta.{name} is {stated!r} but the edges cost {computed!r}")


def _fold(plan: Plan, seconds: float, bound: float) -> tuple[float, float] | tuple[None, None]:
    """Return the seconds of the fold of a proved plan, and its bound; None where some link has none the other way.

    Where each link has its way back over the same connections, the proof of the trees is that of the fold
    (:func:`dgcl.planner.fold.verify_fold`), and both figures, those of the plan without idle relays, are the same.
    """
    if is_symmetric(plan.topology.arrays()):
        return seconds, bound
    try:
        fold = reverse_plan(plan)
    except NoWayBackError:
        return None, None
    seconds, bound = fold.predicted_seconds, fold.bound.seconds
    if bound > seconds * (1 + _RELATIVE):
        raise PlanError(f"the fold costs {seconds!r}, below its bound {bound!r}")
    return seconds, bound


def check_plan_file(path: str | os.PathLike[str]) -> Report:
    """Read a plan file and prove it, with nothing but the file.

    Raises:
        ValueError: Not a plan file.
        PlanError: Something is not as the plan states; a ValueError, too.
        OSError: The file cannot be opened.
    """
    plan = Plan.load(path)
    try:
        seconds = _verify(plan)  # the file has one topology only
        cut = cut_bound(plan.relation, plan.topology, plan.row_bytes)
        if cut.seconds > plan.predicted_seconds * (1 + _RELATIVE):
            raise PlanError(f"the plan costs {plan.predicted_seconds!r}, below the cut bound {cut.seconds!r}")
        fold, fold_bound = _fold(plan, seconds, cut.seconds)
    except PlanError as error:
        raise PlanError(f"{os.fspath(path)}: {error}") from None
    relation, trees = plan.relation, plan.trees
    stated = {name: getattr(plan, name) for name in _STATED}
    return Report(
        path=os.fspath(path),
        **stated,
        num_classes=relation.num_classes,
        num_trees=trees.num_trees,
        num_edges=trees.num_edges,
        boundary_vertices=relation.num_vertices,
        deliveries=relation.deliveries,
        bytes_needed=relation.deliveries * plan.row_bytes,
        bytes_sent=trees.rows_moved() * plan.row_bytes,
        cut_bound_seconds=cut.seconds,
        fold_seconds=fold,
        fold_bound_seconds=fold_bound,
    )
