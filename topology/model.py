"""Defines `Topology`: devices, the connections between them, and a link for each pair of devices.

>>> from dgcl.topology import Connection, Device, Topology
>>> wire = Connection("nv", "NV2", "gpu0", "gpu1", bandwidth=48.35)
>>> Topology("pair", (Device("gpu0"), Device("gpu1")), (wire,)).links
(Link(src='gpu0', dst='gpu1', route=('nv',)), Link(src='gpu1', dst='gpu0', route=('nv',)))

Called by users (as `dgcl.topology.Topology`), `resolve`, `draft`, `planner/cost`, `dgcl/build` and others. Free to
change while links are derived where none are given, and contradictory parts are refused by name
(`tests/topology/test_model.py`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from dgcl.topology.arrays import TopologyArrays, topology_arrays
from dgcl.topology.checks import check_index, check_name, check_num_devices, nearest, shown
from dgcl.topology.json_form import description_from_json, description_to_json
from dgcl.topology.parts import Connection, Device, Link
from dgcl.topology.routes import derive_routes

# :mod:`dgcl.topology.parts` defines the parts.


@dataclass(frozen=True)
class Topology:
    """Devices, the connections that join them, and the link of each ordered pair of devices.

    Rank r runs on ``devices[r]``. Without ``links`` (None) every ordered pair that connections join gets one link,
    by the widest route (:mod:`dgcl.topology.routes`). A given list is taken as it is: a pair that it leaves out has
    no link.

    Raises:
        ValueError, TypeError: Duplicate names, links of unknown devices, several links for an ordered pair, or a
            route that does not lead from ``src`` to ``dst`` through switches only, or uses a connection twice. Names
            the item by its position (``connections[3]``).
    """

    name: str
    devices: tuple[Device, ...]
    connections: tuple[Connection, ...]
    links: tuple[Link, ...] = None  # type: ignore[assignment]  # None asks for derivation and does not stay

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        for field, kind in (("devices", Device), ("connections", Connection), ("links", Link)):
            if field == "links" and self.links is None:
                continue
            object.__setattr__(self, field, _tuple_of(getattr(self, field), kind, field))
        if not self.devices:
            raise ValueError("devices must name at least one device (got none)")
        check_num_devices(len(self.devices), f"topology {shown(self.name)}")
        _check_unique([device.name for device in self.devices], "devices")
        _check_unique([connection.name for connection in self.connections], "connections")
        if self.links is None:
            routes = derive_routes([device.name for device in self.devices], self.connections)
            object.__setattr__(self, "links", tuple(Link(*route) for route in routes))
        else:
            self._check_links()

    @property
    def num_devices(self) -> int:
        """How many devices there are: the largest world size that this topology serves."""
        return len(self.devices)

    @property
    def switches(self) -> tuple[str, ...]:
        """Endpoints that are no devices, in the order in which connections name them."""
        devices = {device.name for device in self.devices}
        ends = (end for connection in self.connections for end in (connection.a, connection.b))
        return tuple(dict.fromkeys(end for end in ends if end not in devices))

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles carry the description alone: the numeric view is made again where it is needed.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def arrays(self) -> TopologyArrays:
        """The numeric view of this topology, computed once."""
        return self._arrays

    @cached_property
    def _arrays(self) -> TopologyArrays:
        return topology_arrays(self.devices, self.connections, self.links)

    def restrict(self, num_devices: int) -> Topology:
        """The first ``num_devices`` devices, without the others and the connections that touch them.

        Links stay as they are: a route passes through no device, so none of them loses a connection.
        """
        check_index(num_devices, f"num_devices of {shown(self.name)}", 1, self.num_devices)
        if num_devices == self.num_devices:
            return self
        gone = {device.name for device in self.devices[num_devices:]}
        return Topology(
            name=f"{self.name}[:{num_devices}]",
            devices=self.devices[:num_devices],
            connections=tuple(c for c in self.connections if c.a not in gone and c.b not in gone),
            links=tuple(link for link in self.links if link.src not in gone and link.dst not in gone),
        )

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> Topology:
        """The topology of a JSON object of schema ``dgcl-topology/1``.

        Raises:
            ValueError: The object is not such a topology; names the path of what is wrong.
        """
        name, devices, connections, links = description_from_json(obj)
        try:
            return cls(name, devices, connections, links)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """This topology as a JSON object of schema ``dgcl-topology/1``: every field written out, links included."""
        return description_to_json(self.name, self.devices, self.connections, self.links)

    def _check_links(self) -> None:
        """Raise ValueError for the first link that the numeric view cannot be made with."""

        def wrong(count: int) -> bool:
            try:
                topology_arrays(self.devices, self.connections, self.links[:count])
            except KeyError:
                return True
            return False

        try:
            self.arrays()
        except KeyError:
            index = bisect_left(range(1, len(self.links)), True, key=wrong)
            link = self.links[index]
            for names, parts in (((link.src, link.dst), self.devices), (link.route, self.connections)):
                known = [part.name for part in parts]
                for name in names:
                    if name not in known:
                        raise ValueError(
                            f"links[{index}] names {shown(name)}, which this topology lacks{nearest(name, known)}"
                        ) from None
            raise ValueError(
                f"links[{index}] must be the only one of its pair, and lead from a device to another by connections"
                f" that follow each other through switches, none of them twice (got {shown(link.src)} to"
                f" {shown(link.dst)} by {', '.join(link.route)})"
            ) from None


def _tuple_of(values: object, kind: type, field: str) -> tuple[Any, ...]:
    if isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable):
        raise TypeError(f"{field} must be a sequence of {kind.__name__} (got {shown(values)})")
    items = tuple(values)
    for index, item in enumerate(items):
        if not isinstance(item, kind):
            raise TypeError(f"{field}[{index}] must be a {kind.__name__} (got {shown(item)})")
    return items


def _check_unique(names: list[str], field: str) -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            raise ValueError(f"{field}[{index}].name {shown(name)} is taken by {field}[{first[name]}]")
        first[name] = index


def with_model(topology: Topology, model: str) -> Topology:
    """The machine with devices of this model."""
    return replace(topology, devices=tuple(replace(device, model=model) for device in topology.devices))
