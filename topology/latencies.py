"""Sets assumed latencies on a topology's connections, by their kind; or removes them.

In seconds. A message takes the sum over its route before its bytes flow; each stage of a plan has one such sum at
least. Wires (NVLink, xGMI, PCIe, networks): NCCL's figures for a whole route (NVIDIA/nccl, src/graph/tuning.cc,
``hwLat``, ring, LL), half to a wire. EFA: aws/aws-ofi-nccl, platform-aws.c. Buses: assumed, a remote load. Transport on
GPUs: **assumed**, two launches of 2.5 us a stage, half at each end of a route.
Called by `resolve`, `topology/importers/files`, `dgcl/calibration/run` and `dgcl/cli/topo_detect`. Free to change while
each connection of each preset gets the latency of its kind, and routes add up (`tests/topology/test_latencies.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection

# ``dgcl topo calibrate`` replaces all of these by what exchanges take.
STAGE = 2 * 2.5e-6  # of the transport for GPUs; assumed

NVLINK, PCIE, NETWORK, EFA, BUS = 0.6e-6, 1.0e-6, 2.7e-6, 75e-6, 0.1e-6
WIRES: Mapping[str, float] = {
    "PCIe": PCIE / 2,
    "EFA": EFA / 2,
    **dict.fromkeys(("IB", "RoCE", "Slingshot", "Eth", "net"), NETWORK / 2),
}


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
