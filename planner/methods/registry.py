"""Lists the planning methods; :func:`make_plan` plans with one, then costs, bounds, signs and verifies the result.

A method is a function ``plan(relation, topology, options) -> Trees`` in a module of its own. A new one is one file and
one line in :data:`METHODS`. Methods are imported when they are first used, since most need compiled code.
Called by users, `planner/reading/plan_report`, `dgcl/program/strategy`, `dgcl/prepare/local_edges`,
`dgcl/advisor/epoch` and others. Free to change while plans of every method deliver at their stated cost, the same
input gives the same plan, and the meta is that of docs/plan-format.md (`tests/planner/methods/test_make_plan.py`).
"""

import importlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import direct_seconds, stage_seconds
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import SCHEMA, fingerprint, plan_arrays
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.reach import require_routes, require_same_size
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, shown

METHODS = ("auto", "optimal", "direct", "spst")
"""The planners by name, each a module of :mod:`dgcl.planner.methods`."""


def get_planner(method: str) -> Callable[[Relation, Topology, PlanOptions], Trees]:
    """Return the planner called ``method``.

    It returns trees which deliver the relation over the topology's links, without ``options.time_limit`` the same for
    the same arguments, or raises a ValueError that names why it cannot.

    Raises:
        ValueError: no such method; the message lists those there are.
    """
    module = f"dgcl.planner.methods.{check_choice(method, 'method', METHODS)}"
    return importlib.import_module(module).plan  # type: ignore[no-any-return]


def make_plan(
    relation: Relation, topology: Topology, method: str = "auto", options: PlanOptions | None = None
) -> Plan:
    """Plan ``relation`` on ``topology``, then cost, bound, sign and verify the result.

    Without a time limit the same arguments give the same arrays and the same meta except planning_seconds.

    Args:
        relation: what must be delivered.
        topology: the machine, with exactly one device per rank.
        method: one of :data:`METHODS`.
        options: row width, seed, limits; the defaults of :class:`PlanOptions` if None.

    Raises:
        ValueError: unknown method, sizes that disagree, or a needed pair that no chain of links joins.
    """
    options = PlanOptions() if options is None else options
    for name, value, kind in (
        ("relation", relation, Relation),
        ("topology", topology, Topology),
        ("options", options, PlanOptions),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__} (got {shown(value)})")
    planner = get_planner(method)
    started = time.perf_counter()
    require_same_size(relation.world_size, topology)
    require_routes(relation.pair_rows(), topology)
    trees = planner(relation, topology, options).normalised()
    verify_trees(relation, trees, topology)
    meta = _describe(relation, topology, trees, method, options)
    meta["planning_seconds"] = time.perf_counter() - started
    return Plan(relation, trees, topology, meta)


def _describe(
    relation: Relation, topology: Topology, trees: Trees, method: str, options: PlanOptions
) -> dict[str, Any]:
    """Return the meta object of a plan (docs/plan-format.md), all but planning_seconds."""
    stages = stage_seconds(trees, topology.arrays(), options.row_bytes).tolist()
    predicted = sum(stages)
    bound = trees.bound or best_bound(relation, topology, options.row_bytes)
    lower = min(bound.seconds, predicted)  # they may differ by a rounding where the plan is optimal
    meta = {
        "schema": SCHEMA,
        "world_size": relation.world_size,
        "topology": topology.to_json(),
        "method": method,
        "made_by": trees.made_by or method,
        "seed": options.seed,
        "row_bytes": options.row_bytes,
        "stage_seconds": stages,
        "predicted_seconds": float(predicted),
        "lower_bound_seconds": lower,
        "limited_by": bound.where,
        "gap": predicted / lower - 1 if predicted > 0 else 0.0,
        "direct_seconds": direct_seconds(relation, topology, options.row_bytes),
        "version": _version(),
    }
    meta["fingerprint"] = fingerprint(plan_arrays(relation, trees), meta)
    return meta


@cache
def _version() -> str:
    import importlib.metadata  # slow to import

    try:
        return importlib.metadata.version("dgcl")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
