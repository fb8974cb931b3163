"""Predicts the seconds of a training epoch: exchanges, sums over edges, dense products, copies from the host.

The rank that has most sets the pace of each, and nothing overlaps. Left out: the loss, sums of parameter gradients, the
optimiser, ranks that are late. An exchange is timed by a direct plan, by the planner's plan, or by a bound that no plan
beats. ``ERROR`` is the measured error between strategies (docs/advise.md).
Called by `weighing`, which predicts; `advice` and `advice_row` take names and types. Free to change while no time is
below its bound, and ranks that share a core take as long as one rank (`tests/dgcl/advisor/test_choice.py`).
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Counted
from dgcl.advisor.device_rates import Rates
from dgcl.advisor.model_costs import Model
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import direct_seconds, predicted_seconds
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.topology import Topology

#: What predictions of two strategies' epochs may be wrong against each other (docs/advise.md).
ERROR = 0.15
#: What an epoch consists of.
TIMES = ("exchange", "sums", "dense", "copies")
#: Seconds in which a relation's rows of so many bytes travel; links are taken to be as fast both ways.
Way = Callable[[Relation, Topology, int], float]


@dataclass(frozen=True)
class Seconds:
    """Of an epoch, or of a layer in one, on the slowest rank."""

    exchange: float = 0.0
    sums: float = 0.0
    dense: float = 0.0
    copies: float = 0.0

    @property
    def total(self) -> float:
        """One after the other."""
        return sum(vars(self).values())


def direct(relation: Relation, topology: Topology, row_bytes: int) -> float:
    """From peer to peer, in one stage; by the planner's "auto" where two ranks have no link."""
    seconds = direct_seconds(relation, topology, row_bytes)
    return planned(row_bytes)(relation, topology, row_bytes) if seconds is None else seconds


def bounded(relation: Relation, topology: Topology, row_bytes: int) -> float:
    """What no plan beats."""
    return best_bound(relation, topology, row_bytes).seconds


def planned(row_bytes: int) -> Way:
    """By the planner's "auto", for rows of so many bytes; each relation is planned once."""

    @cache
    def plan(relation: Relation, topology: Topology) -> Plan:
        return make_plan(relation, topology, "auto", PlanOptions(row_bytes=row_bytes))

    def seconds(relation: Relation, topology: Topology, each: int) -> float:
        if not relation.deliveries:
            return 0.0
        return predicted_seconds(plan(relation, topology).trees, topology.arrays(), each)

    return seconds


def epoch_layers(counted: Counted, model: Model, rates: Rates, way: Way) -> list[Seconds]:
    """Seconds of each layer in an epoch, forward and backward."""
    item, slices, name = model.itemsize, counted.slices, counted.strategy.name
    most_edges, most_rows = _slowest(counted.edges, rates), _slowest(counted.owned, rates)
    layers = []
    for number, layer in enumerate(model.layers):
        row_bytes = max(-(-layer.exchanged // slices) * item, 1)
        back = model.aggregates_back(number) or (name == "in-place" and model.training)
        times = (layer.exchanged > 0) * (1 + back)
        exchange = way(counted.expand, counted.topology, row_bytes)
        if counted.fold is not None:
            exchange += way(counted.fold, counted.topology, row_bytes)
        sums = most_edges * layer.passes * (rates.edge + row_bytes / rates.memory)
        products = most_rows * layer.products + most_edges * layer.edge_products
        moved = 6 * most_rows * (layer.width + layer.out) * item
        trained = 1 + model.training * (1 + (number > 0))
        dense = trained * products / rates.products + (1 + model.training) * moved / 2 / rates.memory
        copies = 0.0
        if name == "offload":
            loads = max(rows.sources for rows in counted.chunks) * counted.strategy.argument
            copied = loads * layer.width * trained
            copies = (copied + 2 * most_rows * layer.out) * item / rates.host
            sums, dense = sums * 1.5, dense * 4 / 3  # each layer is computed again in the backward
            exchange *= 1.5
        if name == "windows":
            sums *= 1.1  # rows of results are read and written again in each window
        layers.append(Seconds(exchange * times, sums * times, dense, copies))
    return layers


def _slowest(counts: NDArray[np.int64], rates: Rates) -> float:
    """What the slowest rank does of what each rank has, while others share its device."""
    return float(max(counts.max(), min(rates.sharing, len(counts)) * counts.mean()))


def total(layers: list[Seconds]) -> Seconds:
    """Of all layers."""
    return Seconds(*map(sum, zip(*map(astuple, layers), strict=True)))
