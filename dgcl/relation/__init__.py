"""Who wants which item: demand, classes of interchangeable items, and each rank's own part of the graph.

Imports :mod:`dgcl.graph`, :mod:`dgcl.partition` and :mod:`dgcl.planner.relation`.
"""

from dgcl.relation.classes import ItemClasses, build_classes, halo_classes
from dgcl.relation.demand import Demand, halo_demand

__all__ = ["Demand", "ItemClasses", "build_classes", "halo_classes", "halo_demand"]
