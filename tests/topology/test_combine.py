"""Clusters and machines of different kinds: what is joined how, and how fast a pair is."""

import pytest

from dgcl.topology import Connection, Device, Link, Topology
from dgcl.topology.combine import Nic, cluster, join_machines
from dgcl.topology.importers import import_topology
from tests.support.importer_cases import XML, routes
from tests.topology.support_presets import bottleneck

NODE = Topology(
    "node",
    (Device("gpu0"), Device("gpu1", socket=1)),
    (
        Connection("gpu0-plx", "PCIe", "gpu0", "plx", 12.0),
        Connection("gpu1-plx", "PCIe", "gpu1", "plx", 12.0),
        Connection("bridge", "NV2", "gpu0", "gpu1", 48.0),
    ),
)


def test_a_shared_nic_behind_a_switch():
    two = cluster(NODE, 2, nics=[Nic("plx", 10.0, 12.0)])
    assert two.name == "nodex2"
    assert [(d.name, d.machine, d.socket) for d in two.devices] == [
        ("m0.gpu0", 0, 0),
        ("m0.gpu1", 0, 1),
        ("m1.gpu0", 1, 0),
        ("m1.gpu1", 1, 1),
    ]
    assert routes(two)["m0.gpu0", "m1.gpu1"] == (
        "m0.gpu0-m0.plx",
        "m0.nic0-m0.plx",
        "m0.nic0-ib",
        "m1.nic0-ib",
        "m1.nic0-m1.plx",
        "m1.gpu1-m1.plx",
    )
    assert (bottleneck(two, 0, 1), bottleneck(two, 0, 2)) == (48.0, 10.0)
    assert routes(two)["m1.gpu0", "m1.gpu1"] == ("m1.bridge",)


def test_a_nic_for_each_gpu_on_one_fabric():
    three = cluster(NODE, 3, nics=[Nic("gpu0", 25.0), Nic("gpu1", 25.0)])
    assert routes(three)["m0.gpu0", "m2.gpu1"] == (
        "m0.nic0-m0.gpu0",
        "m0.nic0-ib",
        "m2.nic1-ib",
        "m2.nic1-m2.gpu1",
    )
    assert len(three.links) == 30


def test_rails_that_do_not_meet_join_like_gpus_only():
    two = cluster(NODE, 2, nics=[Nic("gpu0", 25.0), Nic("gpu1", 25.0)], rails=True)
    found = routes(two)
    assert found["m0.gpu1", "m1.gpu1"] == (
        "m0.nic1-m0.gpu1",
        "m0.nic1-rail1",
        "m1.nic1-rail1",
        "m1.nic1-m1.gpu1",
    )
    assert ("m0.gpu0", "m1.gpu1") not in found  # it would have to pass through a GPU


def test_rails_with_a_spine():
    two = cluster(NODE, 2, nics=[Nic("gpu0", 25.0), Nic("gpu1", 25.0)], rails=True, spine=50.0)
    assert routes(two)["m0.gpu0", "m1.gpu1"] == (
        "m0.nic0-m0.gpu0",
        "m0.nic0-rail0",
        "rail0-spine",
        "rail1-spine",
        "m1.nic1-rail1",
        "m1.nic1-m1.gpu1",
    )
    assert len(two.links) == 12


def test_links_of_a_node_stay_as_they_are():
    slow = Topology("slow", NODE.devices, NODE.connections, (Link("gpu0", "gpu1", ("gpu0-plx", "gpu1-plx")),))
    two = cluster(slow, 2, nics=[Nic("plx", 100.0)])
    assert routes(two)["m1.gpu0", "m1.gpu1"] == ("m1.gpu0-m1.plx", "m1.gpu1-m1.plx")
    assert ("m0.gpu1", "m0.gpu0") not in routes(two)
    assert ("m0.gpu1", "m1.gpu0") in routes(two)


def test_nodes_of_several_machines():
    rack = Topology(
        "rack",
        (Device("a", machine=0), Device("b", machine=1)),
        (Connection("a-s", "NV18", "a", "s", 400.0), Connection("b-s", "NV18", "b", "s", 400.0)),
    )
    two = cluster(rack, 2, nics=[Nic("a", 50.0), Nic("b", 50.0)], name="racks")
    assert (two.name, [device.machine for device in two.devices]) == ("racks", [0, 1, 2, 3])


