"""Random machines and relations for property tests: small, and as awkward as the format allows."""

from hypothesis import strategies as st

from dgcl.planner import Relation
from dgcl.topology import Connection, Device, Link, Topology

BANDWIDTHS = st.sampled_from([0.5, 1.0, 2.0, 3.7, 10.0, 48.35])
LATENCIES = st.sampled_from([0.0, 0.0, 1e-6, 2.5e-5])


@st.composite
def topologies(draw: st.DrawFn, min_devices: int = 1, max_devices: int = 5, latency: bool = True) -> Topology:
    """Devices and switches joined at random: parallel, half-duplex, one-way links, pairs without a link."""
    num_devices = draw(st.integers(min_devices, max_devices))
    num_switches = draw(st.integers(0, 3))
    devices = tuple(
        Device(f"d{r}", machine=draw(st.integers(0, 1)), socket=draw(st.integers(0, 1)))
        for r in range(num_devices)
    )
    ends = [d.name for d in devices] + [f"s{i}" for i in range(num_switches)]
    wires = st.tuples(st.integers(0, len(ends) - 1), st.integers(0, len(ends) - 1)).filter(
        lambda w: w[0] != w[1]
    )
    pairs = draw(st.lists(wires, max_size=12)) if len(ends) > 1 else []
    connections = tuple(
        Connection(
            f"c{i}",
            draw(st.sampled_from(["NV", "PCIe"])),
            ends[a],
            ends[b],
            draw(BANDWIDTHS),
            draw(LATENCIES) if latency else 0.0,
            draw(st.sampled_from(["full", "full", "half"])),
        )
        for i, (a, b) in enumerate(pairs)
    )
    derived = Topology("random", devices, connections)
    if not draw(st.booleans()):
        return derived
    by_ends: dict[frozenset[str], list[str]] = {}
    for c in connections:
        by_ends.setdefault(frozenset((c.a, c.b)), []).append(c.name)
    links = []
    for link in derived.links:
        if draw(st.integers(0, 4)) == 0:
            continue  # a pair, in one direction, without a link
        route = []
        for name in link.route:  # any of the parallel wires
            c = connections[int(name[1:])]
            route.append(draw(st.sampled_from(by_ends[frozenset((c.a, c.b))])))
        links.append(Link(link.src, link.dst, tuple(route)))
    return Topology("random", devices, connections, tuple(links))


def reachable_from(topology: Topology, source: int) -> set[int]:
    """Ranks that a chain of links leads to from `source`, itself left out; a search, independent of the
    planner.
    """
    rank = {d.name: r for r, d in enumerate(topology.devices)}
    seen, front = {source}, [source]
    while front:
        at = front.pop()
        for link in topology.links:
            if rank[link.src] == at and rank[link.dst] not in seen:
                seen.add(rank[link.dst])
                front.append(rank[link.dst])
    return seen - {source}


@st.composite
def relations(
    draw: st.DrawFn,
    topology: Topology,
    max_classes: int = 6,
    max_count: int = 50,
    max_total: int | None = None,
) -> Relation:
    """Classes whose destinations can be reached on `topology`."""
    classes = []
    left = max_total
    for source in range(topology.num_devices):
        reach = sorted(reachable_from(topology, source))
        if not reach:
            continue
        for dests in draw(
            st.lists(st.sets(st.sampled_from(reach), min_size=1), max_size=max_classes, unique_by=frozenset)
        ):
            count = draw(st.integers(1, max_count))
            if left is not None:
                count = min(count, left)
                left -= count
            if count:
                classes.append((source, dests, count))
    return Relation.from_classes(topology.num_devices, classes)


@st.composite
def instances(
    draw: st.DrawFn,
    min_devices: int = 1,
    max_devices: int = 5,
    latency: bool = True,
    max_classes: int = 6,
    max_count: int = 50,
    max_total: int | None = None,
) -> tuple[Relation, Topology]:
    """A machine and a relation that it can serve."""
    topology = draw(topologies(min_devices, max_devices, latency))
    return draw(relations(topology, max_classes, max_count, max_total)), topology
