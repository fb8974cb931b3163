"""Devices, connections, links and topologies: what they accept, and what they say of what they do not."""

import copy
import dataclasses
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

from dgcl.topology import Connection, Device, Link, Topology
from tests.support.samples import named

GPUS = (Device("gpu0"), Device("gpu1"), Device("gpu2", machine=0, socket=1))
WIRES = (
    Connection("w01", "NV2", "gpu0", "gpu1", 48.0),
    Connection("g0", "PCIe", "gpu0", "plx", 11.0),
    Connection("g1", "PCIe", "gpu1", "plx", 11.0),
    Connection("g2", "PCIe", "cpu", "gpu2", 11.0, latency=1e-6),
    Connection("bus", "QPI", "plx", "cpu", 9.0, latency=2e-6, duplex="half"),
)


def make(**changes: Any) -> Topology:
    fields: dict[str, Any] = {"name": "t", "devices": GPUS, "connections": WIRES, "links": None}
    return Topology(**(fields | changes))


def test_links_are_derived_where_none_are_given():
    topology = make()
    assert topology.links == (
        Link("gpu0", "gpu1", ("w01",)),
        Link("gpu0", "gpu2", ("g0", "bus", "g2")),
        Link("gpu1", "gpu0", ("w01",)),
        Link("gpu1", "gpu2", ("g1", "bus", "g2")),
        Link("gpu2", "gpu0", ("g2", "bus", "g0")),
        Link("gpu2", "gpu1", ("g2", "bus", "g1")),
    )
    assert topology.num_devices == 3
    assert topology.switches == ("plx", "cpu")


def test_given_links_are_taken_as_they_are():
    links = [Link("gpu1", "gpu0", ["g1", "g0"]), Link("gpu0", "gpu1", ("w01",))]  # type: ignore[arg-type]
    topology = make(links=links)
    assert topology.links == (Link("gpu1", "gpu0", ("g1", "g0")), Link("gpu0", "gpu1", ("w01",)))
    assert make(links=[]).links == ()


def test_values_are_brought_to_plain_types():
    wire = Connection("w", "X", "a", "b", np.float32(2.0), latency=0)  # type: ignore[arg-type]
    assert (type(wire.bandwidth), type(wire.latency)) == (float, float)
    device = Device("a", machine=np.int64(3))  # type: ignore[arg-type]
    assert type(device.machine) is int
    assert isinstance(make(devices=list(GPUS), connections=iter(WIRES)).connections, tuple)


