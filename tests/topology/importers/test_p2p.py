"""p2pBandwidthLatencyTest: its tables, and what they make of a topology."""

import numpy as np
import pytest

from dgcl.topology import Connection, Device, Topology
from dgcl.topology.draft import Imported
from dgcl.topology.importers.p2p_refine import refine_with_p2p
from dgcl.topology.importers.p2p_tables import P2pTables, parse_p2p_tables
from tests.samples import named
from tests.topology.importers.cases import TABLES

WRITES = "Unidirectional P2P=Enabled Bandwidth"


def test_what_is_read():
    tables = parse_p2p_tables(TABLES)
    assert tables.num_gpus == 3
    assert set(tables.tables) == {
        "P2P Connectivity",
        "Unidirectional P2P=Disabled Bandwidth",
        WRITES,
        "P2P=Enabled Latency GPU",
        "P2P=Enabled Latency CPU",
    }
    np.testing.assert_array_equal(tables.bandwidth[0], [700, 48, 6])
    assert tables.connected is not None
    assert tables.connected[2].tolist() == [0, 0, 1]


def test_one_table_is_enough_and_the_one_without_peer_access_serves_too():
    alone = TABLES.split("Unidirectional")[1].join(["Unidirectional", ""])
    assert parse_p2p_tables(alone).bandwidth[0, 1] == 9.1


def test_what_the_tool_prints_around_the_tables():
    head = (
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
        "Device: 0, Tesla V100-SXM2-16GB, pciBusID: 6, pciDeviceID: 0, pciDomainID:0\n"
        "Device=0 CAN Access Peer Device=1\nDevice=0 CANNOT Access Peer Device=2\n\n"
        "***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy "
        "procedure.\nSo you can see lesser Bandwidth (GB/s) and unstable Latency (us) in those cases.\n\n"
    )
    assert parse_p2p_tables(head + TABLES).num_gpus == 3


LINES = TABLES.splitlines()


def without(line: int) -> str:
    return "\n".join(LINES[: line - 1] + LINES[line:])


@named(
    "text, message",
    {
        "nothing": ("", "no table"),
        "cut": ("\n".join(LINES[:14]), "line 14: .*ends after 2 of 3 rows of 'Uni.*=Enabled.*line 12"),
        "cut at a title": ("\n".join(LINES[:6]), "line 6: the table that the title .*Disabled.* missing"),
        "a row missing": (without(9), "line 9: expected row 1 of .*'2 "),
        "the columns missing": (without(7), "line 7: expected a table"),
        "a title missing": (without(6), "line 6: a table of 'P2P.*|line 6"),
        "short row": (TABLES.replace("  48.00   6.00", "  48.00"), "line 13: row 0 .* has 2 numbers for 3"),
        "comma": (TABLES.replace("48.00", "48,00"), "line 13: row 0 .*'48,00'"),
        "negative": (TABLES.replace("48.00", "-48.00"), "line 13: .*positive"),
        "zero": (TABLES.replace("48.00", "0.00"), "line 13: .*positive"),
        "not a number": (TABLES.replace("48.00", "nan"), "line 13: .*'nan'"),
        "neither": (TABLES.replace("1     1     0", "1     2     0", 1), "line 3: .*must hold 0 or 1"),
        "swapped": (
            TABLES.replace("D\\D     0      1      2", "D\\D     0      2      1", 1),
            "line 7: the columns must be 0 1 2",
        ),
        "twice": (TABLES + "\n".join(LINES[10:15]), "the table 'Uni.*' is there a second time"),
        "sizes": (
            TABLES + "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D  0\n  0 1.0\n",
            "a table of 1 GPUs, where others have 3",
        ),
        "corner": (
            TABLES.replace("   GPU     0", "   D\\D     0"),
            "a table of D.D below the title 'P2P=Enabled Latency'",
        ),
        "prose": ("bonjour\n" + TABLES, "line 1: expected a table"),
    },
)
def test_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_p2p_tables(text)


def tables(rates: list[list[float]], **more: list[list[float]]) -> P2pTables:
    return P2pTables(len(rates), {WRITES: np.array(rates), **{k: np.array(v) for k, v in more.items()}})


