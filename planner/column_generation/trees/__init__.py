"""Trees of whole rows as arrays that compiled code can change: edges, forests, times.

Imports the planner's plain data (plan, relation, cost) only.
"""
