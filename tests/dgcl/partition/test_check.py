"""dgcl.partition.check_part: what a part vector must be."""

from typing import Any

import numpy as np
import pytest
import torch

from dgcl.partition.check_part import as_num_parts, check_part
from tests.support.samples import named


@named(
    "part",
    {
        "list": [0, 1, 1],
        "uint8": np.array([0, 1, 1], np.uint8),
        "tensor": torch.tensor([0, 1, 1]),
        "strided": np.array([0, 9, 1, 9, 1, 9])[::2],
    },
)
def test_integers_of_any_kind_become_int32(part: Any):
    checked = check_part(part, 3, 2)
    assert checked.dtype == np.int32
    assert checked.tolist() == [0, 1, 1]


@named(
    "part, num_nodes, num_parts, error, message",
    {
        "length": ([0, 1], 3, 2, ValueError, r"one entry per vertex, 3 \(got 2\)"),
        "shape": ([[0, 1, 1]], 3, 2, ValueError, r"1 dimension \(got shape \(1, 3\)\)"),
        "too-large": ([0, 2, 1], 3, 2, ValueError, r"part\[1\] is 2: must be a part 0\.\.1"),
        "negative": ([0, 1, -1], 3, 2, ValueError, r"part\[2\] is -1"),
        "not-wrapped-to-int32": ([0, 2**32, 1], 3, 2, ValueError, r"part\[1\] is 4294967296"),
        "float": ([0.0, 1.0, 1.0], 3, 2, TypeError, "integers.*float64"),
        "bool": ([True, False, True], 3, 2, TypeError, "integers.*booleans"),
        "parts-float": ([0, 0, 0], 3, 1.0, TypeError, "num_parts must be an integer.*1.0"),
        "parts-bool": ([0, 0, 0], 3, True, TypeError, "num_parts must be an integer.*True"),
        "parts-zero": ([0, 0, 0], 3, 0, ValueError, r"from 1 to .*got 0"),
    },
)
def test_anything_else_is_named(
    part: Any, num_nodes: int, num_parts: Any, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        check_part(part, num_nodes, num_parts)


def test_parts_may_be_empty():
    assert check_part([3, 3], 2, 4).tolist() == [3, 3]


def test_numpy_integers_count_parts():
    assert as_num_parts(np.int64(4)) == 4
