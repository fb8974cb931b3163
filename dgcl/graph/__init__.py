"""Graphs in: one checked CSR of in-edges, whatever the user has.

:mod:`~dgcl.graph.csr` is what the rest of the library knows. :mod:`~dgcl.graph.sources` reads objects
of other libraries, :mod:`~dgcl.graph.files` files; both build through :mod:`~dgcl.graph.build`.
"""

from __future__ import annotations

from dgcl.graph.csr import Graph, as_graph
from dgcl.graph.files import GraphFile, read_graph, save_graph
from dgcl.graph.sources import networkx_nodes

__all__ = ["Graph", "GraphFile", "as_graph", "networkx_nodes", "read_graph", "save_graph"]
