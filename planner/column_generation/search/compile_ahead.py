"""Compiles the two steps of a search that take longest to compile, by taking them once on a small problem.

What is compiled depends on the types of arrays, not on their sizes.
"""

from __future__ import annotations

import numpy as np

from dgcl.planner.column_generation.dual_bound.price_bound import price_bound
from dgcl.planner.column_generation.improvement.improve import improve
from dgcl.planner.column_generation.master.fractional import make_problem
from dgcl.planner.column_generation.pricing.groups import plan_states
from dgcl.planner.column_generation.pricing.routes import Routes
from dgcl.planner.direct_trees import direct_trees
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import resolve_topology


def compile_bound_and_exchange() -> None:
    """Compile, or load, the rounds of the bound from prices and the exchange of trees."""
    relation, topology = synthetic_relation("web-google", 3, scale=0.001), resolve_topology("uniform", 3)
    arrays = topology.arrays()
    ones = np.ones(arrays.link_src.shape[0])
    price_bound(relation, arrays, np.arange(3), factor=ones, aim=1.0, steps=0)
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, ones, ones)
    problem = make_problem(plan_states(relation, topology), routes)
    improve(direct_trees(relation), problem, relation, arrays, 2, enough=0.0, latency_unit=1.0)
