"""Grids: 1D, 1.5D, 2D and 3D as one relation with three numbers, parts x depth x slices.

CAGNET's family of algorithms (Tripathy, Yelick and Buluc, SC'20), each as an expand of rows to the ranks that sum
edges, and a fold of what they summed:

- :mod:`~dgcl.grid.grid`: the three numbers, and which rank is where;
- :mod:`~dgcl.grid.needs`: who reads and who sums which vertex, by one pass over the edges;
- :mod:`~dgcl.grid.items`: slices of rows as items, and both demands of an aggregation over them;
- :mod:`~dgcl.grid.grid_edges`: each rank's edges;
- :mod:`~dgcl.grid.grid_plans`: plans of both exchanges;
- :mod:`~dgcl.grid.grid_strategy`: a grid as a strategy.

Imports ``graph``, ``relation``, ``program``, ``placement`` and the planner.
"""
