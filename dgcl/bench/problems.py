"""Makes what a benchmark exchanges: from a graph and its parts, a relation, or a textbook pattern such as allgather.

All become a :class:`Problem`: a graph and the owner of every vertex, from which `dgcl/prepare/shares` makes plans as
for any user. A relation says only which rank needs which vertex; each need becomes one edge, from the vertex to some
vertex of that rank. A rank that owns nothing in the relation gets a vertex that nobody wants.

Called by `barrier`, `records`, `dgcl/cli/bench` and `dgcl/cli/bench_cases`. Free to change while each rank needs
exactly the rows that it was to need, and a saved problem is loaded as it was (`tests/dgcl/bench/test_problems.py`).
"""

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph, as_graph
from dgcl.planner import Relation
from dgcl.planner.array_types import ranges
from dgcl.relation.classes import ItemClasses, halo_classes
from dgcl.topology.checks import check_choice

#: Other rows for each other rank; the same rows for all; rows for the next rank.
PATTERNS = ("alltoall", "allgather", "ring")


@dataclass(frozen=True, eq=False)
class Problem:
    """Who owns which vertex, and who needs it.

    Attributes:
        name: What it is, for people.
        graph: Its edges say who needs whom.
        part: ``(N,)`` int32, the owner of each vertex.
        world_size: Number of ranks.
    """

    name: str
    graph: Graph
    part: NDArray[np.int32]
    world_size: int

    @cached_property
    def classes(self) -> ItemClasses:
        """The vertices that other ranks want, in classes."""
        return halo_classes(self.graph, self.part, self.world_size)

    @property
    def deliveries(self) -> int:
        """Halo rows of all ranks together."""
        return self.classes.relation.deliveries


def from_relation(name: str, relation: Relation) -> Problem:
    """A problem with this relation: vertices numbered class by class, after one for each rank that would own
    none."""
    world_size = relation.world_size
    bare = np.setdiff1d(np.arange(world_size), relation.source)
    first = len(bare) + np.cumsum(relation.count) - relation.count
    part = np.concatenate([bare, np.repeat(relation.source, relation.count)])
    _, reader = np.unique(part, return_index=True)
    classes, ranks = np.nonzero(relation.dest_matrix())
    sizes = relation.count[classes]
    edges = np.stack([ranges(first[classes], sizes), np.repeat(reader[ranks], sizes)])
    return Problem(name, as_graph(edges, len(part)), part.astype(np.int32), world_size)


def from_pattern(pattern: str, world_size: int, rows: int) -> Problem:
    """A textbook pattern (:data:`PATTERNS`) in which a rank receives ``rows`` rows from each rank that sends
    to it."""
    check_choice(pattern, "pattern", PATTERNS)
    classes: list[tuple[int, set[int], int]] = []
    for rank in range(world_size):
        others = set(range(world_size)) - {rank}
        readers = {(rank + 1) % world_size} & others if pattern == "ring" else others
        if pattern == "allgather":
            classes += [(rank, readers, rows)] if readers else []
        else:
            classes += [(rank, {reader}, rows) for reader in sorted(readers)]
    return from_relation(pattern, Relation.from_classes(world_size, classes))


def save_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a problem, for the rank that is to load it."""
    graph = problem.graph
    np.savez(
        path,
        name=problem.name,
        world_size=problem.world_size,
        part=problem.part,
        num_nodes=graph.num_nodes,
        indptr=graph.indptr,
        indices=graph.indices,
    )


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read what :func:`save_problem` wrote. Edge ids are not kept: a benchmark has no data on edges."""
    with np.load(path, allow_pickle=False) as file:
        graph = Graph(int(file["num_nodes"]), file["indptr"], file["indices"])
        return Problem(str(file["name"]), graph, file["part"], int(file["world_size"]))
