"""The whole search: numbers of stages, plans for devices in groups, and the best plan and bound so far.

Imports all other folders of :mod:`dgcl.planner.column_generation`; only the planners import it.
"""
