"""Sums over the edges that a rank has: rows in, rows out, without communication.

- :mod:`~dgcl.aggregation.edges`: edges grouped by their heads, and the CPU's kernels on tensors;
- :mod:`~dgcl.aggregation.sparse`: products with sparse matrices, for other devices;
- :mod:`~dgcl.aggregation.block`: some edges from rows to rows, both ways round.

Imports ``kernels``.
"""
