"""Implements ``dgcl.neighbors``: pairs of vertices nearer than a cutoff, where no rank has all positions.

Ranks exchange the boxes around their vertices. Each sends the ranks whose boxes are within the cutoff of its own, or of
a periodic image of it, those of its vertices that are; every rank then finds pairs by trees of SciPy, which takes any
cell and is needed anyway.
Run by users as ``dgcl.neighbors``. Free to change while pairs and shifts are those of brute force over all periodic
images, whoever owns the vertices, and rows go to near ranks alone (`tests/dgcl/prepare/test_neighbor_lists.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgcl.graph.id_arrays import as_ids
from dgcl.partition.space import MARGIN, Cell, Floats, Ids, Images, bisect
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.ranks.set_up import leaving, set_up_call
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.whole_rows import agree, require_same
from dgcl.topology.checks import check_choice, check_number

_SAMPLE = 2**16  # points of all ranks that decide on borders: parts then differ by less than 2 %
_BLOCK = 2**12  # vertices whose pairs are blocks at once


class Neighbors(NamedTuple):
    """What :func:`dgcl.neighbors` returns; ids on the CPU, shifts with the positions.

    Attributes:
        edge_index: (2, E) ids; each of the pairs, towards each of this rank's vertices: row 0 has the neighbours, row 1
            the vertices. ``positions[edge_index[0]] + shifts @ cell`` is the neighbour as the vertex sees it.
        shifts: (E, 3) whole numbers in the type of the positions: by how many cells the neighbour is moved.
        owned_ids: (n,) ids of this rank's vertices: those given, or with ``partition="space"`` new ones, ascending.
    """

    edge_index: Tensor
    shifts: Tensor
    owned_ids: Tensor


@set_up_call
def neighbors(
    positions: Tensor,
    cutoff: float,
    cell: Any = None,
    pbc: Any = None,
    *,
    ids: Any = None,
    partition: str | None = None,
) -> Neighbors:
    """Pairs of vertices nearer than a cutoff, across ranks: this rank's edges and shifts. Collective.

        >>> near = dgcl.neighbors(x, 5.0, cell, partition="space")         # x: rows of this rank's vertices
        >>> x, v = dgcl.fetch(x, near.owned_ids), dgcl.fetch(v, near.owned_ids)
        >>> comm = comm.rewire(near.edge_index, owned_ids=near.owned_ids)  # or build_from_local, the first time
        >>> shifts = comm.dispatch_edges(near.shifts)                      # in the order of comm.local_graph("pyg")

    Each rank sends its vertices near another's box to that rank alone. That is little where owners are by space;
    with other owners the lists are the same. A pair is there once for each periodic image within the cutoff, and a
    vertex is a neighbour of its own images. Positions may lie outside the cell.

    Args:
        positions: ``(n, 3)`` of this rank's vertices; n may be 0.
        cutoff: Pairs are nearer than this.
        cell: ``(3, 3)``, its vectors in rows, or ``(3,)``, their lengths; None: nothing repeats. A direction that does
            not repeat may have zeros.
        pbc: Whether the cell repeats, for all directions or each; None: where it has a vector.
        ids: ``(n,)`` of the vertices, 0 to N - 1 over all ranks; None: those that the current communicator owns, or,
            where there is none, rank after rank.
        partition: "space": vertices get owners anew, each rank a box and about as many. None: owners stay.

    Returns:
        The edges, shifts and owned ids; edges in no order.

    Raises:
        ValueError, TypeError: Positions, cell or cutoff are none, or not the same on all ranks. On every rank.
        CommError: A rank is gone.
    """
    control = context.require_control()
    problem, x, space = None, np.zeros((0, 3)), None
    own: Any = None
    settings: Any = None
    try:
        require_tensors(positions=positions)
        x = positions.detach().to("cpu", torch.float64).numpy()
        if x.shape[1:] != (3,) or not positions.is_floating_point() or not np.isfinite(x).all():
            raise ValueError(
                f"positions must be (n, 3) finite floats (got {tuple(x.shape)}, {positions.dtype})"
            )
        cutoff = check_number(cutoff, "cutoff", positive=True)
        if partition is not None:
            check_choice(partition, "partition", ("space",))
        space = Cell.of(*(each.detach().cpu() if isinstance(each, Tensor) else each for each in (cell, pbc)))
        if ids is None and context.communicator is not None:
            ids = context.communicator.owned_ids
        if ids is not None and len(own := as_ids(ids, "ids").astype(np.int64)) != len(x):
            raise ValueError(
                f"ids must be as many as positions (got {len(own)} and {len(x)}); without ids, positions are of the"
                " vertices that the current communicator owns"
            )
        settings = cutoff, space.vectors.tolist(), space.periodic.tolist(), partition
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = error
    with control.collective("neighbors"), leaving(control):
        settings, numbers = zip(*agree(control, problem, (settings, len(x))), strict=True)
        require_same(**{"cutoff, cell, pbc and partition": settings})
        assert space is not None
        if own is None:
            own = np.arange(len(x)) + sum(numbers[: control.rank])
        if partition is not None:
            own, x = _shared_out(control, space, own, x, _SAMPLE / max(sum(numbers), 1))
        edges, shifts = _pairs(space, cutoff, len(x), *_with_near(control, space, cutoff, own, x))
    return Neighbors(torch.from_numpy(edges), torch.from_numpy(shifts).to(positions), torch.from_numpy(own))


def _shared_out(control: Control, space: Cell, own: Ids, x: Floats, fraction: float) -> tuple[Ids, Floats]:
    """Vertices of this rank's box from now on, by id. Collective."""
    places = x @ space.inverse
    places = np.where(space.periodic, places % 1, places) / np.linalg.norm(space.inverse, axis=0)
    taken = np.random.default_rng(control.rank).random(len(x)) < fraction
    owner = bisect(places, np.concatenate(control.exchange(places[taken])), 0, control.world_size)
    pieces = [(own[to], x[to]) for to in (owner == peer for peer in range(control.world_size))]
    own, x = map(np.concatenate, zip(*control.all_to_all(pieces), strict=True))
    order = np.argsort(own)
    return own[order], x[order]


