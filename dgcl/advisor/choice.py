"""Implements ``dgcl.advise``: reads its arguments, partitions the graph, and asks which strategy to take.

Local: no rank is started and nothing is trained, so one process can ask for any machine. Given sizes alone
(``GraphShape``), nothing is partitioned. A memory limit below the model's parameters is an error at once.
Run by users as ``dgcl.advise``; called by `dgcl/cli/advise`. Free to change while the chosen strategy keeps the memory
limit, and graphs of HongTu's paper (SIGMOD 2023) are offloaded where they are there
(`tests/dgcl/advisor/test_choice.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgcl.advisor.advice import Advice
from dgcl.advisor.counts import Candidates
from dgcl.advisor.device_rates import Rates, read_rates
from dgcl.advisor.model_costs import Model, read_model
from dgcl.advisor.weighing import weigh
from dgcl.graph import Graph, as_graph
from dgcl.partition import partition_graph
from dgcl.partition.check_part import check_part
from dgcl.planner.reading.render import size
from dgcl.planner.synthetic import GraphShape
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.sizes import as_bytes

if TYPE_CHECKING:
    from torch.nn import Module


def advise(
    graph: Any,
    *,
    model: str | Model | Module,
    topology: str | Topology = "auto",
    ranks: int | None = None,
    part: Any = None,
    memory_limit: int | str | None = None,
    rates: str | Rates | None = None,
    seed: int = 0,
) -> Advice:
    """Predict time and memory of each strategy for a model, and choose one. Local: nothing runs, and nothing is timed.

        >>> advice = dgcl.advise(graph, model="gcn:602,256,41", topology="dgx1")
        >>> print(advice.table())
        >>> comm = advice.build()                          # collective

    Args:
        graph: As for :func:`dgcl.build_comm_info`; or sizes alone, a :class:`~dgcl.planner.synthetic.GraphShape`.
        model: As ``gcn:602,256,41``: gcn, sage or gin, and widths; ``gat:602,8x32,41`` with heads, as gatv2 and
            transformer; ``mgn:64,64/16`` with the width of edges' rows. Or your module, of layers of :mod:`dgcl.nn`,
            PyG or DGL: it runs once without memory and without a graph, with rows for the arguments that are neither
            ``edge_index``, ``g``, ``graph``, ``data``, ``batch`` nor ``comm``. Or what
            :func:`~dgcl.advisor.model_costs.read_model` made of it.
        topology: A preset, a file or a :class:`~dgcl.topology.Topology`; "auto": this host, of ``ranks`` ranks.
        ranks: How many; None: one for each device.
        part: (N,) the owner of each vertex; None: METIS decides.
        memory_limit: Bytes of a rank's device, or like "14GB".
        rates: Of devices: "here" (measured on a core of this host, shared by the ranks), or GB/s of sums and GFLOP/s of
            products, as "900,14000"; None: by the topology's name.
        seed: Of METIS.

    Raises:
        ValueError, TypeError: The model is not understood, the limit is below the parameters, the topology has fewer
            devices than ranks, or the graph or its part is none.
    """
    described = read_model(model)
    limit = None if memory_limit is None else as_bytes(memory_limit, "memory_limit")
    least = described.parameters * described.itemsize
    if limit is not None and limit < least:
        raise ValueError(
            f"memory_limit must be above the model's parameters, {size(least)} (got {size(limit)})"
        )
    if topology == "auto":
        from dgcl.ranks.machines import host_of_ranks

        topology = host_of_ranks(ranks or 1)
    machine = resolve_topology(topology, ranks)
    whole = graph if isinstance(graph, GraphShape) else as_graph(graph)
    owners = None
    if isinstance(whole, Graph):
        if part is None:
            owners = partition_graph(whole, machine.num_devices, topology=machine, seed=seed)
        else:
            owners = check_part(part, whole.num_nodes, machine.num_devices)
    return weigh(Candidates(whole, owners, described, machine, seed), limit, read_rates(rates, machine))
