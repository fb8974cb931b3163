"""The edges of the cheapest trees, read off the choices of the tree program."""

from __future__ import annotations

import numpy as np

from dgcl.planner.arrays import Int32Array, Int64Array
from dgcl.planner.column_generation.pricing.subsets import SubsetFamily, remaining_set
from dgcl.planner.column_generation.pricing.tree_program import WAIT, Choices, Moves
from dgcl.planner.compiled import compiled


@compiled(inline=False, entry=False)
def trace(
    family: SubsetFamily,
    moves: Moves,
    choices: Choices,
    source: int,
    set_: int,
    link: Int32Array,
    stage: Int32Array,
    num: int,
    stack: Int64Array,
) -> int:
    """Append the edges of the cheapest tree of one set to `link` and `stage`.

    Args:
        family, moves, choices: the states, and the choices of `cheapest_trees`.
        source, set_: the owner and the set to serve.
        link, stage: outputs, written from position `num` on.
        num: see there.
        stack: (n, 3) scratch.

    Returns:
        The number of edges in `link` and `stage` afterwards.
    """
    num_groups = family.set_ptr.shape[0] - 1
    group = 0
    while family.set_ptr[group + 1] <= set_:
        group += 1
    low = family.set_ptr[group]
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, source, set_
    depth = 1
    while depth:
        depth -= 1
        k, v, f = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if moves.splits[v * num_groups + group]:
            choice = choices.split[k, v, f]
            rest = family.pair_rest[choice]
            f = np.int64(family.pair_first[choice])
            if rest != low:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, v, rest
                depth += 1
        j = choices.move[k, v, f]
        if j == WAIT:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, v, f
            depth += 1
            continue
        w = moves.dst[j]
        link[num], stage[num] = moves.link[j], k
        num += 1
        f = remaining_set(family, f, group, np.int64(w))
        if f != low:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = k + 1, w, f
            depth += 1
    return num
