"""Plans that no planner made, of hand-drawn and random trees: programs and runtime stand on their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.graph import Graph, as_graph
from dgcl.planner import Plan, Relation, Trees
from dgcl.prepare.share import Share
from dgcl.program import Program, compile_programs
from dgcl.program.exchange import Exchange
from dgcl.relation import Demand, ItemClasses, build_classes, halo_demand
from dgcl.topology import Connection, Device, Topology
from tests.support.local_graphs import local_graph_of
from tests.support.proof import prove

#: A tree: (sender, receiver, stage) of each edge, parents first.
Tree = list[tuple[int, int, int]]
#: (source, destinations, vertices, world size) -> (tree, how many of the vertices use it), one or more.
TreeMaker = Callable[[int, list[int], int, int], list[tuple[Tree, int]]]


def direct(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
    """Peer to peer, one stage."""
    return [([(source, dest, 0) for dest in dests], count)]


def along_line(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
    """From neighbour to neighbour on the line 0-1-2-..., both ways."""
    up = [(rank, rank + 1, rank - source) for rank in range(source, max(dests))]
    down = [(rank, rank - 1, source - rank) for rank in range(source, min(dests), -1)]
    return [([*up, *down], count)]


def through_hub(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
    """Everything over rank 0, needed there or not."""
    if source == 0:
        return direct(source, dests, count, world_size)
    others = [dest for dest in dests if dest != 0]
    return [([(source, 0, 0), *((0, dest, 1) for dest in others)], count)]


def in_chain(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
    """From each destination to the next one."""
    path = [source, *dests]
    return [([(a, b, stage) for stage, (a, b) in enumerate(itertools.pairwise(path))], count)]


def at_random(seed: int) -> TreeMaker:
    """Spanning trees over the destinations and random relays, with random waits; several per class."""

    def make(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
        generator = np.random.default_rng([seed, source, count, *dests])  # the same for the same class
        cuts = generator.choice(np.arange(1, count), min(generator.integers(3), count - 1), replace=False)
        shares = np.diff([0, *sorted(cuts.tolist()), count])
        return [(_random_tree(generator, source, dests, world_size), int(share)) for share in shares]

    return make


def _random_tree(generator: np.random.Generator, source: int, dests: list[int], world_size: int) -> Tree:
    last_stage = max(0, world_size - 2)
    others = [rank for rank in range(world_size) if rank != source and rank not in dests]
    relays = generator.permutation(others)[: generator.integers(len(others) + 1)].tolist()
    entered = {source: -1}  # rank -> stage
    tree: Tree = []
    for rank in generator.permutation([*dests, *relays]).tolist():
        open_ranks = [known for known, stage in entered.items() if stage < last_stage]
        parent = int(generator.choice(open_ranks))
        stage = int(generator.integers(entered[parent] + 1, last_stage + 1))
        entered[rank] = stage
        tree.append((parent, rank, stage))
    while True:  # a relay that feeds nobody has no place in a tree
        senders = {edge[0] for edge in tree}
        pruned = [edge for edge in tree if edge[1] in dests or edge[1] in senders]
        if len(pruned) == len(tree):
            return tree
        tree = pruned


def wandering(seed: int) -> TreeMaker:
    """From destination to destination in random order, with detours over two ranks that do not need the row.

    Long ways in all directions: who writes has often heard, over others, of what the receiver has sent.
    """

    def make(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
        generator = np.random.default_rng([seed, source, *dests])
        path = [source, *generator.permutation(dests).tolist()]
        others = generator.permutation([rank for rank in range(world_size) if rank not in path])
        for rank in others[: min(2, world_size - len(path))].tolist():
            path.insert(int(generator.integers(1, len(path))), rank)
        return [([(a, b, stage) for stage, (a, b) in enumerate(itertools.pairwise(path))], count)]

    return make


TREES: dict[str, TreeMaker] = {
    "direct": direct,
    "line": along_line,
    "hub": through_hub,
    "chain": in_chain,
    "random-1": at_random(1),
    "random-2": at_random(2),
}


def make_plan(relation: Relation, make_trees: TreeMaker, method: str = "by hand") -> Plan:
    """A plan of the trees that ``make_trees`` gives for each class."""
    made: list[tuple[int, Tree, int]] = []
    for c in range(relation.num_classes):
        shares = make_trees(
            int(relation.source[c]), relation.dest_ranks(c), int(relation.count[c]), relation.world_size
        )
        made += [(c, tree, count) for tree, count in shares]
    edges = np.array([edge for _, tree, _ in made for edge in tree], np.int32).reshape(-1, 3)
    trees = Trees(
        np.array([c for c, _, _ in made], np.int32),
        np.array([count for _, _, count in made], np.int64),
        np.cumsum([0, *(len(tree) for _, tree, _ in made)]),
        edges[:, 0],
        edges[:, 1],
        edges[:, 2],
    )
    num_stages = trees.num_stages
    meta: dict[str, Any] = {
        "method": method,
        "world_size": relation.world_size,
        "row_bytes": 512,
        "stage_seconds": [1.0] * num_stages,
        "predicted_seconds": float(num_stages),
        "lower_bound_seconds": float(num_stages),
        "gap": 0.0,
        "direct_seconds": None,
        "planning_seconds": 0.0,
        "fingerprint": "",
    }
    return Plan(relation, trees, all_to_all(relation.world_size), meta)


def all_to_all(world_size: int) -> Topology:
    """A machine on which every pair has a wire of its own."""
    ranks = range(world_size)
    return Topology(
        name="all-to-all",
        devices=tuple(Device(f"device{rank}") for rank in ranks),
        connections=tuple(
            Connection(f"{a}-{b}", "wire", f"device{a}", f"device{b}", 1.0) for b in ranks for a in range(b)
        ),
    )


@dataclass(frozen=True, eq=False)
class World:
    """A graph dealt to ranks, a plan for it, and its programs, proved."""

    graph: Graph
    part: np.ndarray
    world_size: int
    demand: Demand
    classes: ItemClasses
    plan: Plan
    programs: list[Program]

    @property
    def planned_rows(self) -> np.ndarray:
        """``(P, P)`` rows that the plan sends from each rank to each, counted edge by edge."""
        trees = self.plan.trees
        rows = np.zeros((self.world_size, self.world_size), np.int64)
        for tree in range(trees.num_trees):
            for edge in range(int(trees.edge_ptr[tree]), int(trees.edge_ptr[tree + 1])):
                rows[trees.edge_src[edge], trees.edge_dst[edge]] += trees.tree_count[tree]
        return rows

    def shares(self, *others: tuple[str, World]) -> list[Share]:
        """What each rank needs of this world's exchange, and of those of ``others``, by their names."""
        locals_ = [local_graph_of(self.graph, each.owned_ids, each.halo_ids) for each in self.programs]
        sizes = (self.graph.num_nodes, self.graph.num_edges)
        named = (("halo", self), *others)
        return [
            Share(tuple(Exchange(name, each.plan, each.programs[rank]) for name, each in named), local, sizes)
            for rank, local in enumerate(locals_)
        ]


