"""What :mod:`tests.planner.methods.test_make_plan` shares with other tests."""

from dgcl.planner import Relation
from dgcl.topology import Topology
from tests.support.planner_oracle import classes_of


def has_the_links(method: str, relation: Relation, topology: Topology) -> bool:
    """Whether the links that a method cannot do without are there."""
    have = {(link.src, link.dst) for link in topology.links}
    names = [d.name for d in topology.devices]
    ways = {(source, d) for source, dests, _ in classes_of(relation) for d in dests}
    return method != "direct" or {(names[s], names[d]) for s, d in ways} <= have
