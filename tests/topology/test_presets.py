"""The presets against what the machines look like: public matrices and dumps, published rates."""

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from dgcl.topology import preset
from dgcl.topology.importers import import_topology
from dgcl.topology.presets import NODES, uniform
from tests.support.importer_cases import SHARED, needs_data, routes
from tests.support.importer_oracle import links_of
from tests.topology.support_presets import bottleneck

GPU_MACHINES = [*NODES, *(f"{name}x2" for name in NODES if name != "gb200_nvl72")]


@pytest.mark.parametrize("name", GPU_MACHINES)
def test_every_pair_has_a_link_and_every_connection_is_used(name: str):
    topology = preset(name)
    assert len(topology.links) == topology.num_devices * (topology.num_devices - 1)
    assert topology.name == name
    used = {step for link in topology.links for step in link.route}
    assert used == {wire.name for wire in topology.connections}


@needs_data
def test_dgx1_wiring_is_that_of_the_nccl_topology():
    theirs, ours = import_topology(SHARED / "constructed" / "dgx1v_8xV100.xml").topology, preset("dgx1")
    assert links_of(ours, "NV") == links_of(theirs, "NV")
    assert [device.socket for device in ours.devices] == [device.socket for device in theirs.devices]
    wires = [
        {(c.a, c.b) for c in each.connections if c.a.startswith("gpu") and c.kind == "PCIe"}
        for each in (ours, theirs)
    ]
    behind = [[dict(each)[f"gpu{g}"] for g in range(8)] for each in wires]
    assert [behind[0].index(switch) for switch in behind[0]] == [
        behind[1].index(switch) for switch in behind[1]
    ]


@needs_data
def test_pcie8_routes_match_nvidia_smi():
    """PIX: one PCIe switch. PHB: two PCIe switches of a socket. SYS: across the sockets."""
    matrix = json.loads((SHARED / "machines.json").read_text())["node_8gpu_pix_phb_sys"]["gpu_links"]
    words = {2: "PIX", 4: "PHB", 5: "SYS"}
    links = {(link.src, link.dst): words[len(link.route)] for link in preset("pcie8").links}
    ours = [["X" if s == d else links[f"gpu{s}", f"gpu{d}"] for d in range(8)] for s in range(8)]
    assert ours == matrix


@needs_data
@pytest.mark.parametrize(
    "name, table",
    [
        ("dgx_a100", "node_8xA100_nvswitch"),
        ("azure_ndv4", "node_8xA100_nvswitch"),
        ("hgx_h100", "node_8xH100_nvswitch"),
        ("aws_p5", "node_8xH100_nvswitch"),
        ("gb200_tray", "nvl4_4xGB200"),
        ("hgx_b300", "nvl4_4xGB200"),
        ("aws_p5en", "node_8xH100_nvswitch"),
        ("gb200_nvl72", "nvl4_4xGB200"),
    ],
)
def test_nvswitch_ports_are_as_fast_as_measured(name: str, table: str):
    rows = (SHARED / "p2p" / f"{table}.txt").read_text().splitlines()[2:]
    measured = [
        float(value)
        for rank, row in enumerate(rows)
        for value in row.split()[1:]
        if row.split()[rank + 1] != value
    ]
    mean = sum(measured) / len(measured)
    assert bottleneck(preset(name), 0, 3) == pytest.approx(mean, rel=0.005)


def test_machines_meet_at_one_nic_each():
    topology = preset("dgx1x2")
    for link in topology.links:
        crosses = link.src[:2] != link.dst[:2]
        assert ({"m0.nic0-ib", "m1.nic0-ib"} <= set(link.route)) == crosses
    assert bottleneck(topology, 0, 8) == 6.37
    alone = links_of(preset("dgx1"), "NV")
    assert links_of(topology, "NV") == {
        frozenset(f"m{m}.{gpu}" for gpu in pair): count for pair, count in alone.items() for m in range(2)
    }


def test_summit_routes():
    """50 GB/s anywhere in a node: NVLink within a socket; by way of both CPUs and the X-bus across."""
    node = preset("summit")
    assert {bottleneck(node, s, d) for s in range(6) for d in range(6) if s != d} == {50.0}
    assert routes(node)["gpu0", "gpu2"] == ("gpu0-gpu2",)
    assert routes(node)["gpu1", "gpu5"] == ("gpu1-cpu0", "cpu0-cpu1", "gpu5-cpu1")
    assert routes(preset("summitx2"))["m0.gpu0", "m1.gpu5"] == (
        "m0.gpu0-m0.cpu0",
        "m0.nic0-m0.cpu0",
        "m0.nic0-ib",
        "m1.nic1-ib",
        "m1.nic1-m1.cpu1",
        "m1.gpu5-m1.cpu1",
    )
    assert bottleneck(preset("summitx2"), 0, 11) == 11.5


@pytest.mark.parametrize("size", [1, 2, 7])
def test_uniform_is_one_port_a_device(size: int):
    topology = uniform(size, bandwidth=3.0, latency=1e-6)
    assert len(topology.connections) == size
    assert len(topology.links) == size * (size - 1)
    assert set(topology.arrays().link_latency.tolist()) <= {2e-6}
    assert {bottleneck(topology, s, d) for s in range(size) for d in range(size) if s != d} <= {3.0}


