"""Set bits found in compiled code, against Python's integers; what classes bring to ranks, against sets."""

import numpy as np
import pytest

from dgcl.planner import Relation
from dgcl.planner.bits import lowest_bit, pair_rows
from dgcl.planner.bounds.cut_kernels import crossing_rows

CLASSES = [(0, {1, 63, 64}, 5), (64, {0, 2}, 7), (3, {65, 70}, 11), (70, {0, 3, 65}, 2)]


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_of_any_bits(bit: int):
    rng = np.random.default_rng(bit)
    for above in [0, (1 << 64) - 1, *rng.integers(0, 1 << 63, 5).tolist()]:
        word = (above << (bit + 1) | 1 << bit) & (1 << 64) - 1
        assert lowest_bit(np.uint64(word)) == bit


def test_rows_of_pairs_over_two_words():
    relation = Relation.from_classes(71, CLASSES)
    expected = np.zeros((71, 71), np.int64)
    for owner, dests, count in CLASSES:
        for dest in dests:
            expected[owner, dest] += count
    assert (pair_rows(relation.source, relation.dests, relation.count, 71) == expected).all()
    assert (relation.pair_rows() == expected).all()


def test_rows_that_enter_and_leave_sets():
    relation = Relation.from_classes(71, CLASSES)
    sets: list[set[int]] = [{0}, {65}, {0, 3}, {3}, {63, 64, 65, 70}, set(range(64)), {5}, {0, 1, 3, 63, 64}]
    member = np.array([[rank in ranks for rank in range(71)] for ranks in sets])
    masks = np.array(
        [[sum(1 << r - 64 * w for r in ranks if r >> 6 == w) for w in range(2)] for ranks in sets], np.uint64
    )
    entering, leaving = crossing_rows(relation.source, relation.dests, relation.count, member, masks)
    assert entering.tolist() == [sum(n for o, dests, n in CLASSES if o not in s and dests & s) for s in sets]
    assert leaving.tolist() == [sum(n for o, dests, n in CLASSES if o in s and dests - s) for s in sets]
