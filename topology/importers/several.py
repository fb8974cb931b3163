"""Joins imported machines into one topology, and gives speeds to network cards whose files have none.

``nvidia-smi topo -m`` and the files that clouds ship name cards without speeds. Ranks go through the machines in their
order; the network between them is assumed to be one switch that never blocks, with a note.
Called by `files`. Free to change while only cards without a speed get the given one, and ranks keep this order
(`tests/dgcl/cli/test_topo_import.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

from dgcl.topology.checks import check_number
from dgcl.topology.combine import PORT, join_machines
from dgcl.topology.draft import Imported
from dgcl.topology.parts import Connection

NIC_KIND = "net"


def with_card_speed(imported: Imported, bandwidth: float) -> Imported:
    """The machine with a wire to the network at each card that has none, ``bandwidth`` GB/s each way.

    ``nvidia-smi topo -m`` and the files that clouds ship name the cards and not their speeds.

    Raises:
        ValueError: Every card has its wire already, or there are none.
    """
    check_number(bandwidth, "nic", positive=True)
    topology = imported.topology
    if not imported.cards:
        raise ValueError("nic must not be given: the file names no network card without a speed")
    wires = tuple(
        Connection(f"{card}-{card}{PORT}", NIC_KIND, card, card + PORT, bandwidth) for card in imported.cards
    )
    whole = replace(topology, connections=(*topology.connections, *wires))
    note = f"{', '.join(imported.cards)}: {bandwidth:g} GB/s to the network, as was said"
    return Imported(whole, (*imported.notes, note))


def join_imported(machines: Sequence[Imported], name: str) -> Imported:
    """Several machines as one topology, ranks in the order of the machines, then of their devices.

    Ports of a kind meet at one switch that never blocks.

    Raises:
        ValueError: A machine has no port: nothing would join it to the others.
    """
    for number, machine in enumerate(machines):
        if not any(c.b.endswith(PORT) for c in machine.topology.connections):
            way_out = (
                "say the speed of its network cards (nic)" if machine.cards else "it names no network card"
            )
            raise ValueError(
                f"machine {number} ({machine.topology.name}) tells of no network that joins it: {way_out}"
            )
    order = [(m, d) for m, machine in enumerate(machines) for d in range(machine.topology.num_devices)]
    whole = join_machines([machine.topology for machine in machines], order, name=name)
    notes = [f"machine {m}: {note}" for m, machine in enumerate(machines) for note in machine.notes]
    notes.append("how the network is built is not told: a switch that never blocks was assumed")
    apart = len(order) * (len(order) - 1) - len(whole.links)
    if apart:
        notes.append(f"{apart} ordered pairs of devices have no link: nothing in the sources joins them")
    return Imported(whole, tuple(notes))
