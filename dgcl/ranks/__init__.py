"""Who this rank is and how ranks meet: context, control plane, rendezvous, launcher, machines of a job.

Also small objects and sums between ranks, and rows of the whole graph to their owners and back. Imports
``dgcl.topology`` and ``dgcl.errors`` alone.
"""
