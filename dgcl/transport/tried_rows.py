"""Checks, by first calls on GPUs, that the rows which arrive are those that programs name by id.

Programs that do not fit together are found out before anything moves (:mod:`dgcl.transport.common.program_agreement`);
here what has moved is compared with the ids that they state. Ids travel as digits in float32, so that their sums are
exact.
Called by `dgcl/transport/cuda/device_exchange`. Free to change while a device that adds wrong rows is found out, and
its ranks then use collectives (`tests/dgcl/transport/cuda/test_communicator.py`).
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.program.rank_program import Program
from dgcl.transport.base import Transport

_DIGIT_BITS = 14
_DIGITS = 4


def try_rows(
    transport: Transport, programs: Mapping[str, Program], device: torch.device
) -> tuple[str | None, int]:
    """Expand and fold the ids of this rank's rows, and compare. Collective; two small calls of each exchange.

    Ids travel as digits in float32, so that sums of them are exact for up to 1,024 ranks.

    Returns:
        What is wrong; how many rows more than all ranks hold were added here: 0 over all ranks.
    """
    wrong, counted = None, 0
    for number, (name, program) in enumerate(programs.items()):
        owned, halo = _digits(program.owned_ids).to(device), _digits(program.halo_ids).to(device)
        held = transport.expand(owned, number)
        sums = transport.fold(torch.cat([owned, halo]), number)
        transport.synchronize()  # rows of devices arrive behind the call
        if not torch.equal(held[program.num_owned :], halo):
            wrong = wrong or f"exchange {name!r} brings rank {program.rank} other rows than its part says"
        copies = sums[:, -1:]
        if not torch.equal(sums, owned * copies) or (copies < 1).any():
            wrong = wrong or f"exchange {name!r} adds other rows than a vertex's on rank {program.rank}"
        counted += int(copies.double().sum()) - program.num_local
    transport.bytes_sent[:] = 0  # these calls are nobody else's
    return wrong, counted


def _digits(ids: NDArray[np.int64]) -> Tensor:
    """``(n, 5)`` float32: ids in digits of 14 bits, the lowest first, and a one."""
    shifts = np.arange(_DIGITS) * _DIGIT_BITS
    columns = (ids[:, None] >> shifts) & ((1 << _DIGIT_BITS) - 1)
    return torch.from_numpy(np.column_stack([columns, np.ones(len(ids), np.int64)]).astype(np.float32))
