"""Lower bounds from cuts, distances and numbers of stages, which no plan can beat.

Imports the planner's plain data (plan, relation, reach, cost) and :mod:`dgcl.topology`. Bounds from prices need column
generation and are in :mod:`dgcl.planner.column_generation.master.price_bound`.
"""
