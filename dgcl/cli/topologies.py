"""The argument ``T`` of many commands: a preset's name or a topology file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.cli.errors import reading
from dgcl.cli.output import step

if TYPE_CHECKING:
    from dgcl.topology import Topology

TOPOLOGY_HELP = (
    "preset such as dgx1, pcie8, host:4 or uniform:8 (a wrong name lists them all), or topology JSON file"
)


def resolve(spec: str, num_devices: int | None = None) -> Topology:
    """Return the topology that ``T`` names, of ``num_devices`` devices where that is given."""
    from dgcl.topology import resolve_topology

    with step(f"reading topology {spec}"), reading(spec, "topology"):
        return resolve_topology(spec, num_devices)
