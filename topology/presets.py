"""Machines by name."""

from __future__ import annotations

from dgcl.topology.checks import check_index, check_number
from dgcl.topology.model import Connection, Device, Topology


def uniform(num_devices: int, *, bandwidth: float = 10.0, latency: float = 0.0) -> Topology:
    """No machine in particular: every device has one port of the same speed on one switch that is never the
    bottleneck.

    This is the model of most papers on collective communication: all pairs are alike, and a device is
    bounded by what its port takes in and gives out. ``bandwidth`` is in GB/s per direction of a port,
    ``latency`` in seconds per port.
    """
    if check_index(num_devices, "num_devices") < 1:
        raise ValueError(f"num_devices must be at least 1 (got {num_devices})")
    check_number(bandwidth, "bandwidth", positive=True)
    names = [f"device{rank}" for rank in range(num_devices)]
    return Topology(
        name=f"uniform{num_devices}",
        devices=tuple(Device(name) for name in names),
        connections=tuple(
            Connection(f"{name}-switch", "port", name, "switch", bandwidth, latency) for name in names
        ),
    )