def refined(topology: Topology, measured: P2pTables) -> dict[str, float]:
    found = refine_with_p2p(Imported(topology), measured).topology
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
    found = refined(TREE, tables([[900, 24, 9], [24.2, 900, 9.1], [9, 9, 900]]))
    # The same pairs run over g2 and up: one is as slow as that, and which one makes no difference.
    assert found == pytest.approx({"g0": 24.1, "g1": 24.1, "g2": 9.0, "up": 9.0, "nic": 12.0})


def test_shared_connections_are_raised_to_what_passes_them():
    found = refined(TREE, tables([[900, 24, 24], [24, 900, 24], [24, 24, 900]]))
    assert found == {"g0": 24.0, "g1": 24.0, "g2": 24.0, "up": 24.0, "nic": 12.0}


def test_direct_wires_get_the_rate_of_their_pair():
    wires = tuple(
        Connection(f"w{a}{b}", "NV", f"gpu{a}", f"gpu{b}", 20.0) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    topology = Topology("ring", TREE.devices, wires)
    found = refined(topology, tables([[900, 48, 24], [50, 900, 25], [26, 25, 900]]))
    assert found == {"w01": 49.0, "w12": 25.0, "w02": 25.0}


def test_ports_of_a_switch():
    ports = tuple(Connection(f"p{i}", "NV12", f"gpu{i}", "nvswitch", 100.0) for i in range(3))
    topology = Topology("switch", TREE.devices, ports)
    found = refined(topology, tables([[900, 270, 90], [272, 900, 90], [90, 90, 900]]))
    assert found == {"p0": 271.0, "p1": 271.0, "p2": 90.0}


def test_routes_are_derived_from_the_measured_rates():
    wires = (*TREE.connections, Connection("nv", "NV1", "gpu0", "gpu2", 20.0))
    topology = Topology("both", TREE.devices, wires)
    slow = tables([[900, 12, 5], [12, 900, 12], [5, 12, 900]])
    found = refine_with_p2p(Imported(topology), slow).topology
    routes = {(link.src, link.dst): link.route for link in found.links}
    assert routes["gpu0", "gpu2"] == ("g0", "up", "g2")


def test_what_is_told():
    one, both = [[900.0, 20.0], [20.0, 900.0]], [[900.0, 22.0], [22.0, 900.0]]
    measured = tables(one, **{"Bidirectional P2P=Enabled Bandwidth": both})
    topology = Topology("two", TREE.devices[:2], (Connection("w", "NV1", "gpu0", "gpu1", 25.0),))
    notes = refine_with_p2p(Imported(topology, ("old",)), measured).notes
    assert notes[0] == "old"
    assert "within 0% of every pair" in notes[1]
    assert "1 pairs do not reach 1.5 times" in notes[2]


def test_tables_of_other_gpus_are_refused():
    with pytest.raises(ValueError, match="tables are for 2 GPUs, the topology 'tree' has 3"):
        refine_with_p2p(Imported(TREE), tables([[1, 1], [1, 1]]))


@named("allowed", {"none": [[1, 0], [0, 1]], "up": [[1, 1], [0, 1]], "down": [[1, 0], [1, 1]]})
def test_a_wire_without_peer_access_both_ways_is_refused(allowed: list[list[float]]):
    topology = Topology("two", TREE.devices[:2], (Connection("w", "NV1", "gpu0", "gpu1", 25.0),))
    measured = tables([[900, 5], [5, 900]], **{"P2P Connectivity": allowed})
    with pytest.raises(ValueError, match="denies peer access between GPUs 0 and 1, which 'w'"):
        refine_with_p2p(Imported(topology), measured)


@pytest.mark.parametrize("denied, line", [((0, 1), 3), ((1, 0), 4)])
def test_denied_access_names_its_line(denied: tuple[int, int], line: int):
    topology = Topology("two", TREE.devices[:2], (Connection("w", "NV1", "gpu0", "gpu1", 25.0),))
    cells = [["0" if (row, column) == denied else "1" for column in range(2)] for row in range(2)]
    text = "P2P Connectivity Matrix\n D\\D 0 1\n" + "".join(
        f" {row} {' '.join(cells[row])}\n" for row in range(2)
    )
    with pytest.raises(ValueError, match=rf"^line {line}: the connectivity matrix denies"):
        refine_with_p2p(Imported(topology), parse_p2p_tables(text))
