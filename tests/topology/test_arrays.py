"""The numeric view, against values worked out by hand and against a walk over the model."""

import dataclasses

import numpy as np
import pytest

from dgcl.topology import Connection, Device, Link, Topology, preset
from tests.support.samples import named

CHAIN = Topology(
    "chain",
    (Device("a"), Device("b"), Device("c")),
    (
        Connection("a-s", "PCIe", "a", "s", 8.0, latency=1e-6),
        Connection("bus", "shared", "t", "s", 5.0, latency=2e-6, duplex="half"),
        Connection("b-t", "PCIe", "b", "t", 6.0),
    ),
)


def test_directions_of_full_and_half_duplex_connections():
    arrays = CHAIN.arrays()
    assert list(arrays.direction_names) == [
        "a-s:a>s",
        "a-s:s>a",
        "bus",
        "b-t:b>t",
        "b-t:t>b",
    ]
    assert arrays.bandwidth.tolist() == [8.0, 8.0, 5.0, 6.0, 6.0]
    assert arrays.direction_connection.tolist() == [0, 0, 1, 2, 2]


def test_links_by_rank_and_their_routes():
    arrays = CHAIN.arrays()
    assert (arrays.link_src.tolist(), arrays.link_dst.tolist()) == ([0, 1], [1, 0])
    assert arrays.link_ptr.tolist() == [0, 3, 6]
    assert arrays.link_directions.tolist() == [0, 2, 4, 3, 2, 1]
    assert arrays.link_latency.tolist() == [3e-6, 3e-6]
    assert arrays.link_of.tolist() == [[-1, 0, -1], [1, -1, -1], [-1, -1, -1]]
    assert (arrays.num_devices, arrays.num_links) == (3, 2)


def test_links_are_sorted_whatever_their_order_in_the_topology():
    backwards = dataclasses.replace(CHAIN, links=tuple(reversed(CHAIN.links)))
    for field in dataclasses.fields(CHAIN.arrays()):
        ours, theirs = getattr(backwards.arrays(), field.name), getattr(CHAIN.arrays(), field.name)
        np.testing.assert_array_equal(ours, theirs)


def test_dtypes_shapes_and_protection():
    arrays = CHAIN.arrays()
    dtypes = {
        field.name: getattr(getattr(arrays, field.name), "dtype", None)
        for field in dataclasses.fields(arrays)
    }
    assert dtypes == {
        "num_devices": None,
        "bandwidth": np.float64,
        "direction_connection": np.int32,
        "direction_names": None,
        "link_src": np.int32,
        "link_dst": np.int32,
        "link_ptr": np.int64,
        "link_directions": np.int32,
        "link_latency": np.float64,
        "link_of": np.int32,
    }
    with pytest.raises(ValueError, match="read-only"):
        arrays.bandwidth[0] = 1.0
    assert CHAIN.arrays() is arrays


@named("connections", {"none": (), "dead end": (Connection("w", "X", "a", "switch", 1.0),)})
def test_a_single_device_has_no_links(connections: tuple[Connection, ...]):
    arrays = Topology("one", (Device("a"),), connections).arrays()
    assert arrays.link_of.tolist() == [[-1]]
    assert (arrays.link_ptr.tolist(), arrays.num_links) == ([0], 0)
    assert arrays.num_directions == 2 * len(connections)


@pytest.mark.parametrize("name", ["dgx1", "dgx1x2", "summitx2", "uniform:5"])
def test_directions_of_a_route_lead_from_device_to_device(name: str):
    topology = preset(name)
    arrays = topology.arrays()
    names = [device.name for device in topology.devices]
    routes: dict[tuple[str, str], Link] = {(link.src, link.dst): link for link in topology.links}
    for link in range(arrays.num_links):
        src, dst = names[arrays.link_src[link]], names[arrays.link_dst[link]]
        steps = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
        used = [topology.connections[arrays.direction_connection[c]].name for c in steps]
        assert tuple(used) == routes[src, dst].route
        at = src
        for c in steps:
            tail, head = arrays.direction_names[c].split(":")[1].split(">")
            assert tail == at
            at = head
        assert at == dst
        assert arrays.link_of[arrays.link_src[link], arrays.link_dst[link]] == link
