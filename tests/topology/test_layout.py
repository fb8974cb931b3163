"""Where a picture puts things: nothing overlaps, everything is there, equal machines and devices are drawn once."""

import re
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from dgcl.topology import Connection, Device, Topology, preset
from dgcl.topology.combine import Nic, cluster, join_machines
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from dgcl.topology.importers import import_topology
from dgcl.topology.layout import MOST, layout_topology
from dgcl.topology.presets import NODES
from tests.topology.importers.cases import SHARED

FILES = [p for p in sorted([*SHARED.glob("topo_m/*"), *SHARED.glob("nccl_xml/*")]) if "aws_" not in p.stem]
QUADS = cluster(preset("pcie4_a40"), 2, nics=[Nic("cpu0", 25.0)])
ALTERNATING = join_machines(
    [preset("pcie4_a40")] * 2, [(r % 2, r // 2) for r in range(8)], name="alternating"
)
UNLIKE = join_machines(
    [preset("pcie8"), preset("pcie8_4090"), preset("pcie8")],
    [(m, d) for m in range(3) for d in range(8)],
    name="unlike",
)
BOTH = Topology(
    "nvswitch and plx",
    tuple(Device(f"gpu{g}") for g in range(3)),
    tuple(
        Connection(f"gpu{g}-{switch}", kind, f"gpu{g}", switch, 1.0)
        for g in range(3)
        for switch, kind in (("nvswitch", "NV18"), ("plx", "PCIe"))
    ),
)


def ring(count: int) -> Topology:
    wires = [Connection(f"w{g}", "NV1", f"gpu{g}", f"gpu{(g + 1) % count}", 1.0) for g in range(count)]
    return Topology(f"ring{count}", tuple(Device(f"gpu{g}") for g in range(count)), tuple(wires))


MACHINES = [
    *(preset(f"{name}{several}") for name in NODES for several in ("", "x2")),
    *(host_topology(n, CopyRates(9.0, 12.0)) for n in (1, 2, 8)),
    *(import_topology(path).topology for path in FILES),
    *(
        preset("uniform16"),
        cluster(preset("dgx1"), 3, nics=[Nic("plx0", 12.0), Nic("plx2", 12.0)], rails=True, spine=50.0),
    ),
    *(QUADS, ALTERNATING, UNLIKE, BOTH, ring(12)),
]


@pytest.mark.parametrize("topology", MACHINES, ids=lambda topology: topology.name)
def test_everything_is_there_and_nothing_overlaps(topology: Topology):
    layout = layout_topology(topology)
    positions = sorted(position for group in layout.wires.values() for position in group)
    assert positions == list(range(len(topology.connections)))
    ends = {end for wire in layout.wires for end in (wire.a, wire.b)}
    assert ends <= set(layout.places)
    assert set(layout.labels) == set(layout.places) >= set(layout.ring)
    places = [*layout.places.items(), *layout.ring.items()]
    boxes = [(*place, 0.05 + 0.075 * len(layout.labels[end])) for end, place in places]
    for (xa, ya, wa), (xb, yb, wb) in combinations(boxes, 2):
        assert abs(xa - xb) > (wa + wb) / 2 or abs(ya - yb) > 0.5
    assert all(w / 2 < x < layout.size[0] - w / 2 and 0.3 < y < layout.size[1] - 0.3 for x, y, w in boxes)
    devices = [device.name for device in topology.devices if device.name in layout.places]
    assert len({layout.places[name][1] for name in devices}) == 1
    if topology.num_devices <= MOST:
        assert len(devices) == topology.num_devices
        assert all(group == [topology.connections.index(wire)] for wire, group in layout.wires.items())
    if topology is not ALTERNATING:
        assert all(layout.places[a][0] < layout.places[b][0] for a, b in pairwise(devices))
    assert all(a[2] < b[1] for a, b in pairwise(layout.frames))
    for end in layout.labels:
        x, y = layout.places[end]
        inside = [left < x < right and bottom < y < top for _, left, right, bottom, top in layout.frames]
        assert sum(inside) <= (end in devices or end not in {"ib", "eth", "spine", "rail0", "nvswitch"})
        assert any(inside) or not layout.frames or end not in devices


def titles(topology: Topology) -> list[str]:
    return [frame[0] for frame in layout_topology(topology).frames]


@pytest.mark.parametrize(
    "topology, drawn",
    [
        (preset("gb200_nvl72"), "18 x machine: gpu0 gpu1 gpu2 gpu3 nvswitch"),
        (
            preset("dgx_a100x2"),
            "2 x machine: " + " ".join(f"gpu{g} nic{g}" for g in range(8)) + " nvswitch ib",
        ),
        (preset("uniform:60"), "60 x device0 switch"),
        (preset("dgx2"), "16 x gpu0 nvswitch"),
        (ring(12), " ".join(f"gpu{g}" for g in range(12))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_of_many_devices_equal_ones_are_folded(topology: Topology, drawn: str):
    layout = layout_topology(topology)
    title, _, labels = drawn.rpartition(": ")
    assert titles(topology) == [title] * bool(title)
    assert " ".join(sorted(layout.labels.values())) == " ".join(sorted(re.findall(r"(?:\d+ x )?\w+", labels)))


def test_machines_that_differ_in_one_wire_are_not_folded():
    assert titles(UNLIKE) == ["2 x machine", "machine 1"]
    slower = preset("dgx1x3")
    first, *others = slower.connections
    assert titles(slower) == ["3 x machine"]
    slower = replace(slower, connections=(replace(first, bandwidth=1.0), *others))
    assert titles(slower) == ["machine 0", "2 x machine"]


@pytest.mark.parametrize(
    "name, ringed",
    [("dgx1", 8), ("dgx1x2", 8), ("mi300x", 8), ("pcie4_a40", 0), ("dgx_a100", 0), ("summit", 6)],
)
def test_wires_among_gpus_are_chords_of_a_ring(name: str, ringed: int):
    layout = layout_topology(preset(name))
    assert len(layout.ring) == ringed
    assert all(y < layout.places[end][1] - 0.7 for end, (_, y) in layout.ring.items())
    for wire, (start, end, bend) in zip(layout.wires, layout.lines(), strict=True):
        if {wire.a, wire.b} <= set(layout.ring):
            assert {start, end} == {layout.ring[wire.a], layout.ring[wire.b]}
            assert bend == 0


def test_what_joins_gpus_is_below_and_the_host_above():
    places = layout_topology(BOTH).places
    assert places["nvswitch"][1] < places["gpu0"][1] < places["plx"][1]
    places = layout_topology(preset("dgx1x2")).places
    assert places["m0.gpu0"][1] < places["m0.plx0"][1] < places["m0.cpu0"][1] < places["ib"][1]
