"""Imports topologies: one module per format, and one function that recognises the format.

>>> from dgcl.topology.importers import import_topology
>>> imported = import_topology("topo.xml")  # doctest: +SKIP
>>> imported.notes  # doctest: +SKIP
('the file has no <gpu>: ...',)
"""

from dgcl.topology.draft import Imported
from dgcl.topology.importers.files import import_machines, import_topology
from dgcl.topology.importers.nccl_xml import parse_nccl_xml
from dgcl.topology.importers.p2p_refine import refine_with_p2p
from dgcl.topology.importers.p2p_tables import P2pTables, parse_p2p_tables
from dgcl.topology.importers.topo_matrix import TopoMatrix, parse_topo_matrix

__all__ = [
    "Imported",
    "P2pTables",
    "TopoMatrix",
    "import_machines",
    "import_topology",
    "parse_nccl_xml",
    "parse_p2p_tables",
    "parse_topo_matrix",
    "refine_with_p2p",
]