def test_ports_of_an_imported_machine(tmp_path):
    path = tmp_path / "node.xml"
    path.write_text(XML)
    two = cluster(import_topology(path).topology, 2)
    assert bottleneck(two, 0, 3) == 12.0  # PCIe; the wire has 12.5
    assert "m1.mlx5_0-net" in routes(two)["m0.gpu0", "m1.gpu2"]
    assert not any(".port" in end for c in two.connections for end in (c.a, c.b))


def test_one_machine_is_the_node():
    assert cluster(NODE, 1) is NODE
    assert cluster(NODE, 1, name="alone").name == "alone"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_machines": 0}, "num_machines must be an integer >= 1"),
        ({"num_machines": 2}, "nics must be given, because 'node' has no network ports"),
        ({"num_machines": 2, "nics": []}, "nics must name at least one card"),
        ({"num_machines": 2, "nics": [Nic("plx7", 1.0)]}, r"nics\[0\].at must be a device or switch.*'plx7'"),
        ({"num_machines": 2, "nics": [Nic("plx", 1.0)], "spine": 0.0}, "spine must be a positive number"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        cluster(NODE, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["bandwidth", "host_bandwidth"])
def test_wrong_nics(field: str):
    with pytest.raises(ValueError, match=f"{field} must be a positive number"):
        Nic("plx", **{"bandwidth": 1.0, field: -1.0})


def test_a_machine_with_a_nic0_of_its_own():
    wire = Connection("nic0-plx", "PCIe", "nic0", "plx", 12.0)
    node = Topology("node", NODE.devices, (*NODE.connections, wire))
    with pytest.raises(ValueError, match="nics must not be given: 'node' has an endpoint 'nic0' already"):
        cluster(node, 2, nics=[Nic("plx", 10.0)])


BIG = Topology(
    "big",
    (Device("gpu0"), Device("gpu1", socket=1)),
    (
        Connection("gpu0-sw", "NV18", "gpu0", "sw", 400.0),
        Connection("gpu1-sw", "NV18", "gpu1", "sw", 400.0),
        Connection("nic-gpu0", "PCIe", "nic", "gpu0", 48.0),
        Connection("nic2-gpu1", "PCIe", "nic2", "gpu1", 48.0),
        Connection("nic-nic.port", "IB", "nic", "nic.port", 50.0),
        Connection("nic2-nic2.port", "IB", "nic2", "nic2.port", 50.0),
    ),
)
SMALL = Topology(
    "small",
    (Device("gpu0"),),
    (Connection("nic-gpu0", "PCIe", "nic", "gpu0", 12.0), Connection("p", "IB", "nic", "nic.port", 12.5)),
)


def test_ports_of_a_kind_meet():
    whole = join_machines([BIG, SMALL], [(0, 1), (1, 0), (0, 0)], name="both")
    assert [(d.name, d.machine, d.socket) for d in whole.devices] == [
        ("m0.gpu1", 0, 1),
        ("m1.gpu0", 1, 0),
        ("m0.gpu0", 0, 0),
    ]
    found = routes(whole)
    assert found["m0.gpu1", "m1.gpu0"] == (
        "m0.nic2-m0.gpu1",
        "m0.nic2-ib",
        "m1.nic-ib",
        "m1.nic-m1.gpu0",
    )
    assert found["m0.gpu1", "m0.gpu0"] == ("m0.gpu1-m0.sw", "m0.gpu0-m0.sw")
    assert len(whole.links) == 6


def test_devices_that_no_rank_uses_are_left_out():
    whole = join_machines([BIG, SMALL], [(1, 0), (0, 0)], name="t")
    assert [device.name for device in whole.devices] == ["m1.gpu0", "m0.gpu0"]
    assert not any("m0.gpu1" in (c.a, c.b) for c in whole.connections)
    assert len(whole.links) == 2


def test_switches_that_machines_share():
    shared = [{"sw": "domain"}, {"sw": "domain"}]
    whole = join_machines([BIG, BIG], [(0, 0), (1, 0)], name="t", shared=shared)
    found = routes(whole)
    assert found["m0.gpu0", "m1.gpu0"] == ("m0.gpu0-m0.sw", "m1.gpu0-m1.sw")
    assert "domain" in whole.switches


@pytest.mark.parametrize(
    "order, message",
    [([(0, 0), (0, 0)], "each device once"), ([(0, 5)], r"names \(0, 5\)"), ([(7, 0)], r"names \(7, 0\)")],
)
def test_wrong_orders(order: list[tuple[int, int]], message: str):
    with pytest.raises(ValueError, match=message):
        join_machines([BIG, SMALL], order, name="t")
