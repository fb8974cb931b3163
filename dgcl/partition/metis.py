"""METIS k-way partitions of the undirected simple graph, at once or level by level, with no part left empty.

G. Karypis and V. Kumar, "Multilevel k-way partitioning scheme for irregular graphs", 1998; through pymetis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dgcl.topology import Topology

__all__ = ["MetisOptions", "device_levels", "metis_partition", "with_blocks"]

TINY = 50  # vertices per part below which k-way coarsens too far and leaves parts empty; bisection does not


@dataclass(frozen=True)
class MetisOptions:
    """How METIS is run.

    Attributes:
        seed: for its random choices; the same seed gives the same parts.
        balance_tolerance: how much heavier than the mean a part may be: 0.03 allows 3%.
    """

    seed: int = 0
    balance_tolerance: float = 0.03


@dataclass(frozen=True)
class _Adjacency:
    """An undirected simple graph.

    Neighbours of v are ``adjncy[xadj[v]:xadj[v + 1]]``; weights (N,) or None.
    """

    xadj: NDArray[np.int64]
    adjncy: NDArray[np.int64]
    weights: NDArray[np.int64] | None

    @property
    def num_nodes(self) -> int:
        return len(self.xadj) - 1

    def induced(self, members: NDArray[np.int64]) -> _Adjacency:
        """The subgraph on ``members`` (n,) ascending, renumbered 0..n-1; neighbours stay in their order."""
        from scipy.sparse import csr_array

        shape = (self.num_nodes, self.num_nodes)
        whole = csr_array((np.ones(len(self.adjncy), np.int8), self.adjncy, self.xadj), shape=shape)
        part = whole[members][:, members]
        xadj, adjncy = part.indptr.astype(np.int64), part.indices.astype(np.int64)
        return _Adjacency(xadj, adjncy, None if self.weights is None else self.weights[members])


def device_levels(topology: Topology) -> list[NDArray[np.int64]]:
    """Return the levels at which a topology's devices fall into groups, coarsest first.

    Each level gives every device's group, (P,); groups of a level lie within those of the level before, and a
    level that splits no group is left out. The last level has every device by itself.
    """
    devices = topology.devices
    keys: list[list[tuple[int, ...]]] = [
        [(device.machine,) for device in devices],
        [(device.machine, device.socket) for device in devices],
        [(rank,) for rank in range(len(devices))],
    ]
    levels: list[NDArray[np.int64]] = []
    groups_before = 1
    for level in keys:
        number = {key: i for i, key in enumerate(sorted(set(level)))}
        if len(number) > groups_before:
            levels.append(np.array([number[key] for key in level], np.int64))
            groups_before = len(number)
    return levels


def with_blocks(levels: Sequence[NDArray[np.int64]], block_of: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the levels with one more, of blocks of devices (P,), where these fit between two of them."""
    for place, level in enumerate(levels):
        if _is_within(level, block_of):
            coarser = list(levels[:place])
            return (
                [*coarser, block_of, *levels[place:]] if _splits(coarser, block_of, level) else list(levels)
            )
    return list(levels)


def _splits(coarser: list[NDArray[np.int64]], block_of: NDArray[np.int64], finer: NDArray[np.int64]) -> bool:
    """Whether blocks lie within the groups of the level before, and are more than these and fewer than the next."""
    before = coarser[-1] if coarser else np.zeros_like(block_of)
    counts = [len(np.unique(level)) for level in (before, block_of, finer)]
    return _is_within(block_of, before) and counts[0] < counts[1] < counts[2]


def _is_within(fine: NDArray[np.int64], coarse: NDArray[np.int64]) -> bool:
    """Whether each group of one level lies in one group of another."""
    return len(np.unique(np.stack([fine, coarse]), axis=1).T) == len(np.unique(fine))


