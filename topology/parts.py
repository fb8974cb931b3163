"""Defines the parts of a topology: devices, connections and links. Each checks its own fields.

A *device* computes; a *switch* (any other endpoint: PCIe switch, CPU, NIC, NVSwitch) only routes. A *connection* is one
physical wire or bus segment. A *link* is what one rank sees towards another: a route over one or more connections. It
is as slow as its slowest connection, and shares each of them.
Called by users (through `dgcl.topology`), `model`, `arrays`, `json_form`, `topology/presets/wires` and others. Free to
change while values are stored in plain types, and each wrong field is refused by its name
(`tests/topology/test_model.py`, `tests/topology/test_limits.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dgcl.topology.checks import check_choice, check_index, check_name, check_number, shown

_SLOWEST, _FASTEST = 1e-12, 1e12  # GB/s
_LATEST = 1e9  # seconds
_MOST_PLACES = 2**31 - 1  # machines, sockets


@dataclass(frozen=True)
class Device:
    """What a rank computes on, and its place: the machine, and the socket within that machine.

    ``model`` is what it is, of which :data:`dgcl.topology.gpu_models.GPU_MODELS` knows the rates; "": unknown.
    """

    name: str
    machine: int = 0
    socket: int = 0
    model: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.model != "":
            check_name(self.model, "model")
        for field in ("machine", "socket"):
            object.__setattr__(self, field, check_index(getattr(self, field), field, 0, _MOST_PLACES))


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
        for field in ("name", "kind", "a", "b"):
            check_name(getattr(self, field), field)
        # Limits that every machine keeps, so that sums and products of such numbers stay finite.
        for field, least, most in (("bandwidth", _SLOWEST, _FASTEST), ("latency", 0.0, _LATEST)):
            said = f"{field} of {self.name!r}"
            number = check_number(getattr(self, field), said, positive=least > 0)
            if not least <= number <= most:
                raise ValueError(f"{said} must be between {least:g} and {most:g} (got {number:g})")
            object.__setattr__(self, field, number)
        check_choice(self.duplex, "duplex", ("full", "half"))
        if self.a == self.b:
            raise ValueError(f"b must be another endpoint than a (got {shown(self.a)} twice)")


@dataclass(frozen=True, slots=True)
class Link:
    """The route from ``src`` to ``dst``: the names of its connections, in order."""

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
