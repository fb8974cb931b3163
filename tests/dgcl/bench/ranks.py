"""What ranks do in the tests of the exchanges; importable, so that processes can run it."""

import torch
from torch import Tensor

from dgcl.bench import build_comm_info
from dgcl.bench.transports import Baseline, calls_of
from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from tests.support.awkward import CASES
from tests.support.ranks import folded, local_ids, random_bits, same_bits

BY_NAME = {case.name: case for case in CASES}


def build(case: str, method: str) -> Communicator:
    """The communicator of one awkward graph with its own parts."""
    control = context.require_control()
    chosen = BY_NAME[case]
    first = control.rank == 0
    return build_comm_info(
        chosen.graph if first else None,
        f"uniform{control.world_size}",
        part=chosen.part(control.world_size) if first else None,
        method=method,
        timeout=60.0,
    )


def expands(comm: Communicator, exchange: Baseline, width: int, dtype: torch.dtype, seed: int) -> bool:
    """Whether every local row is bit for bit the owner's, with free memory poisoned before."""
    whole = random_bits((comm.num_nodes, width), dtype, seed)
    exchange.poison()
    return same_bits(exchange.expand(whole[comm.owned_ids]), whole[local_ids(comm)])


def folds(comm: Communicator, exchange: Baseline, width: int, dtype: torch.dtype, seed: int) -> bool:
    """Whether every owned row is the sum of the ranks' rows; whole numbers, so that sums are exact."""
    generator = torch.Generator().manual_seed(100 * seed + comm.rank)
    rows = torch.randint(0, 30, (comm.num_local, width), generator=generator).to(dtype)
    before = rows.clone()
    exchange.poison()
    return same_bits(exchange.fold(rows), folded(comm, rows)) and same_bits(rows, before)


def both_ways(case: str, method: str) -> list[str]:
    """What went wrong in three rounds of calls with several widths and types."""
    comm = build(case, method)
    exchange = calls_of(comm)
    wrong = []
    for seed in range(3):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int32):
            for width in (1, 5):
                if not expands(comm, exchange, width, dtype, seed):
                    wrong.append(f"expand {width} {dtype} round {seed}")
                if not folds(comm, exchange, width, dtype, seed):
                    wrong.append(f"fold {width} {dtype} round {seed}")
    comm.close()
    return wrong


def gradients(case: str, method: str) -> tuple[Tensor, Tensor]:
    """The loss of two exchanges with something between, and the gradient of the first's input, by id."""
    comm = build(case, method)
    whole = torch.randn(comm.num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = whole[comm.owned_ids].requires_grad_()
    h = torch.tanh(comm.expand(x))
    sums = comm.fold(h)
    loss = (comm.expand(sums) ** 2).sum()
    loss.backward()
    assert x.grad is not None
    total = comm.all_reduce_sum(loss.detach())
    gradient = comm.collect(x.grad, dst=None)
    comm.close()
    assert gradient is not None
    return total, gradient
