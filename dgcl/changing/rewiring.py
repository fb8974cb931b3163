"""Other in-edges, or other owners, of the same vertices, on the same transport."""

from __future__ import annotations

from dgcl.ranks.directory import Directory
from dgcl.ranks.handle import Handle


class Rewiring(Handle):
    """The part of a communicator that changes with its graph.

    Attributes:
        directory: Which rank owns which vertex; None: nobody has asked yet.
    """

    directory: Directory | None = None