def _with_near(control: Control, space: Cell, cutoff: float, own: Ids, x: Floats) -> Any:
    """Ids, positions and images of this rank's vertices, and then of all that are near its box. Collective."""
    places, images = space.gathered(x)
    box = (
        np.stack([places.min(axis=0), places.max(axis=0)]) if len(x) else np.full((2, 3), np.nan)
    )  # near nothing
    pieces = []
    for peer, theirs in enumerate(control.exchange(box)):
        rows, moved = space.near(places, theirs, cutoff)
        if peer == control.rank:
            rows, moved = rows[others := moved.any(axis=1)], moved[others]
        pieces.append((own[rows], x[rows], images[rows] + moved))
    return map(np.concatenate, zip((own, x, images), *control.all_to_all(pieces), strict=True))


def _pairs(
    space: Cell, cutoff: float, num_own: int, ids: Ids, x: Floats, images: Images
) -> tuple[Ids, Images]:
    """``(2, E)`` ids and ``(E, 3)`` shifts of neighbours of the first vertices among all."""
    from scipy.spatial import cKDTree

    at, blocks = x + images @ space.vectors, [(np.zeros((2, 0), np.int64), images[:0])]
    tree = cKDTree(at)
    near_each_other = tree.indices[tree.indices < num_own]
    for start in range(0, num_own, _BLOCK):
        block = near_each_other[start : start + _BLOCK]
        pairs = cKDTree(at[block]).sparse_distance_matrix(tree, cutoff * (1 + MARGIN), output_type="ndarray")
        heads, sources = block[pairs["i"]], pairs["j"]
        kept, shifts = heads != sources, images[sources] - images[heads]
        # At the cutoff by the same sum on whatever rank: those pairs alone are there whose opposite is, too.
        close = np.flatnonzero(pairs["v"] > cutoff * (1 - MARGIN))
        vectors = x[sources[close]] - x[heads[close]] + (shifts[close, :, None] * space.vectors).sum(axis=1)
        kept[close] &= (vectors**2).sum(axis=1) < cutoff**2
        blocks.append((ids[np.stack([sources[kept], heads[kept]])], shifts[kept]))
    edges, shifts = zip(*blocks, strict=True)
    return np.concatenate(edges, axis=1), np.concatenate(shifts)
