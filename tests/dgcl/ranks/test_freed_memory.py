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
    for _ in range(
        12
    ):  # a sliver beside an aligned block, of which glibc holds seven back, parts it from the rest
        torch.ones(BLOCK, dtype=torch.int8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(BLOCK, dtype=torch.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def of_threads() -> list[int]:
    """Before, in a rank that is a thread and keeps memory, and after."""
    return [cleared(), *dgcl.launch(cleared, 1, keep_memory=True), cleared()]


def of_kept() -> int:
    dgcl.init(keep_memory=True)  # as it is
    comm = dgcl.build_comm_info(np.array([[0, 1], [1, 0]]))
    for limit in ({"memory_limit": "1GB", "widths": (4, 4)}, {"chunks": 1, "store_cached": False}):
        with pytest.raises(ValueError, match="go without keep_memory=True"):
            dgcl.Offload(comm, **limit)
    dgcl.Offload(comm, chunks=1).close()
    return cleared()


def test_memory_of_threads_is_kept_while_they_run():
    with multiprocessing.get_context("spawn").Pool(
        1
    ) as fresh:  # a heap of a thread that ended would be used again
        before, kept, after = fresh.apply(of_threads)
    assert kept < PAGES // 10 < PAGES // 2 < min(before, after)


def test_a_process_keeps_its_memory():
    [kept] = dgcl.launch(of_kept, 1, ranks="processes", keep_memory=True)
    assert kept < PAGES // 10


def test_memory_is_kept_from_the_start():
    with pytest.raises(ValueError, match=r"keep_memory must be given in the first call of dgcl\.init"):
        dgcl.launch(lambda: dgcl.init(keep_memory=True), 2)
