"""Latencies that presets carry: of every connection, by its kind, and of a stage of the transport."""

from dataclasses import replace

import pytest

from dgcl.topology import Topology, preset
from dgcl.topology.latencies import EFA, NETWORK, NVLINK, PCIE, STAGE, with_latencies, without_latencies
from dgcl.topology.presets import NODES
from tests.support.samples import named


def link_latency(topology: Topology, src: str, dst: str) -> float:
    (route,) = [link.route for link in topology.links if (link.src, link.dst) == (src, dst)]
    return sum(connection.latency for connection in topology.connections if connection.name in route)


@pytest.mark.parametrize("name", NODES)
def test_every_preset_knows_the_latency_of_every_connection(name: str):
    for topology in (preset(name), preset(f"{name}x2")):
        assert all(connection.latency > 0 for connection in topology.connections)
        assert (topology.arrays().link_latency >= STAGE).all()  # a stage costs as much, whatever the wires
        assert (topology.arrays().link_latency < STAGE + 100e-6).all()


@named(
    "name, src, dst, wires",
    {
        "one NVLink": ("dgx1", "gpu0", "gpu1", NVLINK),
        "through an NVSwitch": ("dgx_a100", "gpu0", "gpu7", NVLINK),
        "xGMI": ("mi300x", "gpu0", "gpu1", NVLINK),
        "one PCIe switch": ("pcie8", "gpu0", "gpu1", PCIE),
        "two sockets": ("pcie8", "gpu0", "gpu7", 2 * PCIE + 0.1e-6),
        "two machines": ("dgx1x2", "m0.gpu0", "m1.gpu0", 2 * PCIE + NETWORK),
        "EFA": ("aws_p5x2", "m0.gpu0", "m1.gpu0", PCIE + EFA),
    },
)
def test_routes_by_hand(name: str, src: str, dst: str, wires: float):
    assert link_latency(preset(name), src, dst) == pytest.approx(wires + STAGE)


def test_they_can_be_left_out_and_put_back():
    machine = preset("dgx1x2")
    bare = without_latencies(machine)
    assert not bare.arrays().link_latency.any()
    assert bare == NODES["dgx1"](2)
    assert with_latencies(bare) == machine
    assert with_latencies(machine) == machine
    assert replace(bare, connections=machine.connections) == machine  # and nothing else differs
