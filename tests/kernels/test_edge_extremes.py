"""Extremes over edges against plain Python: ties, NaN, heads without edges."""

import math

import numpy as np
import pytest

from dgcl.kernels.edge_extremes import extremes, scatter_rows


@pytest.mark.parametrize("id_columns", [1, 4])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremes(dtype: type, largest: bool, id_columns: int):
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (7, 4)).astype(dtype)
    x[3, 1] = x[5, 1] = math.nan
    counts = np.array([0, 3, 5, 1, 0, 4])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    tails = random.integers(0, 7, counts.sum()).astype(np.int32)
    tails[3:5] = 5, 3
    ids = np.stack([random.permutation(7) for _ in range(id_columns)], axis=1)
    out, winner = np.full((6, 4), 9, dtype), np.full((6, 4), 9, np.int32)
    extremes(x, indptr, tails, ids, largest, out, winner)
    grad, back, wanted = random.normal(size=(6, 4)).astype(dtype), np.zeros_like(x), np.zeros_like(x)
    scatter_rows(grad, winner, back)
    for i in range(6):
        for c in range(4):
            mine = sorted(
                set(tails[indptr[i] : indptr[i + 1]].tolist()), key=lambda t: ids[t, c % id_columns]
            )
            if not mine:
                assert (out[i, c], winner[i, c]) == (0, -1)
                continue
            order = {t: (math.isnan(x[t, c]), x[t, c] if largest else -x[t, c]) for t in mine}
            nans = [t for t in mine if math.isnan(x[t, c])]
            best = nans[0] if nans else max(mine, key=order.__getitem__)  # the first of equals, by id
            assert winner[i, c] == best
            assert out[i, c] == x[best, c] or (nans and math.isnan(out[i, c]))
            wanted[best, c] += grad[i, c]
    np.testing.assert_array_equal(back, wanted)
