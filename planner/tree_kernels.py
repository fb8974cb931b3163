"""Compiled loop over the edges of trees that tells relays that pass a row on from idle ones.

Edges are visited children first, so that a chain of relays is idle as a whole. Imported on first use.
Called by `relays`. Free to change while a relay counts as idle exactly where no rank behind it needs the row
(`tests/planner/test_fold.py`, `tests/dgcl/program/test_compile.py`).
"""

from typing import Any

from dgcl.planner.planner_compiled import compiled


@compiled(allocates=False)
def spare_senders(edge_ptr: Any, src: Any, dst: Any, idle: Any, sender: Any) -> None:
    """Clear `idle` (E,) where a rank is entered that sends on in the same tree; `sender` (P,) begins with -1."""
    for t in range(edge_ptr.shape[0] - 1):
        for e in range(edge_ptr[t + 1] - 1, edge_ptr[t] - 1, -1):  # children first
            if sender[dst[e]] == t:
                idle[e] = False
            if not idle[e]:
                sender[src[e]] = t
