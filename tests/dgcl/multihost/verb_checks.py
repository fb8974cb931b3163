"""What must hold of the two verbs between hosts; run on every rank, each returns what it compared.

Plans are of random trees with relays, so that rows pass through ranks of other hosts and come back to a host that
had them; the dense answers know nothing of plans.
"""

import torch

from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from tests.support.plans import random_world
from tests.support.ranks import folded, join, local_ids, random_bits, same_bits

EXACT = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64)
DTYPES = (*EXACT, torch.uint8, torch.bool)
SHAPES = ((), (1,), (0,), (2, 3), (129,))
TIMEOUT = 60.0
UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # half the distance of neighbours at 1


def opened(trees: str) -> Communicator:
    """This rank's communicator on a random graph with hand-made trees."""
    return join(random_world(5, context.require_control().world_size, trees, num_edges=400).shares(), TIMEOUT)


def expand_is_bitwise(trees: str) -> int:
    """Every bit of every element type, in rows of any shape."""
    comm, compared = opened(trees), 0
    for dtype in DTYPES:
        for shape in SHAPES:
            whole = random_bits((comm.num_nodes, *shape), dtype, seed=1)
            assert same_bits(comm.expand(whole[comm.owned_ids]), whole[local_ids(comm)]), (dtype, shape)
            compared += 1
    comm.close()
    return compared


def fold_adds_up(trees: str) -> int:
    """Sums of small whole numbers are exact in every type; of 16-bit floats within one rounding per hop."""
    comm, compared = opened(trees), 0
    generator = torch.Generator().manual_seed(comm.rank)
    for dtype in EXACT:
        for shape in SHAPES:
            rows = torch.randint(0, 7, (comm.num_local, *shape), generator=generator).to(dtype)
            assert same_bits(comm.fold(rows), folded(comm, rows)), (dtype, shape)
            compared += 1
    for dtype, unit in UNITS.items():
        rows = torch.randn(comm.num_local, 33, dtype=torch.float64, generator=generator).to(dtype)
        exact, size = folded(comm, rows.double()), folded(comm, rows.double().abs())
        room = (1 + unit) ** (comm.plan.num_stages + 1) * (1 + 2.0**-23 * comm.world_size) - 1
        assert ((comm.fold(rows).double() - exact).abs() <= room * size).all(), dtype
        compared += 1
    comm.close()
    return compared


def bytes_are_those_planned(trees: str) -> bool:
    """What the runtime counted, against the plan's trees edge by edge."""
    world = random_world(5, context.require_control().world_size, trees, num_edges=400)
    comm = join(world.shares(), TIMEOUT)
    comm.expand(torch.zeros(comm.num_owned, 7))
    comm.fold(torch.zeros(comm.num_local, 2, 3, dtype=torch.float64))
    planned = torch.from_numpy(world.planned_rows)
    good = torch.equal(comm.bytes_sent["expand"], planned[comm.rank] * 28)
    good &= torch.equal(comm.bytes_sent["fold"], planned[:, comm.rank] * 48)
    comm.close()
    return good


def calls_leave_nothing_behind(trees: str) -> bool:
    """Forward, backward, forward, narrower and wider in turn, twice with the same bits."""
    comm, seen = opened(trees), []
    for _ in range(2):
        for width in (40, 3, 40):
            whole = torch.randn(comm.num_nodes, width, generator=torch.Generator().manual_seed(width))
            rows = whole[comm.owned_ids].requires_grad_()
            held = comm.expand(rows)
            assert same_bits(held.detach(), whole[local_ids(comm)])
            held.square().sum().backward()
            assert rows.grad is not None
            seen.append(rows.grad)
    comm.close()
    return all(same_bits(seen[i], seen[i + 3]) for i in range(3)) and same_bits(seen[0], seen[2])


def describe_channels() -> list[str]:
    """What ``comm.describe`` says of each peer."""
    comm = opened("direct")
    said = comm.describe().splitlines()[1:]
    comm.close()
    return said
