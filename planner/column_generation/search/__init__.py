"""Which numbers of stages are tried, how hard, and which plan and bound are kept.

Imports all other folders of :mod:`dgcl.planner.column_generation`; only the planners import it.
"""
