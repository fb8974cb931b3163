"""Memory of results is used again after they died, whatever view lived longest, and never before.

======================  =============================================================
what                    judged by
======================  =============================================================
reuse                   addresses
a view that lives on    its elements, after as many results as there were before
what is kept            bytes, against the most that was in use at one time
another thread          results that die there
======================  =============================================================
"""

import threading

import pytest
import torch
from torch import Tensor

from dgcl.aggregation.results import ResultMemory
from tests.support.samples import named

LIKE = torch.empty(0)
ROWS, WIDTH = 1000, 64


def made(memory: ResultMemory, fill: float, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> Tensor:
    return memory.empty(LIKE, rows, WIDTH, dtype).fill_(fill)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_result_that_died_is_used_again(dtype):
    memory = ResultMemory()
    first = made(memory, 1, 4 * ROWS, dtype)
    address, size = first.data_ptr(), first.nbytes
    del first
    assert memory.num_bytes == size
    again = made(memory, 2, 4 * ROWS, dtype)
    assert again.data_ptr() == address
    assert (again == 2).all()


@named(
    "view",
    {
        "rows": lambda x: x[3:5],
        "detached": lambda x: x.detach(),
        "transposed": lambda x: x.t(),
        "numpy": lambda x: x.numpy(),
        "another type": lambda x: x.view(torch.int32),
    },
)
def test_a_view_keeps_its_memory(view):
    memory = ResultMemory()
    kept = view(made(memory, 1))
    before = torch.as_tensor(kept).clone()
    others = [made(memory, 2) for _ in range(3)]
    assert torch.equal(torch.as_tensor(kept), before)
    assert len({each.data_ptr() for each in others}) == 3


def test_what_autograd_saved_keeps_its_memory():
    memory = ResultMemory()
    weight = torch.ones(WIDTH, requires_grad=True)
    y = (made(memory, 3) * weight).sum()
    made(memory, 5)
    y.backward()
    assert (weight.grad == 3 * ROWS).all()


def test_no_more_is_kept_than_was_in_use():
    memory = ResultMemory()
    for rows in range(ROWS, 2 * ROWS, 100):
        made(memory, 0, rows)
        assert memory.num_bytes == rows * WIDTH * 4
    two = [made(memory, 0, 2 * ROWS) for _ in range(2)]
    del two
    assert memory.num_bytes == 2 * 2 * ROWS * WIDTH * 4
    three = [made(memory, 0, ROWS) for _ in range(3)]
    assert memory.num_bytes == sum(each.nbytes for each in three)


def test_results_die_in_another_thread():
    memory = ResultMemory()
    held = [made(memory, 1)]
    address = held[0].data_ptr()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert made(memory, 2).data_ptr() == address


@pytest.mark.parametrize("rows", [0, 1])
def test_small_results_are_torchs_own(rows):
    memory = ResultMemory()
    assert made(memory, 1, rows).shape == (rows, WIDTH)
    assert memory.num_bytes == 0
