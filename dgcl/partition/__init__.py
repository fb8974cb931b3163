"""Who owns which vertex: by METIS over machines, sockets and devices, or given; and what it costs."""

from __future__ import annotations

from dgcl.partition.check import check_part
from dgcl.partition.parts import METHODS, partition_graph
from dgcl.partition.replication import replication_factors
from dgcl.partition.report import PartitionReport, partition_report

__all__ = [
    "METHODS",
    "PartitionReport",
    "check_part",
    "partition_graph",
    "partition_report",
    "replication_factors",
]
