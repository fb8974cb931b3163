"""Imports topologies: one module per format, and one function that recognises the format.

>>> from dgcl.topology.importers import import_topology
>>> imported = import_topology("topo.xml")  # doctest: +SKIP
>>> imported.notes  # doctest: +SKIP
('the file has no <gpu>: ...',)
"""

from dgcl.topology.importers.files import import_machines, import_topology

__all__ = ["import_machines", "import_topology"]
