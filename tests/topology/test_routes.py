"""Which route a link takes: hand-made cases, an exhaustive search over all routes, and large machines."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.topology import Connection, Device, Topology
from tests.support.samples import named

Route = tuple[str, ...]


def all_routes(
    src: str, dst: str, devices: set[str], connections: list[Connection]
) -> Iterator[list[Connection]]:
    """Every route from src to dst that visits no endpoint twice and no device on the way."""

    def extend(at: str, seen: set[str], so_far: list[Connection]) -> Iterator[list[Connection]]:
        for wire in connections:
            if at in (wire.a, wire.b):
                other = wire.b if at == wire.a else wire.a
                if other == dst:
                    yield [*so_far, wire]
                elif other not in seen and other not in devices:
                    yield from extend(other, seen | {other}, [*so_far, wire])

    yield from extend(src, {src}, [])


def oracle(devices: list[str], connections: list[Connection]) -> dict[tuple[str, str], Route]:
    """The rule of the format read literally: widest, then shortest, then smallest list of names."""
    best = {}
    for src in devices:
        for dst in devices:
            routes = list(all_routes(src, dst, set(devices), connections)) if src != dst else []
            if routes:
                best[src, dst] = min(
                    (-min(wire.bandwidth for wire in route), len(route), [wire.name for wire in route])
                    for route in routes
                )
    return {pair: tuple(names) for pair, (_, _, names) in best.items()}


def derived(devices: list[str], connections: list[Connection]) -> dict[tuple[str, str], Route]:
    topology = Topology("t", tuple(Device(name) for name in devices), tuple(connections))
    links = {(link.src, link.dst): link.route for link in topology.links}
    assert len(links) == len(topology.links)
    return links


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[str], list[Connection]]:
    """Small random multigraphs of devices and switches, with few speeds (ties) or many."""
    num_devices = draw(st.integers(1, 5))
    devices = [f"d{i}" for i in range(num_devices)]
    ends = devices + [f"s{i}" for i in range(draw(st.integers(0, 4)))]
    if len(ends) < 2:
        return devices, []
    speeds = draw(st.sampled_from([(1.0,), (1.0, 2.0), (1.0, 2.0, 3.0, 5.0, 8.0, 13.0)]))
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(ends), st.sampled_from(ends)).filter(lambda p: p[0] != p[1]),
            max_size=11,
        )
    )
    names = draw(st.permutations([f"c{i}" for i in range(len(pairs))]))
    connections = [
        Connection(
            name,
            "X",
            a,
            b,
            draw(st.sampled_from(speeds)),
            latency=draw(st.sampled_from([0.0, 1e-6])),
            duplex=draw(st.sampled_from(["full", "half"])),
        )
        for name, (a, b) in zip(names, pairs, strict=True)
    ]
    return devices, connections


@given(machines())
def test_derived_links_are_those_of_an_exhaustive_search(machine: tuple[list[str], list[Connection]]):
    assert derived(*machine) == oracle(*machine)


@given(machines(), st.data())
def test_restriction_and_derivation_commute(machine: tuple[list[str], list[Connection]], data: st.DataObject):
    devices, connections = machine
    topology = Topology("t", tuple(Device(name) for name in devices), tuple(connections))
    part = topology.restrict(data.draw(st.integers(1, len(devices))))
    assert Topology(part.name, part.devices, part.connections) == part


# Connections as "name:end-end" or "name:end-end@GB/s" (1 GB/s if not said).
CASES = {
    "wide beats short": ("slow:d0-d1 x:d0-s@2 y:s-d1@2", "x y"),
    "short beats a faster part of a route": ("z:d0-d1@2 a:d0-s@2 b:s-d1@9", "z"),
    "parallel: smallest name": ("q:d0-d1 p:d1-d0", "p"),
    "parallel: fastest": ("a:d0-d1 b:d0-d1@2", "b"),
    "names compare as text": ("c10:d0-d1 c9:d0-d1", "c10"),
    "names compare from the sender's end": ("b:d0-s c:s-d1 a:d0-t d:t-d1", "a d"),
    "never through a device": ("a:d0-d2@9 b:d2-d1@9 c:d0-d1", "c"),
    "a device does not route": ("a:d0-d2 b:d2-d1", None),
    "not joined": ("a:d0-s b:t-d1", None),
    "what exceeds the bottleneck does not matter": ("in:d0-s a:s-t b:s-u@9 c:u-t@9 out:t-d1", "in a out"),
    "around a narrow short cut": ("in:d0-s@2 a:s-t b:s-u@9 c:u-t@9 out:t-d1@2", "in b c out"),
}


def wires(text: str) -> list[Connection]:
    found = re.findall(r"(\S+):(\w+)-(\w+)(?:@(\d+))?", text)
    return [Connection(name, "X", a, b, float(speed or 1)) for name, a, b, speed in found]


@pytest.mark.parametrize("text, route", CASES.values(), ids=CASES.keys())
def test_route_from_d0_to_d1(text: str, route: str | None):
    devices = ["d0", "d1", "d2"]
    links = derived(devices, wires(text))
    assert links.get(("d0", "d1")) == (tuple(route.split()) if route else None)
    assert links == oracle(devices, wires(text))


def test_the_way_back_may_differ_because_names_are_read_from_its_own_end():
    links = derived(["d0", "d1"], wires("a:d0-s d:s-d1 b:d0-t c:t-d1"))
    assert links == {("d0", "d1"): ("a", "d"), ("d1", "d0"): ("c", "b")}


def hosts(num_hosts: int, gpus: int, speed: float = 0.0) -> Topology:
    """Hosts with two PCIe switches, two CPUs and a NIC on one fabric; each ``speed`` faster than the last."""
    devices, connections = [], []
    for h in range(num_hosts):
        wiring = [f"q:h{h}c0-h{h}c1", f"n:h{h}p0-fabric", *(f"p{p}:h{h}p{p}-h{h}c{p}" for p in range(2))]
        for g in range(gpus):
            devices.append(Device(f"h{h}g{g}", machine=h, socket=2 * g // gpus))
            wiring.append(f"g{g}:h{h}g{g}-h{h}p{2 * g // gpus}")
        for wire in wires(" ".join(wiring)):
            base = {"q": 9.0, "n": 6.0}.get(wire.name, 12.0)
            connections.append(replace(wire, name=f"h{h}{wire.name}", bandwidth=base * (1 + speed * h)))
    return Topology("hosts", tuple(devices), tuple(connections))


@named("speed", {"equal hosts": 0.0, "no two hosts alike": 0.01})
def test_hosts_on_a_fabric(speed: float):
    topology = hosts(16, 4, speed)
    links = {(link.src, link.dst): link.route for link in topology.links}
    assert len(links) == 64 * 63
    assert links["h0g0", "h0g1"] == ("h0g0", "h0g1")
    assert links["h0g0", "h0g2"] == ("h0g0", "h0p0", "h0q", "h0p1", "h0g2")
    assert links["h3g3", "h9g0"] == ("h3g3", "h3p1", "h3q", "h3p0", "h3n", "h9n", "h9g0")


@pytest.mark.slow
def test_a_thousand_devices():
    topology = hosts(128, 8, speed=0.001)
    assert len(topology.links) == 1024 * 1023
    assert topology.arrays().num_links == 1024 * 1023
