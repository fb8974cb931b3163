"""The whole search: numbers of stages, plans of bundles, tiny instances, and the best plan and bound.

Imports all other folders of :mod:`dgcl.planner.column_generation`; only the planners import it.
"""
