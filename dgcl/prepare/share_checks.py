"""Check of a share that was read from a file: every index in range.

A part file whose hash is right can still hold anything: a hash guards against damage, not against a program that wrote
nonsense. Compiled code indexes by these tables without looking. Whether ranks fit together is what
:mod:`dgcl.transport.loaded_rows` finds out.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from dgcl.prepare.share import Share
from dgcl.program.checks import check_program
from dgcl.program.exchange import PARTIAL
from dgcl.relation.local_graph import LocalGraph


def check_share(share: Share, rank: int, world_size: int) -> None:
    """Check that compiled code may index by a share's tables.

    Time: a few passes over the rank's edges.

    Raises:
        ValueError: Naming the table.
    """
    num_nodes, num_edges = share.sizes
    if num_nodes < 0 or num_edges < 0:
        raise ValueError(f"a graph of {num_nodes} vertices and {num_edges} edges")
    for exchange in share.exchanges:
        program = exchange.program
        check_program(program)
        if (program.rank, program.world_size) != (rank, world_size):
            raise ValueError(
                f"exchange {exchange.name!r} is for rank {program.rank} of {program.world_size}, and this is rank"
                f" {rank} of {world_size}"
            )
        if program.num_owned != share.program.num_owned:
            raise ValueError(
                f"exchange {exchange.name!r} has other owned rows than {share.exchanges[0].name!r}"
            )
    slices = 1 if share.grid is None else share.grid.slices
    _check_local(share.local, num_nodes, num_edges, slices)
    local = share.local
    degrees = np.diff(local.indptr)[: local.num_core]
    if share.edges == "head" and not np.array_equal(degrees, local.in_degrees[: local.num_core]):
        raise ValueError("indptr gives its vertices other in-edges than in_degrees says")
    _check_same(local.owned_ids, share.program.owned_ids, "owned_ids")
    _check_same(local.halo_ids, share.program.halo_ids, "halo_ids")
    partial = [each.program.halo_ids for each in share.exchanges if each.name == PARTIAL]
    _check_same(local.partial_ids, np.concatenate([np.zeros(0, np.int64), *partial]), "partial_ids")


def _check_local(local: LocalGraph, num_nodes: int, num_edges: int, slices: int) -> None:
    """Refuse a local graph whose arrays have other lengths, types or ranges than its counts say."""
    for field in fields(local):
        value = getattr(local, field.name)
        expected = np.int32 if field.name == "indices" else np.int64
        if isinstance(value, np.ndarray) and (value.dtype != expected or value.ndim != 1):
            raise ValueError(f"{field.name} holds {value.dtype} in {value.ndim} dimensions")
    if local.num_nodes_global != num_nodes or not 0 <= local.num_replicas <= local.num_owned:
        raise ValueError("its numbers of vertices and replicas cannot be")
    indptr, rows, num_heads = local.indptr, local.indices, local.num_owned + len(local.partial_ids)
    if len(indptr) != num_heads + 1:
        raise ValueError("its edges lead to rows that are not there")
    if indptr[0] != 0 or indptr[-1] != len(rows) or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("indptr does not divide its edges")
    lengths = {
        "edge_first": num_heads if len(local.edge_first) == num_heads else local.num_owned,
        "edge_order": local.num_edges,
        "in_degrees": local.num_local,
        "out_degrees": local.num_local,
        "partial_in_degrees": len(local.partial_ids),
    }
    ends = {
        "owned_ids": num_nodes * slices,
        "halo_ids": num_nodes * slices,
        "partial_ids": num_nodes * slices,
        "indices": local.num_local,
        "edge_first": num_edges + 1,
        "edge_order": num_edges,
        "in_degrees": num_edges + 1,
        "out_degrees": num_edges + 1,
        "partial_in_degrees": num_edges + 1,
    }
    for name, length in lengths.items():
        value = getattr(local, name)
        if value is not None and len(value) != length:
            raise ValueError(f"{name} has {len(value)} entries for {length}")
    for name, end in ends.items():
        value = getattr(local, name)
        if value is not None and len(value) and (value.min() < 0 or value.max() >= end):
            raise ValueError(f"{name} is not within [0, {end})")


def _check_same(mine: NDArray[np.int64], of_program: NDArray[np.int64], name: str) -> None:
    if not np.array_equal(mine, of_program):
        raise ValueError(f"{name} of its edges are not those of its exchange")
