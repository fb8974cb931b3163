"""Network cards of a host and who uses which: one exchange on each layout, predicted, counted and timed.

Rank r of a host uses card ``LAYOUT[r]``. Rows leave by the card of the rank that sends them and arrive by the card of
the one that receives them, as where each GPU has a NIC behind its own switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import dgcl
from dgcl.graph import as_graph
from dgcl.partition import partition_graph
from dgcl.planner.cost import predicted_seconds
from dgcl.ranks import machines
from dgcl.ranks.context import context
from dgcl.topology.copy_rates import CopyRates
from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.rank_main import limited_topology, timed_exchanges

LAYOUTS = {
    "one card": [0, 0, 0, 0],
    "a card for two ranks": [0, 0, 1, 1],
    "a card for each rank": [0, 1, 2, 3],
}
PARTS = ("flat", "by hosts")  # see exchange_on_rank
METHODS = ("direct", "auto")


def small_world(num_vertices: int, near: int = 8, far: int = 8, seed: int = 0) -> np.ndarray:
    """``(2, E)`` edges of a small world (Kleinberg 2000): points in a square, each of which reads its ``near`` nearest
    others, and ``far`` at distances of which every order of magnitude is as likely. Nobody planted its parts."""
    from scipy.spatial import cKDTree

    generator = np.random.default_rng(seed)
    points = generator.random((num_vertices, 2))
    tree = cKDTree(points)
    nearest = tree.query(points, near + 1)[1][:, 1:]
    distance = num_vertices ** (-0.5 * generator.random((num_vertices, far)))
    angle = 2 * np.pi * generator.random((num_vertices, far))
    aims = points[:, None] + distance[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    reads = np.concatenate([nearest, tree.query(aims % 1.0)[1]], axis=1)
    return np.stack([reads.reshape(-1), np.repeat(np.arange(num_vertices), near + far)])


def cards_of_ranks(pool: HostPool) -> list[int]:
    """The card of each rank of the job, counted on its host."""
    return [pool.card_of_rank[position] for count in pool.ranks for position in range(count)]


def crossing_edges(edges: np.ndarray, owners: np.ndarray, hosts: Sequence[int]) -> int:
    """Edges whose two vertices are on different hosts."""
    host = np.asarray(hosts)[owners]
    return int((host[edges[0]] != host[edges[1]]).sum())


def measure(
    pool: HostPool,
    edges: np.ndarray,
    parts: str,
    method: str,
    *,
    row_bytes: int = 512,
    calls: int = 3,
    gathered: bool = False,
    rates: CopyRates | None = None,
) -> dict[str, Any]:
    """One exchange of a graph on the hosts of a pool.

    Args:
        pool: The ranks; their links are limited.
        edges: The graph.
        parts: One of :data:`PARTS`.
        method: Of the planner.
        row_bytes: Of a row, a multiple of 4.
        calls: How many are timed.
        gathered: Plan for the topology that the ranks find out, and not for the one that was made.
        rates: What the ranks then find hosts to copy at; None: what they measure, which other work changes.

    Returns:
        ``edges`` and ``rows`` that cross hosts; seconds ``predicted`` on the links that were made, and
        ``measured``; ``cards``: by (host, card) the bytes that its ranks sent to others' and what it counted.
    """
    assert pool.megabytes is not None
    cards = cards_of_ranks(pool)
    topology = limited_topology(pool.host_of_rank, pool.megabytes, cards)
    told = "auto" if gathered else topology
    args = (edges, topology, told, parts, method, pool.host_of_rank, row_bytes, calls, rates)
    found = pool.run(exchange_on_rank, *args)
    owners = np.empty(sum(len(one["owned"]) for one in found), np.int64)
    for rank, one in enumerate(found):
        owners[one["owned"]] = rank
    by_card: dict[tuple[int, int], dict[str, int]] = {}
    places = list(zip(pool.host_of_rank, cards, strict=True))
    for one, place in zip(found, places, strict=True):
        entry = by_card.setdefault(place, {"sent": 0, "counted": 0})
        entry["sent"] += sum(
            count for count, other in zip(one["moved"], places, strict=True) if other != place
        )
        entry["counted"] = max(entry["counted"], one["counted"])
    return {
        "edges": crossing_edges(edges, owners, pool.host_of_rank),
        "rows": sum(one["crossing"] for one in found) // (row_bytes * calls),
        "predicted": found[0]["predicted"],
        "measured": float(np.mean([one["seconds"] for one in found])),
        "cards": by_card,
    }


def exchange_on_rank(
    edges: np.ndarray,
    made: dgcl.Topology,
    told: str | dgcl.Topology,
    parts: str,
    method: str,
    hosts: Sequence[int],
    row_bytes: int,
    calls: int,
    rates: CopyRates | None,
) -> dict[str, Any]:
    """What one rank sees of it.

    Flat parts are made as if all ranks were alike and dealt to them in a drawn order, for what METIS calls them means
    nothing; by hosts is what the library does by itself.
    """
    control = context.require_control()
    part = None
    if control.rank == 0 and parts != "by hosts":
        order = np.random.default_rng(1).permutation(control.world_size)
        part = order[partition_graph(as_graph(edges), control.world_size)]
    steady = nullcontext() if rates is None else patch.object(machines, "copy_rates", lambda *_: rates)
    with steady:
        comm = dgcl.build_comm_info(
            torch.from_numpy(edges),
            told,
            part=part,
            method=method,
            plan=dgcl.PlanOptions(row_bytes=row_bytes),
        )
    rows = torch.randn(comm.num_owned, row_bytes // 4)
    comm.expand(rows)
    control.barrier()
    timed = timed_exchanges(comm, rows, hosts, calls)
    predicted = predicted_seconds(comm.plan.trees, made.arrays(), row_bytes)
    owned = comm.owned_ids.numpy()
    comm.close()
    return {"owned": owned, "predicted": predicted, **timed}
