"""Compiled inner loops, for CPUs (numba) and GPUs (CUDA): they copy, gather and add rows, and sum over edges.

Imports nothing of ours. Most CPU kernels take addresses (``intp``), because the memory they touch belongs to other
processes and has no array behind it on this side:

- :mod:`dgcl.kernels.memory`: loads and stores with an order, copies, and how a waiting thread gives way;
- :mod:`dgcl.kernels.half`: float16 and bfloat16 to float32 and back, in integer arithmetic;
- :mod:`dgcl.kernels.copies`: copies of rows with prefetching, and past the caches;
- :mod:`dgcl.kernels.rows`: gather rows; add rows in a fixed order;
- :mod:`dgcl.kernels.row_moves`: put rows where nothing is to be added;
- ``edge_*``: sums, extremes and attention scores over the edges of a graph;
- :mod:`dgcl.kernels.compiled`: the decorator that compiles all of them and caches the machine code.

``cuda_*`` is the same for GPUs, with the driver calls that launch it; docs/gpu.md is the guide to these files.

Nothing here is imported by ``import dgcl``: numba loads on first use.
"""
