"""METIS k-way partitions of the undirected simple graph, at once or level by level, with no part left empty.

G. Karypis and V. Kumar, "Multilevel k-way partitioning scheme for irregular graphs", 1998; through pymetis.
"""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.free_memory import available_memory

if TYPE_CHECKING:
    from dgcl.topology import Topology


_log = logging.getLogger("dgcl")

_BYTES = 128  # for each vertex and neighbour: 30 on meshes, 60 to 100 on random graphs, 125 with hubs
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
    whole = np.zeros_like(block_of)
    place = next((place for place, level in enumerate(levels) if _is_within(level, block_of)), len(levels))
    chain = [whole, *levels[:place], block_of, *levels[place:]]
    counts = [len(np.unique(level)) for level in chain]
    fits = _is_within(block_of, chain[place]) and counts == sorted(set(counts))
    return chain[1:] if fits else list(levels)


def _is_within(fine: NDArray[np.int64], coarse: NDArray[np.int64]) -> bool:
    """Whether each group of one level lies in one group of another."""
    return len(np.unique(np.stack([fine, coarse]), axis=1).T) == len(np.unique(fine))


def metis_partition(
    xadj: NDArray[np.int64],
    adjncy: NDArray[np.int64],
    levels: Sequence[NDArray[np.int64]],
    *,
    weights: NDArray[np.int64] | None,
    options: MetisOptions | None,
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

    num_groups = len(num_devices)
    shares = num_devices / num_devices.sum()
    even = (num_devices == num_devices[0]).all()
    task = [
        graph.xadj,
        graph.adjncy,
        np.empty(0, np.int64) if graph.weights is None else graph.weights,
        np.empty(0) if even else shares / shares.sum(),
        np.array([
            num_groups,
            graph.num_nodes < TINY * num_groups,
            options.seed,
            max(1, round(1000 * options.balance_tolerance)),
        ]),
    ]  # fmt: skip
    about = f"METIS on {graph.num_nodes} vertices and {len(graph.adjncy)} neighbours"
    free, likely = available_memory(), _BYTES * (graph.num_nodes + len(graph.adjncy))
    if likely > free // 2:
        _log.warning(
            "%s takes some %.3g GB of memory, where %.3g GB are free", about, likely / 1e9, free / 1e9
        )
        return _run_apart(task, free, about)
    try:
        return _call(*task)
    except RuntimeError as error:  # METIS catches signals and says nothing of them
        raise InterruptedError(
            f"{about} ended by SIGTERM, or it had too little memory ({free / 1e9:.3g} GB were free, {likely / 1e9:.3g}"
            " are likely): METIS does not say which. Where it is memory, partition='random' or 'range' takes less"
        ) from error


def _call(
    xadj: NDArray[Any],
    adjncy: NDArray[Any],
    weights: NDArray[Any],
    shares: NDArray[Any],
    numbers: NDArray[Any],
) -> NDArray[np.int64]:
    import pymetis

    num_groups, recursive, seed, ufactor = numbers.tolist()
    result = pymetis.part_graph(
        num_groups,
        pymetis.CSRAdjacency(xadj, adjncy),
        vweights=weights if len(weights) else None,
        tpwgts=shares.tolist() if len(shares) else None,
        recursive=bool(recursive),
        options=pymetis.Options(seed=seed, ufactor=ufactor),
    )
    return np.array(result.vertex_part, np.int64)


def _run_apart(task: list[NDArray[Any]], free: int, about: str) -> NDArray[np.int64]:
    """METIS in a process of its own, which may take what is free: where that is too little, it alone ends."""
    command = "from dgcl.partition.metis import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        process.stdin.write(np.array([free * 9 // 10, *map(len, task)]).data)
        for array in task:
            process.stdin.write(np.ascontiguousarray(array, array.dtype.kind + "8").data)
        labels, text = process.communicate()
        if not process.returncode:
            return np.frombuffer(labels, np.int64).copy()
        why = text.decode(errors="replace").strip().rpartition("\n")[2][-200:]
    except BrokenPipeError as error:
        why = str(error)
    finally:
        process.kill()
        process.wait()
    raise MemoryError(
        f"{about} wants more memory than the {free} bytes that are free. Ways out: (1) partition='random' or 'range'"
        " (on the command line --partition; of an Offload chunk_by='range'), (2) give part, (3) free memory."
        f" Its process: exit status {process.returncode}, {why}"
    )


def serve() -> None:
    """Run METIS for another process: arrays come through standard input, labels leave through standard output."""
    output = os.dup(1)
    os.dup2(2, 1)  # METIS prints
    stream = sys.stdin.buffer
    limit, *lengths = np.frombuffer(stream.read(48), np.int64).tolist()
    task = [
        np.frombuffer(stream.read(8 * n), kind)
        for n, kind in zip(lengths, ("i8", "i8", "i8", "f8", "i8"), strict=True)
    ]
    import pymetis  # noqa: F401  (what is there before is not METIS's)

    taken = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, resource.RLIM_INFINITY))
    with open(output, "wb") as answer:
        answer.write(_call(*task).data)


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
