"""Plans for people: a report as data and as text, the trees of a class, pictures.

May import everything else in ``dgcl.planner``.
"""