def metis_partition(
    xadj: NDArray[np.int64],
    adjncy: NDArray[np.int64],
    levels: Sequence[NDArray[np.int64]],
    *,
    weights: NDArray[np.int64] | None = None,
    options: MetisOptions | None = None,
) -> NDArray[np.int32]:
    """Partition an undirected simple graph over devices, level by level.

    Args:
        xadj: (N + 1,) row pointers.
        adjncy: (M,) neighbours, both directions, no loops, no repeats.
        levels: of :func:`device_levels`; P devices with P <= N. Cutting first between the groups of the
            coarsest level keeps most traffic off the slowest connections. Targets are in proportion to
            devices.
        weights: (N,) vertex weights; None: all alike.
        options: seed and tolerance. The tolerance holds for the result of all levels together.

    Returns:
        (N,) int32, the device of each vertex; every device has at least one.
    """
    options = options or MetisOptions()
    graph = _Adjacency(xadj, adjncy, weights)
    if not levels:
        return np.zeros(graph.num_nodes, np.int32)
    tolerance = (1 + options.balance_tolerance) ** (1 / len(levels)) - 1
    part = np.zeros(graph.num_nodes, np.int32)
    members, devices = np.arange(graph.num_nodes), np.arange(len(levels[-1]))
    heavy = members[:0] if weights is None else heavy_vertices(weights, len(devices))
    if len(heavy):
        part[heavy], devices = devices[: len(heavy)], devices[len(heavy) :]
        members = np.delete(members, heavy)
        graph = graph.induced(members)
    _split(graph, members, devices, levels, MetisOptions(options.seed, tolerance), part)
    return part


def heavy_vertices(weights: NDArray[np.int64], num_parts: int) -> NDArray[np.int64]:
    """Vertices that each weigh more than a part of the others can, heaviest first: each fills a part by itself."""
    rest = int(weights.sum())
    heaviest = np.argsort(-weights, kind="stable")[:num_parts]
    for count, vertex in enumerate(heaviest):
        if weights[vertex] * (num_parts - count) <= rest:
            return heaviest[:count]
        rest -= int(weights[vertex])
    return heaviest[:0]


def _split(
    graph: _Adjacency,
    members: NDArray[np.int64],
    devices: NDArray[np.int64],
    levels: Sequence[NDArray[np.int64]],
    options: MetisOptions,
    part: NDArray[np.int32],
) -> None:
    """Spread the vertices `members`, on which `graph` is induced, over `devices`; write to `part`."""
    if len(devices) == 1:
        part[members] = devices[0]
        return
    groups, device_group = np.unique(levels[0][devices], return_inverse=True)
    if len(groups) == 1:
        _split(graph, members, devices, levels[1:], options, part)
        return
    num_devices = np.bincount(device_group)
    labels = _run(graph, num_devices, options)
    ensure_minimum(labels, num_devices, np.diff(graph.xadj))
    for group in range(len(groups)):
        inside = np.flatnonzero(labels == group)
        mine = devices[device_group == group]
        if len(mine) == 1:
            part[members[inside]] = mine[0]
        else:
            _split(graph.induced(inside), members[inside], mine, levels[1:], options, part)


def _run(graph: _Adjacency, num_devices: NDArray[np.int64], options: MetisOptions) -> NDArray[np.int64]:
    """Call METIS once: labels (N,) of groups whose target weights are as their numbers of devices."""
    import pymetis

    num_groups = len(num_devices)
    even = bool((num_devices == num_devices[0]).all())
    shares = num_devices / num_devices.sum()
    try:
        result = pymetis.part_graph(
            num_groups,
            pymetis.CSRAdjacency(graph.xadj, graph.adjncy),
            vweights=graph.weights,
            tpwgts=None if even else (shares / shares.sum()).tolist(),
            recursive=graph.num_nodes < TINY * num_groups,
            options=pymetis.Options(
                seed=options.seed, ufactor=max(1, round(1000 * options.balance_tolerance))
            ),
        )
    except RuntimeError as error:  # of a few words; seen on a machine whose memory was full
        raise MemoryError(
            f"METIS gave up on {graph.num_nodes} vertices and {len(graph.adjncy)} edges ({error}), most likely for want"
            " of memory; free some, take partition='range' or 'random', or give part"
        ) from error
    return np.array(result.vertex_part, np.int64)


def ensure_minimum(labels: NDArray[np.int64], minimum: NDArray[np.int64], degrees: NDArray[np.int64]) -> None:
    """Move vertices, in place, until group g has at least ``minimum[g]``; there must be enough in all.

    METIS may leave a group with fewer vertices than it has devices. Each missing vertex comes from the group
    that has most to spare, and is there the one with the fewest neighbours (ties: lowest group, lowest
    vertex).
    """
    sizes = np.bincount(labels, minlength=len(minimum))
    for group in np.flatnonzero(sizes < minimum):
        while sizes[group] < minimum[group]:
            donor = int(np.argmax(sizes - minimum))
            candidates = np.flatnonzero(labels == donor)
            labels[candidates[np.argmin(degrees[candidates])]] = group
            sizes[donor] -= 1
            sizes[group] += 1
