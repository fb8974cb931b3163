"""What the hardware is: devices, connections, links. Pure data, which imports nothing else of dgcl, and no torch.

>>> from dgcl.topology import preset
>>> preset("dgx1").num_devices
8
"""

from dgcl.topology.arrays import TopologyArrays
from dgcl.topology.host import measure_host
from dgcl.topology.json_io import load_topology, save_topology
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link
from dgcl.topology.resolve import preset, preset_names, resolve_topology
from dgcl.topology.show import render_topology

__all__ = [
    "Connection",
    "Device",
    "Link",
    "Topology",
    "TopologyArrays",
    "load_topology",
    "measure_host",
    "preset",
    "preset_names",
    "render_topology",
    "resolve_topology",
    "save_topology",
]
