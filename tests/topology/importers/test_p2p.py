"""p2pBandwidthLatencyTest: its tables, and what they make of a topology."""

import numpy as np
import pytest

from dgcl.topology import Connection, Device, Topology
from dgcl.topology.draft import Imported
from dgcl.topology.importers.p2p_refine import refine_with_p2p
from dgcl.topology.importers.p2p_tables import parse_p2p_rates
from tests.support.importer_cases import TABLES
from tests.support.samples import named


def test_what_is_read():
    for text in (TABLES, TABLES.replace("\n", "\n\n", 11)):
        np.testing.assert_array_equal(parse_p2p_rates(text)[0], [700, 48, 6])


LINES = TABLES.splitlines()


def without(line: int) -> str:
    return "\n".join(LINES[: line - 1] + LINES[line:])


@named(
    "text, message",
    {
        "nothing": ("", "no table"),
        "title garbled": (
            TABLES.replace("P2P=Enabled Ba", "P2P=Enabld Ba"),
            "no table 'Uni.*Enabled Bandwidth'",
        ),
        "cut": ("\n".join(LINES[:14]), "line 14: .*ends after 2 of 3 rows of 'Uni.*=Enabled"),
        "cut at a title": ("\n".join(LINES[:11]), "line 12: expected the columns of .*Enabled"),
        "a row missing": (without(14), "line 14: expected row 1 of .*'2 "),
        "the columns missing": (without(12), "line 12: expected the columns"),
        "short row": (TABLES.replace("  48.00   6.00", "  48.00"), "line 13: .*row 0 .*3 positive"),
        "comma": (TABLES.replace("48.00", "48,00"), "line 13: .*48,00"),
        "negative": (TABLES.replace("48.00", "-48.00"), "line 13: .*positive"),
        "zero": (TABLES.replace("48.00", "0.00"), "line 13: .*positive"),
        "not a number": (TABLES.replace("48.00", "nan"), "line 13: .*nan"),
        "swapped": (TABLES.replace("0      1      2", "0      2      1"), "line 12: .*D 0 1 2"),
        "twice": (TABLES + "\n".join(LINES[10:15]), "the table 'Uni.*' is there a second time"),
    },
)
def test_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_p2p_rates(text)


def refined(topology: Topology, measured: list[list[float]]) -> dict[str, float]:
    found = refine_with_p2p(Imported(topology), np.array(measured)).topology
    return {c.name: c.bandwidth for c in found.connections}


# gpu0, gpu1 on a switch, gpu2 beyond the bus.
TREE = Topology(
    "tree",
    tuple(Device(f"gpu{i}") for i in range(3)),
    (
        Connection("g0", "PCIe", "gpu0", "plx", 12.0),
        Connection("g1", "PCIe", "gpu1", "plx", 12.0),
        Connection("g2", "PCIe", "gpu2", "cpu", 12.0),
        Connection("up", "PCIe", "plx", "cpu", 12.0),
        Connection("nic", "PCIe", "nic0", "plx", 12.0),
    ),
)


def test_the_slowest_connection_of_a_route_gets_what_was_measured():
    found = refined(TREE, [[900, 24, 9], [24.2, 900, 9.1], [9, 9, 900]])
    # The same pairs run over g2 and up: one is as slow as that, and which one makes no difference.
    assert found == pytest.approx({"g0": 24.1, "g1": 24.1, "g2": 9.0, "up": 9.0, "nic": 12.0})


def test_shared_connections_are_raised_to_what_passes_them():
    found = refined(TREE, [[900, 24, 24], [24, 900, 24], [24, 24, 900]])
    assert found == {"g0": 24.0, "g1": 24.0, "g2": 24.0, "up": 24.0, "nic": 12.0}


def test_direct_wires_get_the_rate_of_their_pair():
    wires = tuple(
        Connection(f"w{a}{b}", "NV", f"gpu{a}", f"gpu{b}", 20.0) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    topology = Topology("ring", TREE.devices, wires)
    found = refined(topology, [[900, 48, 24], [50, 900, 25], [26, 25, 900]])
    assert found == {"w01": 49.0, "w12": 25.0, "w02": 25.0}


def test_ports_of_a_switch():
    ports = tuple(Connection(f"p{i}", "NV12", f"gpu{i}", "nvswitch", 100.0) for i in range(3))
    topology = Topology("switch", TREE.devices, ports)
    found = refined(topology, [[900, 270, 90], [272, 900, 90], [90, 90, 900]])
    assert found == {"p0": 271.0, "p1": 271.0, "p2": 90.0}


def test_routes_are_derived_from_the_measured_rates():
    wires = (*TREE.connections, Connection("nv", "NV1", "gpu0", "gpu2", 20.0))
    topology = Topology("both", TREE.devices, wires)
    slow = [[900, 12, 5], [12, 900, 12], [5, 12, 900]]
    found = refine_with_p2p(Imported(topology), np.array(slow)).topology
    routes = {(link.src, link.dst): link.route for link in found.links}
    assert routes["gpu0", "gpu2"] == ("g0", "up", "g2")


def test_what_is_told():
    topology = Topology("two", TREE.devices[:2], (Connection("w", "NV1", "gpu0", "gpu1", 25.0),))
    notes = refine_with_p2p(Imported(topology, ("old",)), np.array([[900.0, 20.0], [20.0, 900.0]])).notes
    assert notes[0] == "old"
    assert "within 0% of every pair" in notes[1]


def test_tables_of_other_gpus_are_refused():
    with pytest.raises(ValueError, match="tables are for 2 GPUs, the topology 'tree' has 3"):
        refine_with_p2p(Imported(TREE), np.ones((2, 2)))