@needs_data
@pytest.mark.parametrize(
    "name, file",
    [
        ("aws_p4d", "aws_p4d_8xA100"),
        ("azure_ndv4", "azure_ndv4_8xA100"),
        ("azure_ndv5", "azure_ndv5_8xH100"),
    ],
)
def test_cloud_machines_have_the_sockets_and_nics_of_the_providers_files(name: str, file: str):
    path = SHARED / "nccl_xml" / f"{file}.xml"
    theirs = import_topology(path).topology
    assert [d.socket for d in preset(name).devices] == [d.socket for d in theirs.devices]
    classes = [pci.get("class", "") for pci in ElementTree.parse(path).getroot().iter("pci")]
    nics = [w for w in preset(f"{name}x2").connections if w.b in ("ib", "efa") and w.a.startswith("m0.")]
    assert len(nics) == sum(text.startswith("0x02") for text in classes)


def test_mi250x_dies():
    """Eight links a die: four to its twin, and by OLCF's guide one or two to dies of other packages."""
    topology = preset("mi250x")
    counts = links_of(topology, "XGMI")
    assert {counts[frozenset((f"gpu{2 * p}", f"gpu{2 * p + 1}"))] for p in range(4)} == {4}
    totals = Counter[str]()
    for pair, count in counts.items():
        totals.update(dict.fromkeys(pair, count))
    assert set(totals.values()) <= {6, 7}
    assert (bottleneck(topology, 0, 1), bottleneck(topology, 0, 6), bottleneck(topology, 0, 2)) == (
        200,
        100,
        50,
    )
    assert bottleneck(topology, 0, 7) == 36  # by the processor: a route passes no other die


@pytest.mark.parametrize("name", ["mi250xx2", "frontierx2"])
def test_frontier_dies_share_the_nic_of_their_package(name: str):
    topology = preset(name)
    found = routes(topology)
    for die in range(8):
        package, nic = f"m0.package{die // 2}", f"m0.nic{die // 2}"
        route = found[f"m0.gpu{die}", "m1.gpu5"]
        assert route[:2] == (f"m0.gpu{die}-{package}", f"{nic}-{package}")
        assert route[3:] == ("m1.nic2-slingshot", "m1.nic2-m1.package2", "m1.gpu5-m1.package2")
    assert bottleneck(topology, 0, 8) == 25.0
    assert bottleneck(topology, 0, 1) == 200.0  # as alone


@pytest.mark.parametrize(
    "name, size, kind, links",
    [
        ("mi300x", 8, "XGMI", 7),
        ("azure_nd_mi300x", 8, "XGMI", 7),
        ("gb200_nvl4", 4, "NV", 18),
        ("gh200_quad", 4, "NV", 18),
    ],
)
def test_every_two_gpus_of_a_mesh_are_wired(name: str, size: int, kind: str, links: int):
    """As many links as a GPU has (seven of an MI300X, eighteen of Hopper and Blackwell), the same to each other."""
    counts = links_of(preset(name), kind)
    assert {*counts} == {frozenset((f"gpu{a}", f"gpu{b}")) for a in range(size) for b in range(a)}
    assert {count * (size - 1) for count in counts.values()} == {links}
    assert not preset(name).switches


@needs_data
def test_mi300x_is_wired_as_rccl_describes_it():
    theirs = import_topology(SHARED / "nccl_xml" / "amd_topo_8p_940.xml").topology
    ours = preset("mi300x")
    assert links_of(ours, "XGMI") == links_of(theirs, "XGMI")
    assert {c.bandwidth for c in theirs.connections if c.kind.startswith("XGMI")} == {bottleneck(ours, 0, 1)}


def test_dgx1_as_shipped_has_a_card_at_each_switch():
    topology = preset("dgx1_edrx2")
    found = routes(topology)
    for a, b in ((0, 7), (3, 2), (6, 5)):
        assert f"m0.nic{a // 2}-ib" in found[f"m0.gpu{a}", f"m1.gpu{b}"]
        assert f"m1.nic{b // 2}-ib" in found[f"m0.gpu{a}", f"m1.gpu{b}"]
    assert bottleneck(topology, 0, 8) == 11.13  # of the card's PCIe
    assert preset("dgx1_edr").connections == preset("dgx1").connections


@pytest.mark.parametrize("name", ["pcie4_4090", "pcie8_4090", "pcie4_5090", "pcie8_5090", "aws_g6"])
@pytest.mark.parametrize("several", ["", "x2"])
def test_without_peer_access_every_row_goes_through_memory(name: str, several: str):
    topology = preset(name + several)
    home = {c.a: c.b for c in topology.connections if c.kind == "PCIe"}
    for link in topology.links:
        cpu = home[link.src]
        assert link.route[1:3] == (f"{cpu}.store", f"{cpu}.load")


@pytest.mark.parametrize("name", [name for name in NODES if name.startswith("pcie") or name.endswith("pair")])
def test_boxes_meet_at_one_card_each_and_stay_as_they_are_inside(name: str):
    one, two = preset(name), preset(f"{name}x2")
    cards = [c for c in two.connections if c.b == "ib"]
    assert [c.a for c in cards] == ["m0.nic0", "m1.nic0"]
    inside = {(link.src, link.dst): len(link.route) for link in one.links}
    for link in two.links:
        (src, a), (dst, b) = link.src.split("."), link.dst.split(".")
        if src == dst:
            assert len(link.route) == inside[a, b]
        else:
            assert {c.name for c in cards} <= set(link.route)


@needs_data
def test_pcie4_boxes_are_as_fast_as_measured():
    measured = import_topology(
        SHARED / "topo_m" / "asus_esc8000a_4xRTX6000Ada.txt",
        p2p=SHARED / "p2p" / "asus_esc8000a_4xRTX6000Ada.txt",
    ).topology
    ours = preset("pcie4_l40s")
    rates = [[bottleneck(t, s, d) for s in range(4) for d in range(4) if s != d] for t in (measured, ours)]
    assert rates[1] == pytest.approx(rates[0], rel=0.002)
    assert [len(link.route) for link in ours.links] == [len(link.route) for link in measured.links]
