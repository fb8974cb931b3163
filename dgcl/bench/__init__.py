"""Benchmarks of exchanges of rows alone, and an exchange without a plan (Gloo) to compare with.

>>> from dgcl.bench import build_comm_info              # as dgcl.build_comm_info, and knows the baselines
>>> comm = build_comm_info(graph, method="gloo")        # doctest: +SKIP

All measurements use the same parts: :mod:`~dgcl.bench.turns` times candidates in turns, :mod:`~dgcl.bench.patterns`
checks every element, and :mod:`dgcl.topology.table` prints. ``dgcl bench``, calibration and the figures of the
documentation are made with them.
"""

from dgcl.bench.baselines import BASELINES, METHODS, build_comm_info

__all__ = ["BASELINES", "METHODS", "build_comm_info"]
