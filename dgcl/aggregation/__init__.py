"""Sums over edges wherever they are summed, with the exchanges inside, as one differentiable operation.

- :mod:`~dgcl.aggregation.grouped_edges`: edges grouped by their heads, and the CPU's kernels on tensors;
- :mod:`~dgcl.aggregation.sparse`: products with sparse matrices, for other devices;
- :mod:`~dgcl.aggregation.block`: some edges from rows to rows, both ways round;
- :mod:`~dgcl.aggregation.operation`: the blocks of a rank's edges, joined with both exchanges;
- :mod:`~dgcl.aggregation.windowed`: the same, halo rows a part at a time;
- :mod:`~dgcl.aggregation.contribution_exchange`: each rank's results for a row brought to its owner, not added;
- :mod:`~dgcl.aggregation.once`: the refusal of second derivatives;
- :mod:`~dgcl.aggregation.extreme_kernels`: the extremes at each head;
- :mod:`~dgcl.aggregation.extremes`: maxima and minima;
- :mod:`~dgcl.aggregation.aggregator`: what users hold;
- :mod:`~dgcl.aggregation.connect_aggregators`: how ranks make one together.

Imports ``kernels``, ``planner``, ``relation``, ``program``, ``ranks`` and ``transport``.
"""
