"""Where a picture puts things: nothing overlaps, everything is there, order is kept."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.topology import Connection, Device, Topology, preset
from dgcl.topology.combine import PORT, cluster, join_machines
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from dgcl.topology.host_memory import stage_in_host_memory
from dgcl.topology.importers import import_topology
from dgcl.topology.layout import HEIGHT, layout_topology, machines_of, spread
from dgcl.topology.presets import NODES
from tests.topology.importers.cases import SHARED, needs_data


def real_files() -> list[object]:
    names = sorted([*SHARED.glob("topo_m/*"), *SHARED.glob("nccl_xml/*")])
    return [pytest.param(import_topology(p).topology, id=p.stem) for p in names if "aws_" not in p.stem]


MACHINES = [
    *(pytest.param(preset(name), id=name) for name in NODES if name != "gb200_nvl72"),
    *(pytest.param(preset(f"{name}x2"), id=f"{name}x2") for name in NODES if name != "gb200_nvl72"),
    *(pytest.param(host_topology(n, CopyRates(9.0, 12.0)), id=f"host{n}") for n in (1, 2, 8)),
    pytest.param(preset("uniform16"), id="uniform16"),
    pytest.param(stage_in_host_memory(preset("pcie8"), 60.0), id="pcie8 with memory"),
    *real_files(),
]


@pytest.mark.parametrize("topology", MACHINES)
def test_everything_is_there_and_nothing_overlaps(topology: Topology) -> None:
    layout = layout_topology(topology)
    ends = {end for c in topology.connections for end in (c.a, c.b) if not end.endswith(PORT)}
    assert set(layout.boxes) == ends | {device.name for device in topology.devices}
    assert set(layout.wires) == {connection.name for connection in topology.connections}
    for a, b in combinations(layout.boxes.values(), 2):
        apart = a.right < b.left or b.right < a.left or abs(a.y - b.y) > HEIGHT
        assert apart, (a, b)
    for box in layout.boxes.values():
        assert layout.left <= box.left
        assert box.right <= layout.right
        assert layout.bottom <= box.y <= layout.top


@pytest.mark.parametrize("topology", MACHINES)
def test_devices_stand_in_one_row_in_the_order_of_ranks(topology: Topology) -> None:
    boxes = [layout_topology(topology).boxes[device.name] for device in topology.devices]
    assert {box.y for box in boxes} == {0.0}
    assert all(left.right < right.left for left, right in pairwise(boxes))
    assert all(box.is_device for box in boxes)


def cards(count: int) -> Topology:
    """Two GPUs and many cards: wider above than below."""
    wires = [
        wire
        for n in range(count)
        for wire in (
            Connection(f"a{n}", "PCIe", f"card{n}", "cpu", 12.0),
            Connection(f"b{n}", "IB", f"card{n}", f"card{n}{PORT}", 25.0),
        )
    ]
    gpus = [Connection(f"g{g}", "PCIe", f"gpu{g}", "cpu", 12.0) for g in range(2)]
    return Topology(f"{count} cards", (Device("gpu0"), Device("gpu1")), (*gpus, *wires))


SEVERAL = [
    *(pytest.param(preset(f"{name}x2"), id=f"{name}x2") for name in NODES if name != "gb200_nvl72"),
    *(
        pytest.param(preset(f"{name}x3"), id=f"{name}x3")
        for name in ("dgx1", "dgx_a100", "mi250x", "pcie8_4090")
    ),
    *(pytest.param(cluster(cards(n), m), id=f"{n} cards x{m}") for n in (1, 2, 9) for m in (2, 3, 5)),
    pytest.param(cluster(cards(9), 3, rails=True, spine=50.0), id="rails"),
]


@pytest.mark.parametrize("topology", SEVERAL)
def test_frames_of_machines_hold_what_is_theirs_alone_and_do_not_overlap(topology: Topology) -> None:
    layout, machine = layout_topology(topology), machines_of(topology)
    frames = [layout.frames[number] for number in sorted(layout.frames)]
    assert all(left[1] < right[0] for left, right in pairwise(frames))
    for end, box in layout.boxes.items():
        place = machine[end]
        if place is not None:
            left, right, bottom, top = layout.frames[place]
            assert left < box.left < box.right < right
            assert bottom < box.y < top
        else:  # what machines share
            assert all(
                box.right < left
                or right < box.left
                or box.y - HEIGHT / 2 > top
                or box.y + HEIGHT / 2 < bottom
                for left, right, bottom, top in layout.frames.values()
            )
    assert not any(box.label.startswith("m0.") for box in layout.boxes.values())
    assert None in machine.values()


def test_machines_of_one_kind_look_the_same() -> None:
    boxes = layout_topology(preset("mi250xx2")).boxes
    apart = boxes["m1.gpu0"].x - boxes["m0.gpu0"].x
    for name, box in boxes.items():
        if name.startswith("m0."):
            twin = boxes["m1." + name.removeprefix("m0.")]
            assert (twin.x - box.x, twin.y) == (pytest.approx(apart), box.y)


def test_ranks_that_alternate_between_machines_have_no_frames() -> None:
    """There is no rectangle that holds one machine alone."""
    order = [(rank % 2, rank // 2) for rank in range(16)]
    topology = join_machines([preset("dgx1")] * 2, order, name="alternating")
    layout = layout_topology(topology)
    assert layout.frames == {}
    assert {box.label for box in layout.boxes.values() if box.is_device} == {d.name for d in topology.devices}


@needs_data
def test_cards_of_an_nvswitch_machine_are_drawn() -> None:
    """Above the GPUs, whose NVSwitches are below; a preset has no cards where no route takes them."""
    topology = import_topology(SHARED / "nccl_xml" / "oci_8xH100_dump.xml").topology
    boxes = layout_topology(topology).boxes
    names = {c.a for c in topology.connections if c.kind == "net"}
    assert len(names) == 8
    assert all(boxes[name].y > 0 > boxes["nvswitch"].y for name in names)
    assert set(layout_topology(preset("hgx_h100")).boxes) == {"nvswitch", *(f"gpu{g}" for g in range(8))}


def test_what_joins_gpus_is_below_and_the_host_above() -> None:
    node = Topology(
        "both",
        tuple(Device(f"gpu{g}") for g in range(3)),
        tuple(
            Connection(f"gpu{g}-{switch}", kind, f"gpu{g}", switch, 1.0)
            for g in range(3)
            for switch, kind in (("nvswitch", "NV18"), ("plx", "PCIe"))
        ),
    )
    boxes = layout_topology(node).boxes
    assert boxes["nvswitch"].y < 0 < boxes["plx"].y


def test_arcs_of_a_device_nest() -> None:
    wires = layout_topology(preset("dgx1")).wires
    near, far = wires["gpu0-gpu1"], wires["gpu0-gpu4"]
    assert far.start < near.start  # the outer arc starts outside of the inner one
    assert far.depth > near.depth


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.1, 3)), min_size=1, max_size=12))
def test_spread_keeps_order_and_distance_and_moves_nothing_without_need(
    items: list[tuple[float, float]],
) -> None:
    items.sort()
    wanted, widths = [x for x, _ in items], [width for _, width in items]
    places = spread(wanted, widths)
    for (left, a), (right, b) in pairwise(zip(places, widths, strict=True)):
        assert right - left > (a + b) / 2
    if all((b - a) > (u + v) / 2 + 0.2 for (a, u), (b, v) in pairwise(items)):
        assert places == pytest.approx(wanted)
    assert sum(places) == pytest.approx(sum(wanted), abs=1e-6 * len(items) + 1e-9)
