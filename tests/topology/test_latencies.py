"""Latencies that presets carry: of every connection, by its kind, and of a stage of the transport."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dgcl.topology import Topology, preset
from dgcl.topology.latencies import EFA, NETWORK, NVLINK, PCIE, STAGE, with_latencies, without_latencies
from dgcl.topology.presets import NODES


def link_latency(topology: Topology, src: str, dst: str) -> float:
    (route,) = [link.route for link in topology.links if (link.src, link.dst) == (src, dst)]
    return sum(connection.latency for connection in topology.connections if connection.name in route)


@pytest.mark.parametrize("name", NODES)
def test_every_preset_knows_the_latency_of_every_connection(name: str) -> None:
    for topology in (preset(name), preset(f"{name}x2")):
        assert all(connection.latency > 0 for connection in topology.connections)
        assert (topology.arrays().link_latency >= STAGE).all()  # a stage costs as much, whatever the wires
        assert (topology.arrays().link_latency < STAGE + 100e-6).all()


@pytest.mark.parametrize(
    ("name", "src", "dst", "wires"),
    [
        pytest.param("dgx1", "gpu0", "gpu1", NVLINK, id="one NVLink"),
        pytest.param("dgx_a100", "gpu0", "gpu7", NVLINK, id="through an NVSwitch"),
        pytest.param("mi300x", "gpu0", "gpu1", NVLINK, id="xGMI"),
        pytest.param("pcie8", "gpu0", "gpu1", PCIE, id="one PCIe switch"),
        pytest.param("pcie8", "gpu0", "gpu7", 2 * PCIE + 0.1e-6, id="two sockets"),
        pytest.param("dgx1x2", "m0.gpu0", "m1.gpu0", 2 * PCIE + NETWORK, id="two machines"),
        pytest.param("aws_p5x2", "m0.gpu0", "m1.gpu0", PCIE + EFA, id="EFA"),
    ],
)
def test_routes_by_hand(name: str, src: str, dst: str, wires: float) -> None:
    assert link_latency(preset(name), src, dst) == pytest.approx(wires + STAGE)


def test_they_can_be_left_out_and_put_back() -> None:
    machine = preset("dgx1x2")
    bare = without_latencies(machine)
    assert not bare.arrays().link_latency.any()
    assert bare == NODES["dgx1"](2)
    assert with_latencies(bare) == machine
    assert with_latencies(machine) == machine
    assert replace(bare, connections=machine.connections) == machine  # and nothing else differs
