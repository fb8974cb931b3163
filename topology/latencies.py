"""Assumed latencies of connections by their kind, and of a stage of the transport that runs on GPUs, in seconds.

A message over a route takes the sum of its connections' latencies before its bytes flow, and each stage of a plan
has one such sum at least. It has two parts:

- *the wires*: what a flag takes to cross them. NVLink, xGMI, PCIe and networks: the figures that NCCL's model has for
  its protocol of smallest latency (NVIDIA/nccl, src/graph/tuning.cc, ``hwLat``, ring, LL), which are for a whole
  route; so a wire of it has a half. EFA: the figure that the provider gives NCCL (aws/aws-ofi-nccl, platform-aws.c).
  Buses of processors and memory: assumed, about what a load from another socket takes.
- *the transport*: a stage on a GPU is two launches one behind the other (rows; flags), each about 2.5 us.
  **Assumed**: no device has been asked. Half of it is on the connection of the device that sends, and half on that of
  the one that receives, since every route has both.

``dgcl topo calibrate`` replaces both by what exchanges take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgcl.topology.model import Topology
    from dgcl.topology.parts import Connection

STAGE = 2 * 2.5e-6  # of the transport for GPUs; assumed

NVLINK, PCIE, NETWORK, EFA, BUS = 0.6e-6, 1.0e-6, 2.7e-6, 75e-6, 0.1e-6
WIRES: Mapping[str, float] = MappingProxyType(
    {
        "PCIe": PCIE / 2,
        "EFA": EFA / 2,
        **dict.fromkeys(("IB", "RoCE", "Slingshot", "Eth", "net"), NETWORK / 2),
    }
)


def with_latencies(topology: Topology) -> Topology:
    """The machine with these latencies on all its connections, instead of those that they have."""
    devices = {device.name for device in topology.devices}

    def latency(connection: Connection) -> float:
        ends = (connection.a in devices) + (connection.b in devices)
        gpu_wire = connection.kind.startswith(("NV", "XGMI"))
        wire = NVLINK * ends / 2 if gpu_wire else WIRES.get(connection.kind, BUS)
        return wire + ends / 2 * STAGE

    return replace(topology, connections=tuple(replace(c, latency=latency(c)) for c in topology.connections))


def without_latencies(topology: Topology) -> Topology:
    """The machine with no latency on any connection: what rows cost by their bytes alone."""
    return replace(topology, connections=tuple(replace(c, latency=0.0) for c in topology.connections))
