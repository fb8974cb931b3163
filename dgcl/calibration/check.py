"""Checks a calibrated topology's predictions on plans that it was not fitted to.

The plans are those of graphs: several kinds and sizes, partitioned in several ways, planned by several
methods, with rows of several widths. None of them is among the experiments, where every pair of ranks sends
what an experiment says and rows have one width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.partition import partition_graph
from dgcl.planner import PlanOptions
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.methods import make_plan
from dgcl.program import Program, compile_programs
from dgcl.relation.classes import halo_classes
from dgcl.topology import Topology

if TYPE_CHECKING:
    from dgcl.planner import Plan

# Kind of graph, vertices, edges of a vertex, partition, planner, bytes of a row.
_PROBLEMS = (
    ("uniform", 20_000, 8, "random", "direct", 512),
    ("uniform", 60_000, 4, "metis", "auto", 1024),
    ("blocks", 80_000, 10, "metis", "auto", 512),
    ("blocks", 40_000, 12, "range", "direct", 256),
    ("skewed", 30_000, 8, "metis", "auto", 512),
    ("skewed", 50_000, 6, "random", "spst", 512),
    ("grid", 90_000, 4, "random", "auto", 1024),
    ("grid", 160_000, 4, "range", "spst", 2048),
    ("uniform", 5_000, 10, "random", "spst", 768),
    ("skewed", 100_000, 5, "range", "auto", 256),
    ("blocks", 120_000, 6, "random", "direct", 384),
    ("uniform", 2_000, 6, "metis", "auto", 512),
    ("grid", 40_000, 4, "metis", "direct", 4096),
    ("skewed", 10_000, 12, "random", "auto", 1024),
    ("blocks", 10_000, 8, "metis", "spst", 256),
    ("uniform", 150_000, 3, "random", "auto", 256),
)
MOST_CHECKS = len(_PROBLEMS)


@dataclass(frozen=True)
class Checked:
    """A plan that was predicted and then timed.

    Attributes:
        name: Of the graph, the partition and the planner.
        stages: Of the plan.
        bytes: That its ranks send.
        predicted, measured: Seconds.
        error: predicted / measured - 1.
    """

    name: str
    stages: int
    bytes: int
    predicted: float
    measured: float
    error: float


def check_plans(topology: Topology, count: int) -> list[tuple[Plan, list[Program]]]:
    """``count`` plans for the devices of a topology, and the programs that execute them.

    They are planned with the topology's own figures, for what is to be checked is how well a plan is
    predicted, not how good it is.

    Raises:
        ValueError: ``count`` above :data:`MOST_CHECKS`.
    """
    if not 0 <= count <= MOST_CHECKS:
        raise ValueError(f"num_checks must be 0 to {MOST_CHECKS} (got {count})")
    return [_plan(number, topology.num_devices, topology) for number in range(count)]


def compare(plans: Sequence[Plan], fitted: Topology, seconds: Sequence[float]) -> tuple[Checked, ...]:
    """Compare the fitted topology's predictions for :func:`check_plans` with the measured times."""
    arrays, checked = fitted.arrays(), []
    for problem, plan, measured in zip(_PROBLEMS, plans, seconds, strict=False):
        kind, num_nodes, _, partition, method, row_bytes = problem
        name = f"{kind} {num_nodes // 1000}k, {partition}, {method}, {row_bytes} B"
        predicted = predicted_seconds(plan.trees, arrays, row_bytes)
        sizes = plan.num_stages, plan.trees.rows_moved() * row_bytes
        checked.append(Checked(name, *sizes, predicted, measured, predicted / measured - 1))
    return tuple(checked)


def median_error(checked: Sequence[Checked]) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median([abs(one.error) for one in checked]))


def _plan(number: int, world_size: int, topology: Topology) -> tuple[Plan, list[Program]]:
    kind, num_nodes, degree, partition, method, row_bytes = _PROBLEMS[number]
    graph = _graph(kind, num_nodes, degree, seed=number)
    part = partition_graph(graph, world_size, method=partition, seed=number)
    classes = halo_classes(graph, part, world_size)
    plan = make_plan(classes.relation, topology, method, PlanOptions(row_bytes=row_bytes))
    return plan, compile_programs(plan, classes)


def _graph(kind: str, num_nodes: int, degree: int, seed: int) -> Graph:
    """Random edges u -> v: uniform, mostly within blocks of 500, mostly from few sources, or on a grid."""
    rng = np.random.default_rng(seed)
    num_edges = num_nodes * degree
    heads = rng.integers(0, num_nodes, num_edges)
    if kind == "uniform":
        tails = rng.integers(0, num_nodes, num_edges)
    elif kind == "skewed":
        tails = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    elif kind == "blocks":
        near = heads // 500 * 500 + rng.integers(0, 500, num_edges)
        far = rng.integers(0, num_nodes, num_edges)
        tails = np.where(rng.random(num_edges) < 0.9, near % num_nodes, far)
    else:
        side = int(num_nodes**0.5)
        heads = np.tile(np.arange(num_nodes), degree)
        steps = np.array([1, -1, side, -side])[np.repeat(np.arange(degree) % 4, num_nodes)]
        tails = (heads + steps) % num_nodes
    return as_graph(np.stack([tails, heads]), num_nodes)
