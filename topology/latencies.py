"""Assumed latencies of connections by their kind, and of a stage of the transport that runs on GPUs, in seconds.

A message takes the sum over its route before its bytes flow; each stage of a plan has one such sum at least.

- *Wires*: NVLink, xGMI, PCIe, networks: NCCL's figures for a whole route (NVIDIA/nccl, src/graph/tuning.cc, ``hwLat``,
  ring, LL), half to a wire. EFA: its provider's (aws/aws-ofi-nccl, platform-aws.c). Buses: assumed, a remote load.
- *Transport*: **assumed**, two launches of 2.5 us a stage on a GPU, half at each end of a route.

Called by `dgcl/calibration/`, `dgcl/cli/` and 2 more folders. Free to change while
`tests/topology/test_latencies.py` passes.
"""

from collections.abc import Mapping
from dataclasses import replace

from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

STAGE = 2 * 2.5e-6  # of the transport for GPUs; assumed

NVLINK, PCIE, NETWORK, EFA, BUS = 0.6e-6, 1.0e-6, 2.7e-6, 75e-6, 0.1e-6
WIRES: Mapping[str, float] = {
    "PCIe": PCIE / 2,
    "EFA": EFA / 2,
    **dict.fromkeys(("IB", "RoCE", "Slingshot", "Eth", "net"), NETWORK / 2),
}


# ``dgcl topo calibrate`` replaces both by what exchanges take.


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
