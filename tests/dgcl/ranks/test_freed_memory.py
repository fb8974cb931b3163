"""Pages that the kernel must clear for a block that was freed before, counted by the kernel itself."""

import ctypes
import multiprocessing
import resource

import numpy as np
import pytest
import torch

import dgcl

BLOCK = 40 << 20  # more than glibc keeps by itself
PAGES = BLOCK >> 12

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="takes glibc")


def cleared() -> int:
    # A sliver beside an aligned block, of which glibc holds seven back, parts it from the rest.
    for _ in range(12):
        torch.ones(BLOCK, dtype=torch.int8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(BLOCK, dtype=torch.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def of_threads() -> list[int]:
    return [cleared(), *dgcl.launch(cleared, 1, keep_memory=True), *dgcl.launch(refusing, 1)]


def refusing() -> int:
    comm = dgcl.build_comm_info(np.array([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="go without keep_memory=True"):
        dgcl.Offload(comm, memory_limit="1GB", widths=(4, 4))
    return cleared()


@pytest.mark.slow
def test_memory_of_threads_is_kept():
    """In a new process: the heap of a thread that has ended would be used again."""
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        before, *kept = fresh.apply(of_threads)
    assert max(kept) < PAGES // 10 < PAGES // 2 < before


@pytest.mark.slow
def test_a_process_keeps_its_memory():
    assert dgcl.launch(refusing, 1, ranks="processes", keep_memory=True)[0] < PAGES // 10
