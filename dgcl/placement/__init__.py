"""Placement: which rank sums each edge, and the two exchanges that an aggregation then is.

An aggregation ``y_v = sum over edges u->v of w_uv x_u`` is three steps: *expand* source rows to the ranks that sum
edges, *sum* there, *fold* partial sums to the owners of the heads. Which rank sums which edge is free, one rank for
each edge:

- ``head``: the owner of its head. Nothing is folded, neighbourhoods are complete (DGCL's halo exchange);
- ``tail``: the owner of its tail. Nothing is expanded;
- ``cover``: for each pair of ranks whatever moves the fewest rows, a minimum vertex cover
  (:mod:`~dgcl.placement.cover`).

:mod:`~dgcl.placement.exchanges` makes the two demands that a placement has, :mod:`~dgcl.placement.placement_strategy`
plans both, and :mod:`~dgcl.placement.placed_edges` gives each rank its edges. Imports ``graph``, ``relation``,
``program`` and the planner.
"""
