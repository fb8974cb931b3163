"""The pricing problem: the cheapest trees at given prices, and how busy they keep each connection.

Imports :mod:`dgcl.planner.bounds` (covers of cuts) and the planner's plain data.
"""
