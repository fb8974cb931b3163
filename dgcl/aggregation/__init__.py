"""Sums, means, maxima and minima over in-edges of a partitioned graph, exchanges of rows included, differentiable.

Users hold an ``aggregator``; ``connect_aggregators`` makes one on all ranks together. An ``operation`` joins the
``block`` of each kind of edges with both exchanges; ``windowed`` is the same, halo rows a part at a time, and
``step_execution`` carries both out, on the CPU by ``grouped_edges``, elsewhere by ``sparse``. ``extremes`` are maxima
and minima, whose contributions ``contribution_exchange`` brings to their owners. Tests are in tests/dgcl/aggregation.
"""
