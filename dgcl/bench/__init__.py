"""Benchmarks of the communication alone, and the baselines it is compared with.

>>> from dgcl.bench import build_comm_info              # as dgcl.build_comm_info, and knows the baselines
>>> comm = build_comm_info(graph, method="gloo")        # doctest: +SKIP
"""

from __future__ import annotations

from dgcl.bench.methods import BASELINES, METHODS, build_comm_info

__all__ = ["BASELINES", "METHODS", "build_comm_info"]
