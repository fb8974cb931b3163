"""Placement: which rank sums each edge, and the two exchanges that an aggregation then is.

Sums over in-edges are three steps: *expand* source rows to the ranks that sum edges, *sum* there, *fold* partial sums
to the owners of the heads. With ``head`` nothing is folded, and neighbourhoods are complete (DGCL's halo exchange);
with ``tail`` nothing is expanded; ``cover`` moves the fewest rows between each pair of ranks. ``exchanges`` makes the
two demands of a placement, ``placement_strategy`` plans both for :mod:`dgcl.prepare`, and ``placed_edges`` gives each
rank its edges. Tests are in tests/dgcl/placement.
"""
