"""Which route a link takes: hand-made cases, an exhaustive search over all routes, and sizes that must stay cheap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.topology import Connection, Device, Topology
from dgcl.topology.routes import widest_bottlenecks

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
def test_derived_links_are_those_of_an_exhaustive_search(machine: tuple[list[str], list[Connection]]) -> None:
    assert derived(*machine) == oracle(*machine)


@given(machines(), st.randoms())
def test_the_order_of_the_file_does_not_matter(machine: tuple[list[str], list[Connection]], random) -> None:  # type: ignore[no-untyped-def]
    devices, connections = machine
    shuffled = random.sample(connections, len(connections))
    assert derived(devices, shuffled) == derived(devices, connections)


@given(machines(), st.data())
def test_restriction_and_derivation_commute(
    machine: tuple[list[str], list[Connection]], data: st.DataObject
) -> None:
    devices, connections = machine
    topology = Topology("t", tuple(Device(name) for name in devices), tuple(connections))
    part = topology.restrict(data.draw(st.integers(1, len(devices))))
    assert Topology(part.name, part.devices, part.connections) == part


@given(machines())
def test_bottlenecks_are_symmetric_and_zero_where_nothing_joins(
    machine: tuple[list[str], list[Connection]],
) -> None:
    devices, connections = machine
    width = widest_bottlenecks(devices, connections)
    assert (width == width.T).all()
    by_name = {wire.name: wire for wire in connections}
    expected = {
        pair: min(by_name[name].bandwidth for name in route)
        for pair, route in oracle(devices, connections).items()
    }
    for i, src in enumerate(devices):
        for j, dst in enumerate(devices):
            assert src == dst or width[i, j] == expected.get((src, dst), 0.0)


def wire(name: str, a: str, b: str, bandwidth: float = 1.0) -> Connection:
    return Connection(name, "X", a, b, bandwidth)


@pytest.mark.parametrize(
    ("connections", "route"),
    [
        pytest.param([wire("slow", "d0", "d1", 1.0), wire("x", "d0", "s", 2.0), wire("y", "s", "d1", 2.0)], ("x", "y"), id="wide beats short"),
        pytest.param([wire("z", "d0", "d1", 2.0), wire("a", "d0", "s", 2.0), wire("b", "s", "d1", 9.0)], ("z",), id="short beats a faster part of a route"),
        pytest.param([wire("q", "d0", "d1", 2.0), wire("p", "d1", "d0", 2.0)], ("p",), id="parallel: smallest name"),
        pytest.param([wire("a", "d0", "d1", 1.0), wire("b", "d0", "d1", 2.0)], ("b",), id="parallel: fastest"),
        pytest.param([wire("c10", "d0", "d1"), wire("c9", "d0", "d1")], ("c10",), id="names compare as text"),
        pytest.param(
            [wire("b", "d0", "s"), wire("c", "s", "d1"), wire("a", "d0", "t"), wire("d", "t", "d1")],
            ("a", "d"),
            id="names compare from the sender's end",
        ),
        pytest.param(
            [wire("a", "d0", "s"), wire("d", "s", "d1"), wire("b", "d0", "t"), wire("c", "t", "d1")],
            ("a", "d"),
            id="the first name decides, not the last",
        ),
        pytest.param([wire("a", "d0", "d2", 9.0), wire("b", "d2", "d1", 9.0), wire("c", "d0", "d1", 1.0)], ("c",), id="never through a device"),
        pytest.param([wire("a", "d0", "d2"), wire("b", "d2", "d1")], None, id="a device does not route"),
        pytest.param([wire("a", "d0", "s"), wire("b", "t", "d1")], None, id="not joined"),
        pytest.param(
            [wire("in", "d0", "s", 1.0), wire("a", "s", "t", 1.0), wire("b", "s", "u", 9.0), wire("c", "u", "t", 9.0), wire("out", "t", "d1", 1.0)],
            ("in", "a", "out"),
            id="what exceeds the bottleneck does not matter",
        ),
        pytest.param(
            [wire("in", "d0", "s", 2.0), wire("a", "s", "t", 1.0), wire("b", "s", "u", 9.0), wire("c", "u", "t", 9.0), wire("out", "t", "d1", 2.0)],
            ("in", "b", "c", "out"),
            id="around a narrow short cut",
        ),
    ],
)  # fmt: skip
def test_route_from_d0_to_d1(connections: list[Connection], route: Route | None) -> None:
    devices = ["d0", "d1", "d2"]
    links = derived(devices, connections)
    assert links.get(("d0", "d1")) == route
    assert links == oracle(devices, connections)


def test_the_way_back_may_differ_because_names_are_read_from_its_own_end() -> None:
    connections = [wire("a", "d0", "s"), wire("d", "s", "d1"), wire("b", "d0", "t"), wire("c", "t", "d1")]
    links = derived(["d0", "d1"], connections)
    assert links == {("d0", "d1"): ("a", "d"), ("d1", "d0"): ("c", "b")}


def hosts(num_hosts: int, gpus: int, speed: float = 0.0) -> Topology:
    """Hosts with two PCIe switches, two CPUs and a NIC on one fabric; each host ``speed`` faster than the one before."""
    devices, connections = [], []
    for h in range(num_hosts):
        extra = 1.0 + speed * h
        for g in range(gpus):
            devices.append(Device(f"h{h}g{g}", machine=h, socket=2 * g // gpus))
            connections.append(wire(f"h{h}g{g}", f"h{h}g{g}", f"h{h}p{2 * g // gpus}", 12.0 * extra))
        connections += [wire(f"h{h}p{p}", f"h{h}p{p}", f"h{h}c{p}", 12.0 * extra) for p in range(2)]
        connections += [
            wire(f"h{h}q", f"h{h}c0", f"h{h}c1", 9.0 * extra),
            wire(f"h{h}n", f"h{h}p0", "fabric", 6.0 * extra),
        ]
    return Topology("hosts", tuple(devices), tuple(connections))


@pytest.mark.parametrize("speed", [0.0, 0.01], ids=["equal hosts", "no two hosts alike"])
def test_hosts_on_a_fabric(speed: float) -> None:
    topology = hosts(16, 4, speed)
    links = {(link.src, link.dst): link.route for link in topology.links}
    assert len(links) == 64 * 63
    assert links["h0g0", "h0g1"] == ("h0g0", "h0g1")
    assert links["h0g0", "h0g2"] == ("h0g0", "h0p0", "h0q", "h0p1", "h0g2")
    assert links["h3g3", "h9g0"] == ("h3g3", "h3p1", "h3q", "h3p0", "h3n", "h9n", "h9g0")


@pytest.mark.slow
def test_a_thousand_devices() -> None:
    topology = hosts(128, 8, speed=0.001)
    assert len(topology.links) == 1024 * 1023
    assert topology.arrays().num_links == 1024 * 1023
