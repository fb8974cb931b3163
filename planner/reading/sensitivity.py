"""Estimates how long a plan would take if connections were twice or half as fast.

Kinds of connections as a whole: planned anew by the same method. Single connections: the cost of the same trees, and a
bound for any plan.
Called by `dgcl/cli/plan`. Free to change while seconds and bounds are those worked out by hand
(`tests/planner/reading/test_sensitivity.py`).
"""

import itertools
from dataclasses import replace

import numpy as np

from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import predicted_seconds, stage_use
from dgcl.planner.methods.registry import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.reading.render import seconds
from dgcl.topology.plot import per_connection
from dgcl.topology.table import Column, Table
from dgcl.topology.what_if import scaled

MOST = 10  # single connections, those in use longest
_FACTORS = {"half as fast": 0.5, "twice as fast": 2.0}


def sensitivity(plan: Plan, options: PlanOptions) -> Table:
    """Return the seconds of the plan where connections were twice and half as fast, by the cost model.

    First each kind as a whole, of a plan made anew by the same method and ``options``; then single connections, of the
    same trees, with a bound that holds for any plan.
    """
    wires, width = plan.topology.connections, plan.row_bytes
    busy = per_connection(plan.topology, stage_use(plan).sum(axis=0))
    most = np.argsort(-busy, kind="stable")[:MOST].tolist()
    kinds = {wire.kind: [i for i, each in enumerate(wires) if each.kind == wire.kind] for wire in wires}
    columns = (
        (Column(name, seconds), Column(f"bound, {factor:g} x", seconds)) for name, factor in _FACTORS.items()
    )
    table = Table(
        Column("if these were", left=True), "are", Column("plan", left=True), *itertools.chain(*columns)
    )
    for what, which in [*kinds.items(), *((wires[i].name, [i]) for i in most)]:
        anew, times = len(table.rows) < len(kinds), []
        for factor in _FACTORS.values():
            machine = replace(plan.topology, connections=tuple(scaled(wires, which, factor)))
            if anew:
                other = make_plan(plan.relation, machine, plan.method, replace(options, row_bytes=width))
                times += [other.predicted_seconds, other.lower_bound_seconds]
                continue
            same = predicted_seconds(plan.trees, machine.arrays(), width)
            # Of a slower machine the bound of this one holds as well, of a faster one its part.
            known = plan.lower_bound_seconds / max(factor, 1.0)
            times += [same, min(same, max(known, best_bound(plan.relation, machine, width).seconds))]
        table.add(what, len(which), "made anew" if anew else "the same", *times)
    return table
