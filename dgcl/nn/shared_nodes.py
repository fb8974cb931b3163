"""Sums over the copies of nodes that lie on several ranks, as in meshes whose elements are divided: ``sum_shared``.

The first copy of a node, by rank and place, owns it: the others' rows are added there, and the sum is sent back. To
find owners, rank ``id % world_size`` keeps which rank has a node. The plan is kept as long as the tensor of ids.
Called by users (``dgcl.nn.sum_shared``). Free to change while all copies get the same bits, sums and second derivatives
are those of one device, and new ids on one rank alone raise on all (`tests/dgcl/nn/test_shared_nodes.py`).
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.aggregation.sparse import sum_dtype
from dgcl.local_build import build_from_local
from dgcl.ranks.context import context
from dgcl.ranks.requests import Requests
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.tensors import beside_the_graph, require_tensors
from dgcl.ranks.whole_rows import agree
from dgcl.transport.row_checks import check_rows, version_of


@beside_the_graph
def sum_shared(rows: Tensor, ids: Tensor) -> Tensor:
    """For each copy of a node the sum over all copies of it, on all ranks. Differentiable: its adjoint is itself.

        >>> forces = dgcl.nn.sum_shared(forces_of_elements, nodes)

    Needs :func:`dgcl.init` and no graph. Collective: every rank calls it with the same trailing shape and dtype. The
    first call with ``ids`` plans the exchange, which is kept as long as that tensor lives and does not change; so a
    tensor of ids is new, or was changed, on all ranks or on none.

    Args:
        rows: ``(n, *F)``, floating point, complex or integers, one row for each copy on this rank.
        ids: ``(n,)`` int64, any numbers: the node of each row; repeated where a rank has several copies.

    Returns:
        ``(n, *F)``, added in a fixed order, and the same bits for all copies; 16-bit floats are added as
        :meth:`dgcl.Communicator.fold` says.

    Raises:
        ValueError, TypeError: Other ids, on every rank; other rows.
        CommError: A peer is lost, late, or makes another call.
    """
    require_tensors(rows=rows, ids=ids)
    control = context.require_control()
    # Of each tensor of ids: its version, the communicator, and the local row of each copy's owner. And the
    # communicator used last: others may wait there for a rank whose ids are new.
    plans, _ = control.copies or (WeakTensorKeyDictionary(), None)
    plan = plans.get(ids)
    if plan is None or plan[0] != version_of(ids):
        current = context.communicator
        plans[ids] = plan = version_of(ids), *connect_copies(ids, rows.device)
        context.communicator = current
    _, comm, owners = plan
    control.copies = plans, comm
    check_rows(rows, len(owners), "len(ids)", comm.rank, comm.device)
    wide = rows.to(sum_dtype(rows.dtype))
    held = wide.new_zeros(comm.num_local, *rows.shape[1:]).index_add(0, owners, wide).to(rows.dtype)
    return comm.expand(comm.fold(held)).index_select(0, owners)


@set_up_call
def connect_copies(ids: Tensor, device: torch.device) -> tuple[Any, Tensor]:
    """A communicator whose vertices are copies, each one's halo the owners of its nodes; ``(n,)`` their local rows."""
    control = context.require_control()
    problem = None
    if ids.dtype != torch.int64 or ids.dim() != 1:
        problem = TypeError(f"ids must be (n,) int64 (got {ids.dtype}, shape {tuple(ids.shape)})")
    with control.collective("sum_shared with new ids"):
        counts = agree(control, problem, ids.numel())
    copies = np.arange(sum(counts[: control.rank]), sum(counts[: control.rank + 1]))
    nodes = ids.cpu().numpy()
    requests = Requests(control, nodes, nodes % control.world_size)
    theirs = torch.cat(requests.give_back(torch.from_numpy(copies)))
    _, firsts, places = np.unique(np.concatenate(requests.incoming), return_index=True, return_inverse=True)
    owners = theirs[firsts][places].split([len(each) for each in requests.incoming])
    edges = requests.answer(list(owners)).numpy(), copies
    timeout = 300.0 if control.limit == math.inf else control.limit
    comm = build_from_local(copies, edges, "uniform", method="direct", device=device, timeout=timeout)
    return comm, torch.from_numpy(comm.local.indices).to(comm.device)
