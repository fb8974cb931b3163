"""The text of ``dgcl topo show``."""

import pytest

from dgcl.topology import Connection, Device, Topology, preset, preset_names, render_topology
from dgcl.topology.show import headline

SMALL = Topology(
    "small",
    (Device("gpu0"), Device("gpu1"), Device("gpu2", machine=1, socket=1)),
    (
        Connection("w", "NV2", "gpu0", "gpu1", 48.35),
        Connection("p0", "PCIe", "gpu0", "plx", 11.13, latency=1.5e-6),
        Connection("p1", "PCIe", "gpu1", "plx", 11.13),
        Connection("bus", "QPI", "plx", "gpu2", 9.56, duplex="half"),
    ),
)
TEXT = """\
small: 3 devices, 1 switch, 4 connections, 6 links
  machine 0, socket 0: gpu0..1
  machine 1, socket 1: gpu2

links from row to column, by slowest connection (number of connections, if several)
      gpu0    gpu1    gpu2
gpu0  X       NV2     QPI(2)
gpu1  NV2     X       QPI(2)
gpu2  QPI(2)  QPI(2)  X

GB/s of a link while nothing else is sent
      gpu0   gpu1   gpu2
gpu0  X      48.35  9.56
gpu1  48.35  X      9.56
gpu2  9.56   9.56   X

connections (GB/s in each direction; half duplex: in both together)
connection  kind  a     b     GB/s   latency us  duplex  links (a to b, b to a)
w           NV2   gpu0  gpu1  48.35  0           full    1, 1
p0          PCIe  gpu0  plx   11.13  1.5         full    1, 1
p1          PCIe  gpu1  plx   11.13  0           full    1, 1
bus         QPI   plx   gpu2  9.56   0           half    4

shared: these links divide the bandwidth
direction  links  from > to
bus        4      gpu0..2 > gpu0..2
"""


def test_the_whole_text():
    assert render_topology(SMALL) == TEXT


def test_pairs_without_a_link_are_shown_as_such():
    text = render_topology(Topology("two", SMALL.devices[:2], ()))
    assert (
        text.splitlines()[0]
        == "two: 2 devices, 0 switches, 0 connections, 0 links (none for 2 ordered pairs)"
    )
    one_way = render_topology(Topology("t", SMALL.devices[:2], SMALL.connections[:1], SMALL.links[:1]))
    assert "gpu1  -     X" in one_way.splitlines()
    assert "(none for 1 ordered pair)" in one_way


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_shown(name: str):
    topology = preset(name, 1 if name == "gh200" else 2)
    text = render_topology(topology)
    assert all(wire.name in text for wire in topology.connections)
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("size, matrix", [(32, True), (33, False)])
def test_large_machines_are_counted_instead_of_drawn(size: int, matrix: bool):
    lines = render_topology(preset("uniform", size)).splitlines()
    assert any(line.startswith("device31  port(2)") for line in lines) == matrix
    assert ("port(2)  10    1056" in lines) == (not matrix)


def test_runs_of_numbered_names():
    names = ["gpu0", "gpu1", "gpu2", "gpu4", "m1.gpu0", "cpu", "m1.gpu1", "gpu09", "gpu10"]
    text = render_topology(Topology("t", tuple(Device(name) for name in names), ()))
    assert text.splitlines()[1] == "  machine 0, socket 0: gpu0..2 gpu4 m1.gpu0 cpu m1.gpu1 gpu09 gpu10"


@pytest.mark.parametrize(
    "topology, text",
    [
        (preset("hgx_h100"), "8 GPUs, all alike: straight is best, unless some send far more than others"),
        (
            preset("uniform:3"),
            "3 devices, all alike: straight is best, unless some send far more than others",
        ),
        (SMALL, "3 GPUs: 4 pairs share 9.56 GB/s (bus)"),
        (preset("pcie8"), "8 GPUs: 16 pairs share 9.56 GB/s (cpu0-cpu1:cpu0>cpu1)"),
        (preset("gh200"), "1 GPU: no pairs share a connection"),
        (Topology("two", SMALL.devices[:2], ()), "2 GPUs: no pairs share a connection"),
        (
            Topology(
                "v", SMALL.devices, (*SMALL.connections[:1], Connection("v", "NV1", "gpu1", "gpu2", 24.0))
            ),
            "3 GPUs: no pairs share a connection",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_headline_says_what_decides(topology: Topology, text: str):
    assert headline(topology) == text
