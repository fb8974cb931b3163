"""Rows that offloading loads, by way to divide vertices: counted, so the same on every machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dgcl
from dgcl.graph import as_graph
from docs.figures.framework import Figure, Run

PAGE = "offload.md"
GRAPHS, CHUNK_BY, RANKS, CHUNKS = ("uk_2007_05_100k", "ogbn_arxiv"), ("metis", "range"), 2, 16


def rows_on_rank(path: Path, by: str) -> tuple[list[int], int]:
    """V_ori, V_p2p, V_ru and the rows that a forward loads, over all ranks; and the slots of this one."""
    comm = dgcl.build_comm_info(as_graph(path), "uniform")
    arrangement = dgcl.Offload(comm, chunks=CHUNKS, chunk_by=by)._arrangement
    return [*arrangement.volumes, arrangement.delivered[0]], arrangement.tables.num_slots


def rows(run: Run) -> Figure:
    """Rows over vertices of two ranks with 16 chunks each."""
    columns = dict.fromkeys(("V_ori", "V_p2p", "V_ru", "loaded, optimal"), ".3f")

    def counted() -> Iterator[list[Any]]:
        for name in run.some(GRAPHS):
            num_nodes = run.graph(name).num_nodes
            for by in CHUNK_BY:
                counts, slots = zip(*dgcl.launch(rows_on_rank, RANKS, run.path(name), by), strict=True)
                yield [name, by, *(rows / num_nodes for rows in counts[0]), max(slots)]

    return Figure({"graph": "", "chunks by": "", **columns, "slots": ""}, counted())


FIGURES = {"offload-rows": rows}
