"""Where a picture puts things: nothing overlaps, everything is there, equal machines and devices are drawn once."""

import re
from dataclasses import replace
from itertools import combinations

import pytest

from dgcl.topology import Connection, Device, Topology, preset
from dgcl.topology.combine import Nic, cluster, join_machines
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from dgcl.topology.importers import import_topology
from dgcl.topology.layout import MOST, layout_topology
from dgcl.topology.presets import NODES
from tests.support.importer_cases import SHARED

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
    assert {end for wire in layout.wires for end in (wire.a, wire.b)} <= set(layout.places)
    assert set(layout.labels) == set(layout.places)
    boxes = [
        (*place, 0.05 + 0.075 * max(map(len, layout.labels[end].split("\n"))))
        for end, place in layout.places.items()
    ]
    for (xa, ya, wa), (xb, yb, wb) in combinations(boxes, 2):
        assert abs(xa - xb) > (wa + wb) / 2 or abs(ya - yb) > 0.5
    assert all(w / 2 < x < layout.size[0] - w / 2 and 0.3 < y < layout.size[1] - 0.3 for x, y, w in boxes)
    assert [*layout.ranks] == [device.name for device in topology.devices if device.name in layout.places]
    if topology.num_devices <= MOST:
        assert len(layout.ranks) == topology.num_devices
        assert all(group == [topology.connections.index(wire)] for wire, group in layout.wires.items())


@pytest.mark.parametrize(
    "topology, drawn",
    [
        (preset("gb200_nvl72"), [f"18 x gpu{g}" for g in range(4)] + ["nvswitch"]),
        (
            preset("dgx_a100x2"),
            [f"2 x m0.{kind}{g}" for g in range(8) for kind in ("gpu", "nic")] + ["2 x m0.nvswitch", "ib"],
        ),
        (preset("uniform:60"), ["60 x device0", "switch"]),
        (preset("dgx2"), ["16 x gpu0", "nvswitch"]),
        (ring(12), [f"gpu{g}" for g in range(12)]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_of_many_devices_equal_ones_are_folded(topology: Topology, drawn: list[str]):
    assert sorted(layout_topology(topology).labels.values()) == sorted(drawn)


def test_machines_that_differ_in_one_wire_are_not_folded():
    def counts(topology: Topology) -> set[str]:
        return {
            re.sub(r"(\d+ x )?(m\d+)?.*", r"\1\2", text, flags=re.DOTALL)
            for text in layout_topology(topology).labels.values()
        }

    assert counts(UNLIKE) == {"2 x m0", "m1"}
    slower = preset("dgx1x3")
    first, *others = slower.connections
    assert counts(slower) == {"3 x m0", ""}
    slower = replace(slower, connections=(replace(first, bandwidth=1.0), *others))
    assert counts(slower) == {"m0", "2 x m1", ""}


def test_ranks_are_written_where_names_do_not_tell_them():
    labels = layout_topology(preset("pcie4_a40x2")).labels
    assert labels["m0.gpu1"] == "m0.gpu1"
    assert labels["m1.gpu1"] == "m1.gpu1\nrank 5"


def test_wires_of_the_same_ends_are_bent_apart():
    ends = [("gpu0", "gpu1"), ("gpu1", "gpu0"), ("gpu0", "gpu2")]
    wires = tuple(Connection(f"w{n}", "NV1", *pair, 1.0) for n, pair in enumerate(ends))
    layout = layout_topology(Topology("double", tuple(Device(f"gpu{g}") for g in range(3)), wires))
    assert [bend for _, _, bend in layout.lines()] == [0.0, -0.1, 0.0]