def test_everything_is_frozen():
    topology = make()
    for item, field in (
        (topology, "name"),
        (GPUS[0], "name"),
        (WIRES[0], "kind"),
        (topology.links[0], "src"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(item, field, "other")


def test_copies_are_equal_and_carry_no_cached_arrays():
    topology = make()
    arrays = topology.arrays()
    for twin in (
        copy.deepcopy(topology),
        pickle.loads(pickle.dumps(topology)),
        dataclasses.replace(topology),
    ):
        assert twin == topology
        assert hash(twin) == hash(topology)
        assert twin.arrays() is not arrays
        assert not twin.arrays().bandwidth.flags.writeable


BAD_NUMBERS = [0, -1, -0.5, math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize(
    "changes, error, message",
    [
        *(
            ({"bandwidth": bad}, ValueError, "bandwidth of 'w' must be a positive number")
            for bad in BAD_NUMBERS
        ),
        *(({"latency": bad}, ValueError, "latency of 'w' must be a number >= 0") for bad in BAD_NUMBERS[1:]),
        *(
            ({field: bad}, TypeError, f"{field} of 'w' must be a")
            for field in ("bandwidth", "latency")
            for bad in (True, False, "9", None, 1j, [1.0], np.bool_(True))
        ),
        *(
            ({field: bad}, error, f"{field} must be")
            for field in ("name", "kind", "a", "b")
            for bad, error in (
                (3, TypeError),
                (None, TypeError),
                ("", ValueError),
                (" x", ValueError),
                ("a\nb", ValueError),
            )
        ),
        *(
            ({"duplex": bad}, ValueError, "duplex must be one of full, half")
            for bad in ("Full", "both", "", None, True, 1, ["full"])
        ),
        ({"a": "b"}, ValueError, "b must be another endpoint than a (got 'b' twice)"),
    ],
    ids=repr,
)
def test_bad_connections(changes: dict[str, Any], error: type[Exception], message: str):
    fields: dict[str, Any] = {"name": "w", "kind": "X", "a": "a", "b": "b", "bandwidth": 1.0}
    with pytest.raises(error) as caught:
        Connection(**(fields | changes))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"machine": -1}, ValueError, "machine must be an integer from 0 to 2147483647 (got -1)"),
        ({"socket": -2}, ValueError, "socket must be an integer from 0 to 2147483647 (got -2)"),
        ({"machine": True}, TypeError, "machine must be an integer from 0 to 2147483647 (got True)"),
        ({"machine": 1.0}, TypeError, "machine must be an integer from 0 to 2147483647 (got 1.0)"),
        ({"socket": None}, TypeError, "socket must be an integer from 0 to 2147483647 (got None)"),
        (
            {"name": ""},
            ValueError,
            "name must be printable text on one line, without blanks at its ends (got '')",
        ),
        ({"name": 5}, TypeError, "name must be a string (got 5)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_devices(changes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        Device(**({"name": "d"} | changes))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"name": None}, TypeError, "name must be a string (got None)"),
        ({"devices": ()}, ValueError, "devices must name at least one device (got none)"),
        ({"devices": "gpu0"}, TypeError, "devices must be a sequence of Device (got 'gpu0')"),
        ({"devices": ("gpu0",)}, TypeError, "devices[0] must be a Device (got 'gpu0')"),
        ({"connections": 4}, TypeError, "connections must be a sequence of Connection (got 4)"),
        ({"links": {("a", "b")}}, TypeError, "links[0] must be a Link (got ('a', 'b'))"),
        ({"devices": (*GPUS, Device("gpu1"))}, ValueError, "devices[3].name 'gpu1' is taken by devices[1]"),
        (
            {"connections": (*WIRES, Connection("g0", "IB", "x", "y", 1.0))},
            ValueError,
            "connections[5].name 'g0' is taken by connections[1]",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_topologies(changes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        make(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "link",
    [
        ("gpu0", "gpu0", ("w01",)),  # to itself
        ("gpu0", "gpu1", ()),
        ("gpu0", "gpu1", ("g0", "g0")),  # twice
        ("gpu0", "gpu2", ("g0", "bus")),  # ends elsewhere
        ("gpu0", "gpu2", ("w01", "g1", "bus", "g2")),  # through a device
        ("gpu0", "gpu1", ("w01", "g1", "g0")),
        ("gpu1", "gpu2", ("g0", "bus", "g2")),  # begins elsewhere
        ("gpu0", "gpu2", ("g0", "g2")),  # a gap
        ("gpu1", "gpu0", ("g1", "g0")),  # a second link of the pair
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [True, False])
def test_bad_links(link: tuple[str, str, tuple[str, ...]], first: bool):
    right = [Link("gpu1", "gpu0", ("w01",))]
    more = [Link("gpu2", "gpu1", ("g2", "bus", "g1"))] * first
    got = re.escape(f"(got {link[0]!r} to {link[1]!r} by {', '.join(link[2])})")
    with pytest.raises(ValueError, match=rf"^links\[1\] must be the only one of its pair.* {got}"):
        make(links=[*right, Link(*link), *more])


@named(
    "link, wrong",
    {
        "source": (("gpu9", "gpu1", ("w01",)), "'gpu9', which this topology lacks; did you mean 'gpu"),
        "destination": (("gpu0", "plx", ("g0",)), "'plx', which this topology lacks"),
        "connection": (("gpu0", "gpu1", ("w10",)), "'w10', which this topology lacks; did you mean 'w01'?"),
    },
)
def test_links_of_unknown_names(link: tuple[str, str, tuple[str, ...]], wrong: str):
    with pytest.raises(ValueError, match=re.escape(f"links[0] names {wrong}")):
        make(links=[Link(*link)])


@pytest.mark.parametrize(
    "link, message",
    [
        ((1, "b", ("w",)), "src must be the name of a device (got 1)"),
        (("a", ["b"], ("w",)), "dst must be the name of a device (got ['b'])"),
        (("a", "b", "w"), "route must be a sequence of connection names (got 'w')"),
        (("a", "b", None), "route must be a sequence of connection names (got None)"),
        (("a", "b", ("w", {})), "route[1] must be the name of a connection (got {})"),
    ],
    ids=str,
)
def test_links_of_wrong_types(link: tuple[Any, ...], message: str):
    with pytest.raises(TypeError) as caught:
        Link(*link)
    assert str(caught.value) == message


def test_restrict_keeps_the_first_devices_and_what_joins_them():
    pair = make().restrict(2)
    assert [device.name for device in pair.devices] == ["gpu0", "gpu1"]
    assert [wire.name for wire in pair.connections] == ["w01", "g0", "g1", "bus"]
    assert pair.links == (Link("gpu0", "gpu1", ("w01",)), Link("gpu1", "gpu0", ("w01",)))
    assert pair.name == "t[:2]"


def test_restrict_to_all_devices_is_the_topology_itself():
    topology = make()
    assert topology.restrict(3) is topology


@pytest.mark.parametrize(
    "size, error",
    [(0, ValueError), (4, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError)],
)
def test_restrict_refuses_other_sizes(size: Any, error: type[Exception]):
    with pytest.raises(error, match=r"num_devices of .* must be"):
        make().restrict(size)
