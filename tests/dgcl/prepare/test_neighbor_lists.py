"""Neighbour lists over ranks against brute force over images, and against the list of a library."""

import itertools

import numpy as np
import pytest
import torch

import dgcl
from dgcl.prepare import neighbor_lists

TRICLINIC = [[6.0, 0.0, 0.0], [2.5, 5.0, 0.0], [-1.0, 1.5, 4.5]]
NEEDLE = [[9.0, 0.0, 0.0], [8.0, 1.5, 0.0], [0.0, 0.0, 5.0]]
#: By name the number of vertices, cell, pbc, cutoff, and how far from the middle of the cell they are, in cells.
CASES = {
    "free": (60, None, None, 2.0, 0.5),
    "free, all near all": (20, None, None, 50.0, 0.5),
    "periodic": (60, [6.0, 7.0, 8.0], True, 2.0, 0.5),
    "a plane, no third vector": (50, [[6.0, 1.0, 0], [0, 5.0, 0], [0, 0, 0]], None, 2.0, 0.5),
    "a line in a full cell": (50, TRICLINIC, [False, True, False], 2.0, 0.5),
    "triclinic, outside the cell": (60, TRICLINIC, True, 2.0, 3.5),
    "needle": (40, NEEDLE, True, 2.0, 0.5),
    "cutoff beyond three cells": (5, TRICLINIC, [True, True, False], 16.0, 0.5),
    "one vertex and its images": (1, [2.0, 2.0, 2.0], True, 4.1, 0.5),
    "fewer than ranks": (2, [4.0, 4.0, 4.0], True, 3.0, 0.5),
    "none near": (4, [50.0, 50.0, 50.0], True, 0.01, 0.5),
}


def placed(number, cell, reach):
    """Positions, and the cell as three vectors."""
    vectors = np.zeros((3, 3)) if cell is None else np.array(cell, float)
    vectors = np.diag(vectors) if vectors.ndim == 1 else vectors
    frame = np.where(vectors.any(axis=1, keepdims=True), vectors, 5 * np.eye(3))
    return (np.random.default_rng(number).random((number, 3)) * 2 - 1) * reach @ frame, vectors


def brute_force(x, vectors, pbc, cutoff, images=8):
    """Sorted (source, head, shift), of all images that could be near."""
    repeats = np.broadcast_to(vectors.any(axis=1) if pbc is None else pbc, 3)
    found = []
    shifts = np.array(
        [*itertools.product(*(range(-images, images + 1) if each else [0] for each in repeats))]
    )
    for source, head in itertools.product(range(len(x)), repeat=2):
        vector = x[source] - x[head] + shifts @ vectors
        near = (vector**2).sum(axis=1) < cutoff**2
        if source == head:
            near &= shifts.any(axis=1)
        found += [(source, head, *shift) for shift in shifts[near].tolist()]
    return sorted(found)


def listed(world_size, x, cutoff, cell, pbc, given=None, partition=None):
    """Edges of all ranks, sorted, and what each owns; each rank has checked that their heads are its own."""

    def on_rank():
        own = np.flatnonzero(given == dgcl.rank())
        near = dgcl.neighbors(torch.tensor(x[own]), cutoff, cell, pbc, ids=own, partition=partition)
        assert set(near.edge_index[1].tolist()) <= set(near.owned_ids.tolist())
        return near.owned_ids.tolist(), torch.cat([near.edge_index.T, near.shifts.long()], 1).tolist()

    given = np.arange(len(x)) % world_size if given is None else given
    owned, edges = zip(*dgcl.launch(on_rank, world_size), strict=True)
    assert sorted(itertools.chain(*owned)) == [*range(len(x))]
    return sorted(map(tuple, itertools.chain(*edges))), owned


@pytest.mark.parametrize("name", CASES)
def test_pairs_are_those_of_brute_force(name):
    number, cell, pbc, cutoff, reach = CASES[name]
    x, vectors = placed(number, cell, reach)
    expected = brute_force(x, vectors, pbc, cutoff)
    for world_size, partition in ((1, None), (4, None), (4, "space")):
        assert listed(world_size, x, cutoff, cell, pbc, partition=partition)[0] == expected


def test_pairs_at_the_cutoff_itself_are_out_wherever_they_are_found():
    """A perfect crystal: rounding must not find a pair from one side alone."""
    x = np.array([*itertools.product(range(4), repeat=3)]) * 0.1 + 0.7
    alone, _ = listed(1, x, 0.1, [0.4] * 3, True)
    assert {(head, source, -i, -j, -k) for source, head, i, j, k in alone} == {*alone}
    for partition in (None, "space"):
        assert listed(3, x, 0.1, [0.4] * 3, True, partition=partition)[0] == alone
    assert len(listed(3, x, 0.1001, [0.4] * 3, True)[0]) == 6 * 64


def test_rows_go_to_ranks_near_alone(monkeypatch):
    """Ranks get the vertices near their boxes, also where some have crossed the border of the cell since."""
    held, pairs = [], neighbor_lists._pairs
    monkeypatch.setattr(neighbor_lists, "_pairs", lambda *each: held.append(len(each[3])) or pairs(*each))
    side = np.array([40.0, 3.0, 3.0])
    x = np.random.default_rng(0).random((2000, 3)) * side
    _, owned = listed(4, x, 0.5, side, [True, False, False], partition="space")
    assert all(490 < len(ids) < 510 for ids in owned)
    given = np.array([rank for _, rank in sorted((v, rank) for rank, ids in enumerate(owned) for v in ids)])
    x[:, 0] -= 0.4
    edges, _ = listed(4, x, 0.5, side, [True, False, False], given)
    assert max(held) < 570
    assert edges == listed(1, x, 0.5, side, [True, False, False])[0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"positions": torch.zeros(5, 2)}, r"positions must be \(n, 3\) finite floats \(got \(5, 2\)"),
        ({"positions": torch.full((5, 3), torch.nan)}, r"positions must be"),
        ({"cutoff": 0.0}, "cutoff must be a positive number"),
        ({"cell": [1.0, 1.0]}, "cell must be three finite vectors"),
        ({"cell": [[1.0], [2.0, 0]]}, "cell must be three finite vectors"),
        ({"cell": [[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]]}, "cell must have a volume"),
        ({"pbc": True, "cell": None}, "pbc must be True or False"),
        ({"ids": [1]}, r"ids must be as many as positions \(got 1 and 5\)"),
        ({"partition": "metis"}, "partition must be one of space"),
        ({"cutoff": 2.0}, "cutoff, cell, pbc and partition must be the same on every rank"),
    ],
)
def test_what_does_not_fit(change, message):
    def on_rank():
        given = {"positions": torch.zeros(5, 3), "cutoff": 1.0, "cell": [9.0] * 3, "ids": range(5)}
        with pytest.raises((TypeError, ValueError), match=message):
            dgcl.neighbors(**given | (change if dgcl.rank() == 1 else {}))

    dgcl.launch(on_rank, 2)


def test_without_ids_they_follow_from_rank_to_rank():
    x = torch.arange(5.0)[:, None] * torch.ones(3)
    lists = dgcl.launch(lambda: dgcl.neighbors(x.tensor_split(2)[dgcl.rank()], 2.0).edge_index, 2)
    assert sorted(torch.cat(lists, 1).T.tolist()) == [
        [0, 1],
        [1, 0],
        [1, 2],
        [2, 1],
        [2, 3],
        [3, 2],
        [3, 4],
        [4, 3],
    ]
