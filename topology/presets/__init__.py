"""Machines by name, each with the source of its wiring and of its numbers.

Bandwidths are in GB/s per direction and, where a source gives them, what copies between devices reach, not
the peak of the data sheet. Latencies are 0: no source gives them for all kinds of connection, and a file
can add them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dgcl.topology.model import Topology
from dgcl.topology.presets.cloud import aws_p4d, aws_p5, azure_ndv4, azure_ndv5
from dgcl.topology.presets.nvidia import (
    dgx1,
    dgx2,
    dgx_a100,
    gb200_nvl4,
    gb200_nvl72,
    hgx_b200,
    hgx_h100,
    hgx_h200,
)
from dgcl.topology.presets.other import mi250x, summit, uniform
from dgcl.topology.presets.pcie import (
    a100_pair,
    h100_nvl_pair,
    pcie4_1080ti,
    pcie4_a40,
    pcie4_l40s,
    pcie8,
    pcie8_1080ti,
    pcie8_a40,
    pcie8_l40s,
    rtx3090_pair,
)

#: Machines with NICs, which can be joined: ``dgx1``, ``dgx1x2``.
NODES: Mapping[str, Callable[[int], Topology]] = MappingProxyType(
    {
        node.__name__: node
        for node in (
            dgx1,
            dgx2,
            dgx_a100,
            hgx_h100,
            hgx_h200,
            hgx_b200,
            gb200_nvl4,
            gb200_nvl72,
            aws_p4d,
            aws_p5,
            azure_ndv4,
            azure_ndv5,
            summit,
        )
    }
)

#: Machines without.
BOXES: Mapping[str, Callable[[], Topology]] = MappingProxyType(
    {
        box.__name__: box
        for box in (
            pcie8,
            pcie4_1080ti,
            pcie8_1080ti,
            pcie4_a40,
            pcie8_a40,
            pcie4_l40s,
            pcie8_l40s,
            rtx3090_pair,
            a100_pair,
            h100_nvl_pair,
            mi250x,
        )
    }
)

__all__ = ["BOXES", "NODES", *NODES, *BOXES, "uniform"]