def make_world(
    edges: Sequence[tuple[int, int]] | np.ndarray,
    part: Sequence[int] | np.ndarray,
    world_size: int,
    trees: TreeMaker | str = "direct",
) -> World:
    """The world of a graph given as (u, v) pairs; every vertex has an entry in ``part``."""
    owners = np.asarray(part, np.int32)
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    graph = as_graph(pairs.T.copy(), num_nodes=len(owners))
    demand = halo_demand(graph, owners, world_size)
    classes = build_classes(demand)
    maker = TREES[trees] if isinstance(trees, str) else trees
    plan = make_plan(classes.relation, maker, trees if isinstance(trees, str) else "by hand")
    programs = compile_programs(plan, classes)
    prove(programs, demand)
    return World(graph, owners, world_size, demand, classes, plan, programs)


def random_world(
    seed: int,
    world_size: int,
    trees: TreeMaker | str = "direct",
    *,
    num_nodes: int = 60,
    num_edges: int = 300,
    empty: Sequence[int] = (),
) -> World:
    """A random graph on random parts; the ranks in ``empty`` own nothing."""
    generator = np.random.default_rng(seed)
    owners = [rank for rank in range(world_size) if rank not in empty]
    part = generator.choice(owners, num_nodes)
    edges = generator.integers(0, num_nodes, (num_edges, 2))
    return make_world(edges, part, world_size, trees)
