"""Benchmarks of the communication alone, and the plain exchange that it is compared with.

>>> from dgcl.bench import build_comm_info              # as dgcl.build_comm_info, and knows the baselines
>>> comm = build_comm_info(graph, method="gloo")        # doctest: +SKIP

One core measures: :mod:`~dgcl.bench.turns` times lanes in turns, :mod:`~dgcl.bench.patterns` checks every element,
:mod:`dgcl.topology.table` prints. ``dgcl bench``, calibration and the figures of the documentation stand on it.
"""

from dgcl.bench.baselines import BASELINES, METHODS, build_comm_info

__all__ = ["BASELINES", "METHODS", "build_comm_info"]
