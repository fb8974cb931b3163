"""Changes a topology's wires for "what if" questions: takes some out, scales bandwidths, adds new ones.

>>> from dgcl.topology import preset
>>> changed(preset("dgx1"), without=["gpu0-gpu3"], scale=["QPI=2"]).name
'dgx1, without gpu0-gpu3, QPI x 2'

Called by `dgcl/cli/topologies` and `planner/reading/sensitivity`. Free to change while links keep their routes, except
where a wire is gone or a new one is better (`tests/topology/test_what_if.py`).
"""

import re
from collections.abc import Container, Sequence
from dataclasses import replace

from dgcl.topology.checks import check_number, nearest, shown
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Link
from dgcl.topology.routes import derive_routes


def changed(
    topology: Topology, *, without: Sequence[str] = (), scale: Sequence[str] = (), add: Sequence[str] = ()
) -> Topology:
    """A topology after some changes, in this order; its name says them.

    Links keep their routes, but for those whose wires are gone, and those for which a new wire is better: their routes
    are derived anew (:mod:`dgcl.topology.routes`). A pair that no switches join any more has no link; plans then go
    over other devices, and are refused by the pair's name where that is not possible either.

    Args:
        topology: The machine.
        without: Names of what is gone (:func:`select`).
        scale: ``NAME=FACTOR``: what has so many times its bandwidth.
        add: ``KIND:END-END`` or ``KIND:END-END=GB/s``: a wire between two ends. Without a rate it is as fast as the
            others of its kind, by the number of links where the kind says it (NV4).

    Raises:
        ValueError: A name that there is not, or a factor or rate that is no positive number.
    """
    wires, said = list(topology.connections), [topology.name]
    for name in without:
        gone = select(wires, name, "without")
        wires = [wire for i, wire in enumerate(wires) if i not in gone]
        said.append(f"without {name}")
    for text in scale:
        name, _, factor = text.rpartition("=")
        wires = scaled(wires, select(wires, name, "scale"), times := _number(factor, f"scale {name}="))
        said.append(f"{name} x {times:g}")
    old = {wire.name for wire in wires}
    ends = {*(device.name for device in topology.devices), *topology.switches}
    for text in add:
        _add(text, wires, topology.connections, ends)
        said.append(f"with {text}")
    links = _links(topology, wires, old) if without or add else topology.links
    return Topology(", ".join(said), topology.devices, tuple(wires), links) if said[1:] else topology


def select(wires: Sequence[Connection], name: str, field: str = "name") -> list[int]:
    """The positions of what is called so: a connection, all between two ends (``a-b``), of a kind, or at a switch.

    Raises:
        ValueError: There is no such thing.
    """
    names = [
        ({wire.name}, {f"{wire.a}-{wire.b}", f"{wire.b}-{wire.a}"}, {wire.kind}, {wire.a, wire.b})
        for wire in wires
    ]
    for way in range(4):
        if which := [i for i, each in enumerate(names) if name in each[way]]:
            return which
    kinds = ", ".join(dict.fromkeys(wire.kind for wire in wires))
    raise ValueError(
        f"{field} must name a connection, two ends as in a-b, a switch or a kind ({kinds}) (got {shown(name)})"
        f"{nearest(name, dict.fromkeys(word for each in names for word in sorted(each[1] | each[3])))}"
    )


def scaled(wires: Sequence[Connection], which: Container[int], factor: float) -> list[Connection]:
    """Connections, those at the positions ``which`` with so many times their bandwidth."""
    return [
        replace(wire, bandwidth=wire.bandwidth * factor) if i in which else wire
        for i, wire in enumerate(wires)
    ]


def _add(text: str, wires: list[Connection], known: Sequence[Connection], ends: set[str]) -> None:
    """Put a wire in, as fast as those that are known; beside one of its kind it makes that one wider."""
    kind, _, rest = text.partition(":")
    between, _, rate = rest.partition("=")
    splits = [(between[:i], between[i + 1 :]) for i, letter in enumerate(between) if letter == "-"]
    a, b = next((pair for pair in splits if pair[0] != pair[1] and ends.issuperset(pair)), ("", ""))
    if not (kind and a):
        raise ValueError(
            f"add must be KIND:END-END or KIND:END-END=GB/s, of ends that there are (got {shown(text)})"
            f"{nearest(between.partition('-')[2], sorted(ends))}"
        )
    family, links = _bundle(kind)
    similar = sorted(
        (wire for wire in known if _bundle(wire.kind)[0] == family), key=lambda wire: wire.kind != kind
    )
    if not (rate or similar):
        raise ValueError(
            f"add must say how fast {kind} is, which is not on this machine: {kind}:{between}=GB/s"
        )
    like = similar[0] if similar else Connection("-", kind, a, b, 1.0)
    bandwidth = like.bandwidth / _bundle(like.kind)[1] * links
    if rate:
        bandwidth = _number(rate, f"add {kind}:{between}=")
    for i, wire in enumerate(wires):
        if {wire.a, wire.b} == {a, b} and _bundle(wire.kind)[0] == family:
            wires[i] = replace(wire, bandwidth=wire.bandwidth + bandwidth)
            return
    name = f"{a}-{b} ({kind})" if any(wire.name == f"{a}-{b}" for wire in wires) else f"{a}-{b}"
    wires.append(Connection(name, kind, a, b, bandwidth, like.latency, like.duplex))


def _bundle(kind: str) -> tuple[str, int]:
    """The family of a kind and how many links it says that there are: NV4 is four."""
    match = re.fullmatch(r"(NV|XGMI)(\d+)", kind)
    return (match[1], int(match[2])) if match else (kind, 1)


def _number(text: str, what: str) -> float:
    try:
        return check_number(float(text), "it", positive=True)
    except ValueError:
        raise ValueError(f"{what} must be followed by a positive number (got {shown(text)})") from None


def _links(topology: Topology, wires: list[Connection], old: set[str]) -> tuple[Link, ...]:
    """Links as they were where their wires remain, and no route over a new wire is wider or shorter."""
    links = {(link.src, link.dst): link for link in topology.links}
    gone = {pair for pair, link in links.items() if not old.issuperset(link.route)}
    derived = {
        (src, dst): Link(src, dst, route)
        for src, dst, route in derive_routes([device.name for device in topology.devices], wires)
        if (src, dst) in gone or not old.issuperset(route)
    }
    return tuple(({pair: link for pair, link in links.items() if pair not in gone} | derived).values())
