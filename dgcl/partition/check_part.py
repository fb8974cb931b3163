"""Checks a part vector (the owner of each vertex) and a number of parts.

Parts may own no vertex.
Called by users, `partitioners`, `dgcl/prepare/shares`, `dgcl/relation/demand`, `dgcl/cli/problem` and others. Free to
change while integers of any kind become int32, and a wrong owner is named with its vertex
(`tests/dgcl/partition/test_check.py`).
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.build_csr import first_outside
from dgcl.graph.id_arrays import as_ids
from dgcl.topology.checks import check_index

MAX_PARTS = 1 << 15


def check_part(part: Any, num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    """Return `part` as (N,) int32 after checking it.

    Parts may own no vertex.

    Args:
        part: (N,) integers, ``part[v]`` the owner of vertex v: array, tensor or list.
        num_nodes: number of vertices N.
        num_parts: number of parts P.

    Raises:
        TypeError: not integers.
        ValueError: wrong shape, a part outside 0..P-1 (the message names the vertex).
    """
    num_parts, num_nodes = as_num_parts(num_parts), check_index(num_nodes, "num_nodes")
    if isinstance(part, (str, os.PathLike)):
        raise TypeError(
            f"part must hold integers (got the path {os.fspath(part)!r}; np.load reads a .npy file)"
        )
    owners = as_ids(part, "part")
    if len(owners) != num_nodes:
        raise ValueError(f"part must have one entry per vertex, {num_nodes} (got {len(owners)})")
    if (v := first_outside(owners, num_parts)) >= 0:
        raise ValueError(f"part[{v}] is {owners[v]}: must be a part 0..{num_parts - 1}")
    return owners.astype(np.int32, copy=False)


def as_num_parts(num_parts: Any, name: str = "num_parts") -> int:
    """Return `num_parts` as an int from 1 to 32768.

    Raises:
        TypeError: not an integer.
        ValueError: out of range.
    """
    return check_index(num_parts, name, 1, MAX_PARTS)
