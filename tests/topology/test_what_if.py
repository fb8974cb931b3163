"""Machines with wires out, in, faster and slower: routes by hand, and what stays as it was."""

import pytest

from dgcl.topology import Connection, Device, Link, Topology, preset
from dgcl.topology.what_if import changed, select
from tests.support.samples import named

DGX1 = preset("dgx1")
OVER_CPU = ("gpu0-plx0", "plx0-cpu0", "plx1-cpu0", "gpu3-plx1")
# gpu0 and gpu1 over a slow switch by a link that is given, though a fast wire joins them; gpu1 reaches nobody.
GIVEN = Topology(
    "given",
    tuple(Device(f"gpu{g}") for g in range(3)),
    (
        Connection("w", "NV1", "gpu0", "gpu1", 20.0),
        *(Connection(f"p{g}", "PCIe", f"gpu{g}", "x-1", 5.0) for g in range(3)),
    ),
    (Link("gpu0", "gpu1", ("p0", "p1")), Link("gpu0", "gpu2", ("p0", "p2"))),
)


def routes(topology: Topology) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(link.src, link.dst): link.route for link in topology.links}


@named(
    "machine, change, pair, route",
    {
        "a wire goes": (DGX1, {"without": ["gpu0-gpu3"]}, ("gpu0", "gpu3"), OVER_CPU),
        "a switch goes": (DGX1, {"without": ["cpu0"]}, ("gpu0", "gpu6"), None),
        "what is given stays": (GIVEN, {"without": ["w"]}, ("gpu0", "gpu1"), ("p0", "p1")),
        "what is given and gone is derived": (GIVEN, {"without": ["p1"]}, ("gpu0", "gpu1"), ("w",)),
        "a slow wire is still the way": (
            DGX1,
            {"scale": ["gpu0-gpu3=0.01"]},
            ("gpu0", "gpu3"),
            ("gpu0-gpu3",),
        ),
        "a new wire is taken": (DGX1, {"add": ["NV2:gpu0-gpu6"]}, ("gpu6", "gpu0"), ("gpu0-gpu6",)),
        "names may have a dash": (GIVEN, {"add": ["PCIe:gpu2-x-1"]}, ("gpu0", "gpu2"), ("p0", "p2")),
    },
)
def test_routes(machine: Topology, change: dict, pair: tuple[str, str], route: tuple[str, ...] | None):
    after = changed(machine, **change)
    assert routes(after).get(pair) == route
    gone = {wire.name for wire in machine.connections} - {wire.name for wire in after.connections}
    new = {wire.name for wire in after.connections} - {wire.name for wire in machine.connections}
    for link in after.links:  # every other link is as it was
        assert not gone & {*link.route}
        before = routes(machine)[link.src, link.dst]
        assert link.route == before or gone & {*before} or new & {*link.route}


@named(
    "change, rate",
    {
        "a factor": ({"scale": ["cpu0-cpu1=0.5"]}, {"cpu0-cpu1": 9.56 / 2}),
        "twice": ({"scale": ["QPI=2", "cpu1-cpu0=3"]}, {"cpu0-cpu1": 6 * 9.56}),
        "more NVLinks": ({"add": ["NV4:gpu0-gpu4"]}, {"gpu0-gpu4": 48.35 + 4 * 24.22}),
        "as fast as they are": ({"scale": ["NV1=9"], "add": ["NV2:gpu0-gpu6"]}, {"gpu0-gpu6": 48.35}),
    },
)
def test_rates(change: dict, rate: dict[str, float]):
    found = {wire.name: wire.bandwidth for wire in changed(DGX1, **change).connections}
    assert {name: found[name] for name in rate} == pytest.approx(rate)


@named(
    "change, message",
    {
        "no such wire": (
            {"without": ["gpu1-gpu9"]},
            r"without must name .*\(got 'gpu1-gpu9'\); did you mean 'gpu1-gpu",
        ),
        "no factor": ({"scale": ["QPI"]}, r"scale must name .*\(got ''\)"),
        "no number": ({"scale": ["QPI=x"]}, r"scale QPI= must be followed by a positive number \(got 'x'\)"),
        "not a number": ({"scale": ["QPI=nan"]}, "positive number"),
        "too fast": ({"scale": ["QPI=1e300"]}, "bandwidth of .* must be between"),
        "no such end": ({"add": ["NV1:gpu0-gpu16"]}, r"add must be KIND:END-END .*; did you mean 'gpu"),
        "unknown rate": ({"add": ["IB:gpu0-gpu1"]}, "add must say how fast IB is, .*: IB:gpu0-gpu1=GB/s"),
    },
)
def test_refused(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        changed(DGX1, **change)


def test_a_name_comes_before_a_kind():
    wires = [Connection("bus", "PCIe", "a", "b", 1.0), Connection("c", "bus", "a", "b", 1.0)]
    assert [select(wires, name) for name in ("bus", "c", "a-b", "PCIe", "b")] == [
        [0],
        [1],
        [0, 1],
        [0],
        [0, 1],
    ]
    pair = Topology("pair", (Device("a"), Device("b")), tuple(wires))
    assert changed(pair, scale=["bus=2"]).name == "pair, bus x 2"
