"""Makes each rank's share of a job: its edges, and compiled programs for its exchanges with other ranks.

On the way: partition, relation (which ranks want which rows), plan, proof, programs; stored in a cache or in part
files. :mod:`~dgcl.prepare.shares` starts from a whole graph on rank 0, :mod:`~dgcl.prepare.local_edges` from each
rank's own edges; :mod:`~dgcl.prepare.share` ends both ways. Imports every folder before it on the way of the data, and
no transport.
"""
