"""Who owns which vertex: parts by METIS or KaMinPar over machines, sockets and devices, at random, in ranges, or given.

Imports :mod:`dgcl.graph` and :mod:`dgcl.topology`.
"""

from dgcl.partition.check_part import check_part
from dgcl.partition.partitioners import BALANCES, METHODS, balance_weights, partition_graph
from dgcl.partition.streaming import EdgeStream, edge_files

__all__ = [
    "BALANCES", "METHODS", "EdgeStream", "balance_weights", "check_part", "edge_files", "partition_graph",
]  # fmt: skip
