"""Near-optimal plans with a proven bound, by column generation (Dantzig and Wolfe, 1960).

Folders are the algorithm's steps, in the order of their imports; none imports a later one. Outside this package they
import the planner's plain data and :mod:`dgcl.planner.bounds`. A reader's tour:

1. ``search/stage_search.py``: the whole search; tries numbers of stages and keeps the best plan and bound.
2. ``pricing/states.py``: states: (stage, device that holds a row, set of devices still to serve).
3. ``pricing/tree_program.py``: for given prices, the cheapest tree of every class at once, by dynamic programming.
4. ``pricing/flows.py``: all rows follow these choices; how busy that keeps each connection is a column.
5. ``master/fractional.py``: raises the prices of busy connections, again and again, and keeps columns.
6. ``master/restricted_master.py``: the best combination of the columns; its duals price the next ones.
7. ``master/price_bound.py``: why no plan is faster than what the cheapest trees pay.
8. ``rounding/bundles.py``: each answer's trees for a whole number of rows, and the vertices that take them.
9. ``improvement/tree_exchange.py``: exchanges whole trees while the exact time falls; ``reparent.py`` replaces single
   edges.
10. ``search/grouped.py``: more than two dozen devices: aggregated prices, then coordinate descent over whole trees.
"""
