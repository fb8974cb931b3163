"""Calls of CPU ranks beside what the simulator and the cost model say of them; a part of `simulator.py`.

The ranks are processes. They calibrate this host (dgcl.calibration: experiments of one row width, pairs and patterns
of transfers) and in the same rounds, in the same way, time plans that the calibration does not see: rows are in no
cache, ranks begin together, rows that a rank owns are in place before, and the fastest tenth of the calls counts. The
plans are then simulated, and priced by the model, on the calibrated topology. The simulator is told, besides, what a
row costs apart from its bytes, which two more exchanges tell: as many bytes in rows of two widths. Nothing is fitted
to the plans.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import dgcl
from dgcl.calibration.classes import Observation
from dgcl.calibration.effort import Effort
from dgcl.calibration.exchange import Exchange, exchange_of
from dgcl.calibration.experiments import Experiment, Transfer, experiments
from dgcl.calibration.fit import fit_topology
from dgcl.calibration.run import host_structure
from dgcl.calibration.timing import Work, time_all
from dgcl.graph import as_graph
from dgcl.planner import PlanOptions
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.program import compile_programs
from dgcl.ranks.context import context
from dgcl.relation.classes import halo_classes
from dgcl.topology import Topology

CALIBRATED_ROW_BYTES = 512
WIDTHS = (256, 2048)  # of rows whose cost is compared
BYTES_EACH = 8 << 20
EFFORT = Effort(seconds=0.1, rounds=3)


@dataclass(frozen=True)
class Run:
    """One plan to be timed.

    Attributes:
        method: planner.
        num_nodes, degree: vertices, and edges into each.
        share: of the edges into rank 0's vertices that come from other ranks; a third of that elsewhere.
        row_bytes: bytes of a row.
    """

    method: str
    num_nodes: int
    degree: int
    share: float
    row_bytes: int

    def __str__(self) -> str:
        return f"{self.method}, {self.num_nodes:,}, {self.degree}, {self.share:.0%}, {self.row_bytes} B"


# By number of ranks. Two ranks have one stage; more take relays and stages only if a planner is told to.
RUNS: dict[int, tuple[Run, ...]] = {
    2: (
        Run("direct", 60_000, 8, 0.5, 512), Run("direct", 60_000, 8, 0.1, 512), Run("direct", 20_000, 8, 0.5, 512),
        Run("direct", 60_000, 8, 0.5, 2048), Run("direct", 60_000, 2, 0.5, 1024), Run("direct", 200_000, 2, 0.3, 256),
        Run("direct", 100_000, 4, 0.2, 768),
    ),
    4: (
        Run("direct", 60_000, 4, 0.4, 512), Run("chain", 60_000, 4, 0.4, 512), Run("ring", 60_000, 4, 0.4, 512),
        Run("broadcast", 60_000, 4, 0.4, 512), Run("chain", 30_000, 8, 0.2, 1024), Run("ring", 30_000, 8, 0.2, 1024),
    ),
}  # fmt: skip


def per_row(seconds: tuple[float, float]) -> float:
    """How many bytes' worth of time a row costs besides its own, from the seconds of the same bytes in rows of WIDTHS.

    A row of w bytes takes (w + cost) / rate. The narrow exchange has `times` as many rows, hence the equation below.
    """
    narrow, wide = WIDTHS
    ratio, times = seconds[0] / seconds[1], wide / narrow
    return max(0.0, wide * (ratio - 1.0) / (times - ratio)) if ratio < times else float(wide)


def everybody(num_ranks: int, row_bytes: int) -> Experiment:
    """All ranks to all others, `BYTES_EACH` from each rank, in rows of this width."""
    rows = BYTES_EACH // row_bytes // max(1, num_ranks - 1)
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    return Experiment("everybody", "pattern", tuple(Transfer(0, a, b, rows) for a, b in pairs))


def crossing(run: Run, num_ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges and parts; uneven, so that some ranks have more to send than others."""
    rng = np.random.default_rng(run.num_nodes + run.degree)
    part = np.arange(run.num_nodes) % num_ranks
    head = np.repeat(np.arange(run.num_nodes), run.degree)
    other = rng.random(len(head)) < np.where(part[head] == 0, run.share, run.share / 3)
    owner = (part[head] + np.where(other, rng.integers(1, max(2, num_ranks), len(head)), 0)) % num_ranks
    tail = rng.integers(0, run.num_nodes // num_ranks, len(head)) * num_ranks + owner
    return np.stack([tail, head]), part


def plan_of(run: Run, topology: Topology) -> tuple[Plan, list[Any]]:
    """The plan of a run and the programs that carry it out."""
    edges, part = crossing(run, topology.num_devices)
    classes = halo_classes(as_graph(edges, run.num_nodes), part.astype(np.int32), topology.num_devices)
    plan = make_plan(classes.relation, topology, run.method, PlanOptions(row_bytes=run.row_bytes))
    return plan, compile_programs(plan, classes)


def scaled(topology: Topology, factor: float) -> Topology:
    """The topology with every bandwidth multiplied."""
    connections = tuple(replace(c, bandwidth=c.bandwidth * factor) for c in topology.connections)
    return replace(topology, connections=connections)


def timed(runs: tuple[Run, ...]) -> list[dict[str, Any]] | None:
    """What every rank runs: experiments and plans in turn, and a fit to the experiments; the outcome is rank 0's."""
    control = context.require_control()
    structure = host_structure(control.world_size)
    tried = [(one, CALIBRATED_ROW_BYTES) for one in experiments(structure, CALIBRATED_ROW_BYTES)]
    tried += [(everybody(control.world_size, width), width) for width in WIDTHS]
    exchanges: list[Exchange] = []
    plans: list[Plan] = []

    def prepare() -> Work:
        exchanges.extend(exchange_of(one, structure, width, seed=n) for n, (one, width) in enumerate(tried))
        made = [plan_of(run, structure) for run in runs]
        plans.extend(plan for plan, _ in made)
        return [
            *((exchange.programs, width) for exchange, (_, width) in zip(exchanges, tried, strict=True)),
            *((programs, plan.row_bytes) for plan, programs in made),
        ]

    seconds = time_all(control, prepare, EFFORT)
    if control.rank != 0:
        return None
    observed = [
        Observation(one.name, exchange.trees, width, lasted)
        for (one, width), exchange, lasted in zip(tried, exchanges, seconds, strict=False)
    ]
    fitted = fit_topology(structure, observed[: -len(WIDTHS)]).topology
    cost = per_row((observed[-2].seconds, observed[-1].seconds))
    bare = scaled(
        fitted, 1.0 + cost / CALIBRATED_ROW_BYTES
    )  # what it would reach if rows cost only their bytes
    return [
        {
            "ranks": control.world_size,
            "run": str(run),
            "stages": plan.num_stages,
            "row_cost": cost,
            "bytes": plan.trees.rows_moved() * plan.row_bytes,
            "measured": lasted,
            "simulated": simulate(plan, topology=bare, row_cost=cost, sends_at_once=1).seconds,
            "model": predicted_seconds(plan.trees, fitted.arrays(), plan.row_bytes),
        }
        for run, plan, lasted in zip(runs, plans, seconds[len(tried) :], strict=True)
    ]


def against_runs() -> list[dict[str, Any]]:
    """Measured, simulated and predicted seconds of all runs."""
    found: list[dict[str, Any]] = []
    for num_ranks, runs in RUNS.items():
        found += dgcl.launch(timed, num_ranks, runs, ranks="processes")[0]
    return found


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The runs in Markdown, and how far off they are in the middle."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lines = [
        "| ranks | plan: planner, vertices, edges each, crossing, row | stages | MB | measured ms"
        " | simulated ms | off | model ms | off |",
        f"|{' --- |' * 9}",
        *map(_line, rows),
        "",
    ]
    for num_ranks in sorted({row["ranks"] for row in rows}):
        mine = [row for row in rows if row["ranks"] == num_ranks]
        middle = {
            key: float(np.median([abs(_off(row, key)) for row in mine])) for key in ("simulated", "model")
        }
        lines.append(
            f"- {num_ranks} ranks on {cores} cores (a row costs {mine[0]['row_cost']:.0f} bytes besides its own):"
            f" in the middle the simulator is {100 * middle['simulated']:.0f} % off,"
            f" the model {100 * middle['model']:.0f} %."
        )
    return lines


def _line(row: dict[str, Any]) -> str:
    return (
        f"| {row['ranks']} | {row['run']} | {row['stages']} | {row['bytes'] / 1e6:.1f} | {1e3 * row['measured']:.2f}"
        f" | {1e3 * row['simulated']:.2f} | {100 * _off(row, 'simulated'):+.0f} % | {1e3 * row['model']:.2f}"
        f" | {100 * _off(row, 'model'):+.0f} % |"
    )


def _off(row: dict[str, Any], key: str) -> float:
    return float(row[key] / row["measured"] - 1)
