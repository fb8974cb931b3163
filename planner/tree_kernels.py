"""Compiled loops over the edges of trees: rows over links, relays that send, trees in order. Imported on first use."""

from typing import Any

from dgcl.planner.planner_compiled import compiled


@compiled(allocates=False)
def add_link_rows(count: Any, edge_ptr: Any, src: Any, dst: Any, stage: Any, link_of: Any, rows: Any) -> int:
    """Add what each tree's edges carry to `rows` (K, L), exactly below 2**53; return the first edge without a link.

    Args:
        count, edge_ptr, src, dst, stage: of the trees; ranks and stages are in range.
        link_of: (P, P), negative where there is no link.

    Returns:
        The edge, at which it stops; -1 if all have links.
    """
    for t in range(count.shape[0]):
        for e in range(edge_ptr[t], edge_ptr[t + 1]):
            link = link_of[src[e], dst[e]]
            if link < 0:
                return e
            rows[stage[e], link] += count[t]
    return -1


@compiled(allocates=False)
def spare_senders(edge_ptr: Any, src: Any, dst: Any, idle: Any, sender: Any) -> None:
    """Clear `idle` (E,) where a rank is entered that sends on in the same tree; `sender` (P,) begins with -1."""
    for t in range(edge_ptr.shape[0] - 1):
        for e in range(edge_ptr[t + 1] - 1, edge_ptr[t] - 1, -1):  # children first
            if sender[dst[e]] == t:
                idle[e] = False
            if not idle[e]:
                sender[src[e]] = t
