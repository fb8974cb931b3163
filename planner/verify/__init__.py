"""Proves that a plan is what it states: delivery, costs, bound, gap and fingerprint, and its fold.

May import everything else in ``dgcl.planner`` but ``reading`` and ``simulator``. Nothing here trusts a planner.
"""
