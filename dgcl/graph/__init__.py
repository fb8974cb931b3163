"""One checked CSR of in-edges, from whatever the user has.

:mod:`~dgcl.graph.csr` is what the rest of the library knows. :mod:`~dgcl.graph.convert` takes what the user holds:
:mod:`~dgcl.graph.sources` reads objects of other libraries, :mod:`~dgcl.graph.graph_files` files; both build through
:mod:`~dgcl.graph.build_csr`. Imports nothing else of ours but the reader of npz files.
"""

from dgcl.graph.convert import as_graph
from dgcl.graph.csr import Graph
from dgcl.graph.graph_file import GraphFile
from dgcl.graph.graph_files import read_graph, save_graph
from dgcl.graph.sources import networkx_nodes

__all__ = ["Graph", "GraphFile", "as_graph", "networkx_nodes", "read_graph", "save_graph"]
