"""Who this rank is and how ranks meet: context, control plane, rendezvous, launcher, machines of a job.

Imports `topology` and `errors` alone.
"""
