"""Measures what a layer costs a rank besides communication, for :mod:`dgcl.replication`."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from dgcl.frameworks.csr_ops import build_adjacency, weighted_sum
from dgcl.ranks.control import Control
from dgcl.replication.work import Work

_ROWS = 1 << 14
_DEGREE = 16
_WIDEST = 1024  # elements; wider rows are taken to cost in proportion (dense work: to the square)
_LEAST = 0.05  # seconds of each measurement


def measure_work(row_bytes: int, device: torch.device | str = "cpu") -> Work:
    """Time a layer of float32 rows of about ``row_bytes`` on ``device``: a tenth of a second on a CPU.

    The mean, not the fastest: ranks that measure at the same time share cores and memory as they will in training.
    """
    place = torch.device(device)
    elements = max(row_bytes // 4, 1)
    width = min(elements, _WIDEST)
    num_rows = max(256, min(_ROWS, (1 << 20) // width))
    random = torch.Generator().manual_seed(0)
    sources = torch.randint(
        0, num_rows, (num_rows * _DEGREE,), dtype=torch.int32, generator=random, device="cpu"
    )
    indptr = torch.arange(0, num_rows * _DEGREE + 1, _DEGREE, dtype=torch.int32, device="cpu")
    edges = build_adjacency(indptr, sources, num_rows).to(place)
    x, weight = torch.ones(num_rows, width, device=place), torch.ones(width, width, device=place)

    def mean(call: Callable[[], object]) -> float:
        begin, rounds = 0.0, -1
        while rounds < 1 or time.perf_counter() - begin < _LEAST:
            if rounds == 0:  # the one before has warmed up
                begin = time.perf_counter()
            call()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            rounds += 1
        return (time.perf_counter() - begin) / rounds

    with torch.no_grad():
        summing = mean(lambda: weighted_sum(x, None, edges))
        multiplying = mean(lambda: x @ weight)
    scale = elements / width
    return Work(summing / len(sources) * scale, multiplying / num_rows * scale**2)


def measure_together(
    control: Control, row_bytes: int | None, device: torch.device | str = "cpu"
) -> Work | None:
    """:func:`measure_work` on all ranks at once, and the slowest rank's; None where rank 0's ``row_bytes`` is None.

    Collective; what the other ranks give does not count. What goes wrong on one rank is raised on all of them.

    Raises:
        RuntimeError: A rank could not measure; as is any error on that rank itself.
    """
    agreed = control.broadcast(row_bytes)
    if agreed is None:
        return None
    control.barrier()
    work, problem = Work(0.0, 0.0), None
    try:
        work = measure_work(agreed, device)
    except Exception as error:  # whatever it is: the others wait for this rank
        problem = error
    reports = control.exchange((work, None if problem is None else f"{type(problem).__name__}: {problem}"))
    if problem is not None:
        raise problem
    for rank, (_, why) in enumerate(reports):
        if why is not None:
            raise RuntimeError(f"rank {rank} cannot measure what a layer costs on {device}: {why}")
    return Work(max(work.edge for work, _ in reports), max(work.row for work, _ in reports))
