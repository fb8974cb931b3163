"""What the hardware is: devices, connections, links. Pure data; imports no torch.

>>> from dgcl.topology import uniform
>>> len(uniform(3).links)
6
"""

from __future__ import annotations

from dgcl.topology.arrays import TopologyArrays
from dgcl.topology.model import Connection, Device, Link, Topology
from dgcl.topology.presets import uniform

__all__ = ["Connection", "Device", "Link", "Topology", "TopologyArrays", "uniform"]
