"""Topologies of several machines, drawn by hand, for what is replicated across them."""

from collections.abc import Sequence

from dgcl.topology import Connection, Device, Topology

LAYOUTS = {"two-of-two": [0, 0, 1, 1], "three-unequal": [0, 0, 0, 1, 2, 2], "in-turns": [0, 1, 0, 1]}
"""The machine of each rank."""


def machines(machine_of_rank: Sequence[int], network: float = 0.1, bus: float = 10.0) -> Topology:
    """Devices on a bus for each machine, and a network card for each machine; GB/s."""
    names = sorted(set(machine_of_rank))
    return Topology(
        f"{len(names)} machines",
        tuple(Device(f"d{rank}", machine=machine) for rank, machine in enumerate(machine_of_rank)),
        (
            *(
                Connection(f"bus{rank}", "bus", f"d{rank}", f"hub{machine}", bus)
                for rank, machine in enumerate(machine_of_rank)
            ),
            *(Connection(f"nic{name}", "NIC", f"hub{name}", "switch", network) for name in names),
        ),
    )
