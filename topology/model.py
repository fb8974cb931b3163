"""What the hardware is: devices, the connections between them and their switches, the links that ranks see.

    >>> from dgcl.topology import Connection, Device, Topology
    >>> wire = Connection("nv", "NV2", "gpu0", "gpu1", bandwidth=48.35)
    >>> pair = Topology("pair", (Device("gpu0"), Device("gpu1")), (wire,))
    >>> pair.links
    (Link(src='gpu0', dst='gpu1', route=('nv',)), Link(src='gpu1', dst='gpu0', route=('nv',)))

Vocabulary (one word for one thing): a *device* computes, a *switch* (any other endpoint: PCIe switch, CPU,
NIC, NVSwitch) only routes. A *connection* is one physical wire or bus segment. A *link* is what one rank
sees towards another: a route over one or more connections, as slow as its slowest connection, sharing each
of them. The cost model that they serve is that of section 5.1 of the DGCL paper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from dgcl.topology.arrays import TopologyArrays, topology_arrays
from dgcl.topology.checks import (
    check_between,
    check_index,
    check_name,
    check_num_devices,
    check_number,
    nearest,
    shown,
)
from dgcl.topology.routes import derive_routes

_SLOWEST, _FASTEST = 1e-12, 1e12  # GB/s
_LATEST = 1e9  # seconds
_MOST_PLACES = 2**31 - 1  # machines, sockets


@dataclass(frozen=True)
class Device:
    """What a rank computes on, and where it sits: the machine, and the socket within that machine."""

    name: str
    machine: int = 0
    socket: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        for field in ("machine", "socket"):
            try:
                place = check_index(getattr(self, field), field)
                if place > _MOST_PLACES:
                    raise ValueError(f"{field} must be at most {_MOST_PLACES} (got {shown(place)})")
                object.__setattr__(self, field, place)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error} in device {self.name!r}") from None


@dataclass(frozen=True)
class Connection:
    """One physical wire or bus segment between two endpoints (devices or switches).

    ``kind`` is free text for people (NV2, PCIe, QPI, IB ...). ``bandwidth`` is in GB/s (1e9 bytes per
    second): in each direction separately if ``duplex`` is ``"full"``, for both directions together if it is
    ``"half"``. ``latency`` is in seconds per message. Two connections between the same endpoints are two
    parallel wires.
    """

    name: str
    kind: str
    a: str
    b: str
    bandwidth: float
    latency: float = 0.0
    duplex: str = "full"

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        try:
            for field in ("kind", "a", "b"):
                check_name(getattr(self, field), field)
            bandwidth = check_number(self.bandwidth, "bandwidth", positive=True)
            object.__setattr__(self, "bandwidth", check_between(bandwidth, "bandwidth", _SLOWEST, _FASTEST))
            latency = check_number(self.latency, "latency", positive=False)
            object.__setattr__(self, "latency", check_between(latency, "latency", 0, _LATEST))
            if self.duplex not in ("full", "half"):
                raise ValueError(f"duplex must be 'full' or 'half' (got {shown(self.duplex)})")
            if self.a == self.b:
                raise ValueError(f"b must be another endpoint than a (got {self.a!r} twice)")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} in connection {self.name!r}") from None


@dataclass(frozen=True, slots=True)
class Link:
    """What ``src`` uses to reach ``dst``: the names of the connections, in order from ``src`` to ``dst``."""

    src: str
    dst: str
    route: tuple[str, ...]

    def __post_init__(self) -> None:
        for field, end in (("src", self.src), ("dst", self.dst)):
            if not isinstance(end, str):
                raise TypeError(f"{field} must be the name of a device (got {shown(end)})")
        if isinstance(self.route, str) or not isinstance(self.route, Iterable):
            raise TypeError(f"route must be a sequence of connection names (got {shown(self.route)})")
        object.__setattr__(self, "route", tuple(self.route))
        for step, name in enumerate(self.route):
            if not isinstance(name, str):
                raise TypeError(f"route[{step}] must be the name of a connection (got {shown(name)})")


@dataclass(frozen=True)
class Topology:
    """Devices, the connections that join them, and the link of each ordered pair of devices.

    Rank r runs on ``devices[r]``. ``links`` may be left out (or None): every ordered pair that connections
    join then gets one link by the widest route (``dgcl.topology.routes``). A given list is taken as it is:
    a pair that it leaves out has no link.

    Raises ValueError or TypeError, naming the item by its position (``connections[3]``), for duplicate
    names, links of unknown devices, routes that do not lead from ``src`` to ``dst`` through switches only or
    that use a connection twice, and more than one link for an ordered pair.
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
        check_num_devices(len(self.devices), f"topology {self.name!r}")
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
        return topology_arrays(self)

    def restrict(self, num_devices: int) -> Topology:
        """The first ``num_devices`` devices, without the others and the connections that touch them.

        Links stay as they are: a route passes through no device, so none of them loses a connection.
        """
        if not 1 <= check_index(num_devices, "num_devices") <= self.num_devices:
            raise ValueError(
                f"num_devices must be 1 to {self.num_devices}, the size of {self.name!r} (got {num_devices})"
            )
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
        """The topology of a JSON object of schema ``dgcl-topology/1``. Raises ValueError with the path of
        what is wrong."""
        from dgcl.topology.json_io import topology_from_json

        return topology_from_json(obj)

    def to_json(self) -> dict[str, Any]:
        """This topology as a JSON object of schema ``dgcl-topology/1``, with its links."""
        from dgcl.topology.json_io import topology_to_json

        return topology_to_json(self)

    def _check_links(self) -> None:
        devices = {device.name for device in self.devices}
        connections = {connection.name: connection for connection in self.connections}
        first: dict[tuple[str, str], int] = {}
        for index, link in enumerate(self.links):
            for field, end in (("src", link.src), ("dst", link.dst)):
                if end not in devices:
                    hint = nearest(str(end), devices)
                    raise ValueError(f"links[{index}].{field} must be a device (got {shown(end)}){hint}")
            if link.src == link.dst:
                raise ValueError(
                    f"links[{index}].dst must be another device than src (got {link.src!r} twice)"
                )
            if (link.src, link.dst) in first:
                raise ValueError(
                    f"links[{index}] is a second link from {link.src!r} to {link.dst!r} "
                    f"(the first is links[{first[link.src, link.dst]}]); a pair has at most one"
                )
            first[link.src, link.dst] = index
            _check_route(link, devices, connections, f"links[{index}].route")


def _check_route(link: Link, devices: set[str], connections: dict[str, Connection], where: str) -> None:
    at = link.src
    used: set[str] = set()
    for step, name in enumerate(link.route):
        connection = connections.get(name)
        if connection is None:
            raise ValueError(
                f"{where}[{step}] must be a connection (got {shown(name)}){nearest(str(name), connections)}"
            )
        if name in used:
            raise ValueError(f"{where}[{step}] uses connection {name!r} a second time")
        used.add(name)
        if step > 0 and at in devices:
            raise ValueError(f"{where} from {link.src!r} to {link.dst!r} passes through device {at!r}")
        if at not in (connection.a, connection.b):
            raise ValueError(
                f"{where}[{step}] is connection {name!r} between {connection.a!r} and {connection.b!r}, "
                f"which does not start at {at!r}, where the route has come"
            )
        at = connection.b if at == connection.a else connection.a
    if at != link.dst:
        raise ValueError(f"{where} must lead from {link.src!r} to {link.dst!r} (it ends at {at!r})")


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
            raise ValueError(f"{field}[{index}].name {name!r} is taken by {field}[{first[name]}]")
        first[name] = index
