"""Machines of different kinds as one topology."""

from __future__ import annotations

import pytest

from dgcl.topology import Connection, Device, Link, Topology
from dgcl.topology.combine import join_machines

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


def test_ports_of_a_kind_meet() -> None:
    whole = join_machines([BIG, SMALL], [(0, 1), (1, 0), (0, 0)], name="both")
    assert [(d.name, d.machine, d.socket) for d in whole.devices] == [
        ("m0.gpu1", 0, 1),
        ("m1.gpu0", 1, 0),
        ("m0.gpu0", 0, 0),
    ]
    routes = {(link.src, link.dst): link.route for link in whole.links}
    assert routes["m0.gpu1", "m1.gpu0"] == (
        "m0.nic2-m0.gpu1",
        "m0.nic2-ib",
        "m1.nic-ib",
        "m1.nic-m1.gpu0",
    )
    assert routes["m0.gpu1", "m0.gpu0"] == ("m0.gpu1-m0.sw", "m0.gpu0-m0.sw")
    assert len(whole.links) == 6


def test_given_links_of_a_machine_stay() -> None:
    one_way = Topology("one", BIG.devices, BIG.connections, (Link("gpu0", "gpu1", ("gpu0-sw", "gpu1-sw")),))
    whole = join_machines([one_way, SMALL], [(0, 0), (0, 1), (1, 0)], name="t")
    assert ("m0.gpu1", "m0.gpu0") not in {(link.src, link.dst) for link in whole.links}


def test_devices_that_no_rank_uses_are_left_out() -> None:
    whole = join_machines([BIG, SMALL], [(1, 0), (0, 0)], name="t")
    assert [device.name for device in whole.devices] == ["m1.gpu0", "m0.gpu0"]
    assert not any("m0.gpu1" in (c.a, c.b) for c in whole.connections)
    assert len(whole.links) == 2


def test_switches_that_machines_share() -> None:
    shared = [{"sw": "domain"}, {"sw": "domain"}]
    whole = join_machines([BIG, BIG], [(0, 0), (1, 0)], name="t", shared=shared)
    routes = {(link.src, link.dst): link.route for link in whole.links}
    assert routes["m0.gpu0", "m1.gpu0"] == ("m0.gpu0-m0.sw", "m1.gpu0-m1.sw")
    assert "domain" in whole.switches


@pytest.mark.parametrize(
    ("order", "message"),
    [([(0, 0), (0, 0)], "each device once"), ([(0, 5)], r"names \(0, 5\)"), ([(7, 0)], r"names \(7, 0\)")],
)
def test_wrong_orders(order: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join_machines([BIG, SMALL], order, name="t")
