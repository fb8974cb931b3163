"""Builds a topology step by step: devices, wires, and notes on what was assumed.

A second wire between the same two ends gets its kind in its name; a note counts once. `Imported` is the result:
topology, notes, and the network cards whose wire to the network is unknown.
Called by `machine_topology`, `gpu_wires`, `topology/importers/files`, `topology/importers/topo_matrix_model`,
`dgcl/ranks/machines` and others. Free to change while ends of unknown wiring meet in a switch, and each assumption is a
note (`tests/topology/detect/test_gpus.py`, `tests/topology/importers/test_topo_matrix_model.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device


@dataclass(frozen=True)
class Imported:
    """A topology that was imported or detected.

    Attributes:
        topology: The machine.
        notes: What the source did not say, and what was assumed or left out because of that; one sentence each.
        cards: Endpoints of network cards whose wire to the network is unknown.
    """

    topology: Topology
    notes: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


class Draft:
    """Collects devices, connections and notes."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._connections: dict[str, Connection] = {}
        self._notes: dict[str, None] = {}
        self._cards: dict[str, None] = {}

    def device(self, name: str, machine: int, socket: int, model: str = "") -> None:
        """Add the device of the next rank."""
        self._devices.append(Device(name, machine, socket, model))

    def wire(self, a: str, b: str, kind: str, bandwidth: float) -> None:
        """Join two endpoints. A second wire between them is distinguished by its kind."""
        name = f"{a}-{b}"
        if name in self._connections:
            name = f"{name}.{kind}"
        if name in self._connections:
            raise ValueError(f"{a!r} and {b!r} are joined by two wires of kind {kind!r}")
        self._connections[name] = Connection(name, kind, a, b, bandwidth)

    def note(self, text: str) -> None:
        """Add a note; the same note counts once."""
        self._notes[text] = None

    def card(self, name: str) -> None:
        """Remember a network card that got no wire to the network."""
        self._cards[name] = None

    def star(self, ends: Iterable[str], centre: str, kind: str, bandwidth: float) -> None:
        """Join endpoints whose wiring is unknown: two by a wire, more through a switch called ``centre``.

        One port for each endpoint is the cautious assumption: traffic to several others shares it.
        """
        ends = list(ends)
        if len(ends) == 2:
            self.wire(ends[0], ends[1], kind, bandwidth)
        elif len(ends) > 2:
            for end in ends:
                self.wire(end, centre, kind, bandwidth)
            self.note(
                f"how {', '.join(ends)} are joined is not told: a switch between them, {centre}, was assumed"
            )

    def finish(self, name: str) -> Imported:
        """The topology, links derived."""
        topology = Topology(name, tuple(self._devices), tuple(self._connections.values()))
        apart = len(self._devices) * (len(self._devices) - 1) - len(topology.links)
        if apart:
            self.note(f"{apart} ordered pairs of devices have no link: nothing in the source joins them")
        return Imported(topology, tuple(self._notes), tuple(self._cards))
