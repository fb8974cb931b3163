"""The pricing problem: the cheapest trees at given prices, and what their choices load.

Imports :mod:`dgcl.planner.bounds` (covers of cuts) and the planner's plain data.
"""
