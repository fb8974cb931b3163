"""Sums over edges on a grid of ranks, parts x depth x slices, of which 1D, 1.5D, 2D and 3D are cases.

CAGNET's family of algorithms (Tripathy, Yelick and Buluc, SC'20), each as an expand of rows to the ranks that sum
edges, and a fold of what they summed. ``grid`` says which rank is where, ``needs`` who reads and who sums which vertex,
``items`` which slices of rows that is, ``grid_edges`` which edges a rank has; ``grid_strategy``, which
:mod:`dgcl.prepare` calls, plans both exchanges. Tests are in tests/dgcl/grid.
"""
