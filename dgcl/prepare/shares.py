"""Partitions a whole graph, plans its exchanges, and gives what each rank makes its share (edges, programs) from.

All that needs the graph and no other rank; :mod:`dgcl.build` runs it on rank 0. What is exchanged is decided by a
:class:`~dgcl.program.strategy.Strategy`; nothing else here depends on which one it is. A cache, if any, is asked first.
Called by `dgcl/build`, `dgcl/cli/partition` and `local_edges`. Free to change while sums over edges are those of one
device for each placement of edges (`tests/dgcl/prepare/test_placements.py`), and an entry of a cache gives the same
shares as planning anew (`tests/dgcl/prepare/test_cache.py`).
"""

import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph, as_graph
from dgcl.graph.typed import TypedGraph
from dgcl.grid.grid import Grid
from dgcl.partition import METHODS as PARTITIONS
from dgcl.partition import balance_weights, partition_graph
from dgcl.partition.check_part import check_part
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.planner import PlanOptions
from dgcl.planner.methods import METHODS
from dgcl.prepare.cache import cache_key
from dgcl.prepare.share import RankInputs, RankItems
from dgcl.prepare.stored_plans import StaleParts, StoredPlans
from dgcl.prepare.typed_exchanges import plan_edge_types
from dgcl.program.compile import items_of_ranks
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.program.strategy import Arrangement, Planned, Problem, Strategy
from dgcl.ranks.machines import host_of_ranks
from dgcl.relation.local_graph import Rows
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.checks import check_choice, check_path

_log = logging.getLogger("dgcl")


def check_method(method: str) -> None:
    """Raise unless there is such a planner.

    Raises:
        ValueError: With all that there are.
    """
    if isinstance(method, str) and method not in METHODS and method in PARTITIONS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)} (got {method!r}); {method!r} is a way to partition:"
            f" partition={method!r}"
        )
    check_choice(method, "method", METHODS)


def prepare_inputs(
    graph: Any,
    world_size: int,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str = "auto",
    method: str = "auto",
    options: PlanOptions | None = None,
    balance: str = "vertices",
    cache: str | os.PathLike[str] | None = None,
    strategy: Strategy | None = None,
) -> list[RankInputs]:
    """Partition and plan; what each rank makes its share from.

    Arguments and errors as in :func:`dgcl.build_comm_info`; ``strategy`` decides what is exchanged. The default
    exchanges halo rows.
    """
    options, strategy = options or PlanOptions(), strategy or EdgePlacement()
    check_method(method)
    check_choice(partition, "partition", PARTITIONS)
    if cache is not None:
        check_path(cache, "cache")
    moment, steps = time.perf_counter(), list[str]()

    def done(step: str) -> None:
        nonlocal moment
        begin, moment = moment, time.perf_counter()
        steps.append(f"{step} {moment - begin:.2f} s")

    checked = as_graph(graph)
    machine = machine_of(topology, world_size)
    weights = balance_weights(checked, balance, partition)
    fixed_part = None if part is None else check_part(part, checked.num_nodes, world_size)
    done("graph and topology")
    plans = owners = arrangement = None
    if cache is not None:
        key = cache_key(checked, world_size, machine, fixed_part, partition, method, options, balance)
        plans = StoredPlans(cache, key, checked.num_nodes, world_size)
        owners = plans.part(strategy.first_plan())
    source = None if plans is None else plans.plan
    done("cache")
    if owners is not None:
        problem = Problem(checked, owners, machine, method, options, source)
        with suppress(StaleParts):
            arrangement = strategy.arrange(problem)
        done("plan")
    if arrangement is None:
        owners = fixed_part
        if owners is None:
            owners = partition_graph(
                checked,
                world_size,
                topology=machine,
                method=partition,
                seed=options.seed,
                vertex_weights=weights,
                block=getattr(strategy, "block", 1),  # so many consecutive ranks get vertices that are close
            )
        done("partition")
        problem = Problem(checked, owners, machine, method, options, source)
        arrangement = strategy.arrange(problem)
        done("relation and plan")
    if isinstance(checked, TypedGraph):
        arrangement = replace(arrangement, more=plan_edge_types(checked, problem, arrangement))
    if plans is not None and plans.store(problem.part):
        done("storing")
    inputs = _inputs(checked, arrangement, world_size)
    done("edges and items of ranks")
    plan = arrangement.plan
    _log.info(
        "%d vertices, %d edges on %d ranks of %s: %s; predicted %.3g s per exchange of %d-byte rows (%.1f%% "
        "above the bound); %s",
        checked.num_nodes,
        checked.num_edges,
        world_size,
        machine.name,
        f"plan {plan.method!r} with {plan.num_stages} stage(s)",
        plan.predicted_seconds,
        plan.row_bytes,
        100 * plan.gap,
        ", ".join(steps),
    )
    return inputs


def machine_of(topology: str | Topology, world_size: int) -> Topology:
    """The topology that is named; "auto": this host."""
    if isinstance(topology, str) and topology == "auto":
        return host_of_ranks(world_size)
    return resolve_topology(topology, world_size)


def _inputs(graph: Graph, arrangement: Arrangement, world_size: int) -> list[RankInputs]:
    """What each rank makes its share from."""
    planned: dict[str, Planned] = {HALO: arrangement}
    if arrangement.partial is not None:
        planned[PARTIAL] = arrangement.partial
    planned |= arrangement.more
    degrees = (graph.in_degrees(), graph.out_degrees())
    grid = None if arrangement.grid is None else Grid(*arrangement.grid)

    def rows(ids: NDArray[np.int64]) -> Rows:
        vertices = ids if grid is None else ids // grid.slices
        return ids, np.stack([*(each[vertices] for each in degrees), ids])

    exchanges: list[list[RankItems]] = [[] for _ in range(world_size)]
    for name, each in planned.items():
        frame, items = items_of_ranks(each.plan, each.classes)
        for rank, (owned, wanted_rows, incoming) in enumerate(items):
            mine = RankItems(name, each.plan, frame.num_owned, rows(owned), wanted_rows, rows(incoming))
            exchanges[rank].append(mine)
    return [
        RankInputs(
            rank,
            tuple(exchanges[rank]),
            arrangement.edges_of(rank),
            (graph.num_nodes, graph.num_edges),
            choice=arrangement.why,
            placement=arrangement.placement,
            grid=grid,
        )
        for rank in range(world_size)
    ]
