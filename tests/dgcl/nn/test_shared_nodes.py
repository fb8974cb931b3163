"""dgcl.nn.sum_shared: the sums of one device and their derivatives, the same bits for all copies, kept plans."""

import gc
import weakref

import numpy as np
import pytest
import torch

import dgcl
import dgcl.nn
from dgcl.errors import DisagreementError
from dgcl.ranks.context import context
from tests.support.samples import named

#: Nodes of each rank: of all ranks, of some, several times on a rank, of one rank, of none.
NODES = {
    "elements": [[0, 1, 2, 3], [3, 2, 4, 5], [5, 4, 3, 9]],
    "repeated": [[7, -2, 7, 7], [10**15, 7, 10**15], [-2]],
    "empty-rank": [[1, 2], [], [2, 1]],
    "one-rank": [[4, 4, 0]],
}


def derivatives(values, x):
    (first,) = torch.autograd.grad(values.pow(3).sum(), x, create_graph=True)
    return values, first, *torch.autograd.grad(first.pow(2).sum(), x)


@named("nodes", NODES)
def test_the_sums_of_one_device(nodes):
    everything = torch.tensor(np.concatenate(nodes), dtype=torch.int64)
    same = (everything[:, None] == everything).double()
    whole = torch.randn(len(everything), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = derivatives(same @ whole.requires_grad_(), whole)

    def run():
        mine = np.cumsum([0, *map(len, nodes)])[context.require_control().rank :][:2]
        ids, x = (each.detach()[slice(*mine)].clone() for each in (everything, whole))
        for one, other in zip(
            derivatives(dgcl.nn.sum_shared(x.requires_grad_(), ids), x), expected, strict=True
        ):
            torch.testing.assert_close(one, other[slice(*mine)])
        bits = dgcl.nn.sum_shared(x.detach().bfloat16(), ids)
        return ids, torch.cat([bits, dgcl.nn.sum_shared(ids, ids)[:, None]], 1)

    ids, copies = map(torch.cat, zip(*dgcl.launch(run, len(nodes)), strict=True))
    assert len(ids.unique()) == len(copies.unique(dim=0))  # all copies have the same


@pytest.mark.parametrize("change", [torch.clone, lambda ids: ids.add_(0)], ids=["new", "changed"])
def test_new_ids_on_one_rank_are_an_error_on_all(change):
    def run():
        rank, ids = context.require_control().rank, torch.arange(2)
        dgcl.nn.sum_shared(torch.ones(2), ids)
        ids = change(ids) if rank == 1 else ids
        with pytest.raises(DisagreementError, match="rank 1 is in sum_shared with new ids"):
            dgcl.nn.sum_shared(torch.ones(2), ids)

    dgcl.launch(run, 3)


def test_plans_are_kept():
    """With the same ids nothing is planned, with changed ones it is; none outlives its ranks, the current one stays."""

    def run():
        comm = dgcl.build_comm_info([[0, 1], [1, 0]], "uniform", part=[0, 1])
        ids, calls, sums = torch.arange(2) + comm.rank, [comm.control.num_calls], []
        for call in range(3):
            if call == 2:
                ids += comm.rank
            sums.append(dgcl.nn.sum_shared(torch.ones(2), ids).tolist())
            calls.append(comm.control.num_calls)
        assert dgcl.current_communicator() is comm
        with pytest.raises(ValueError, match="= 2 rows"):
            dgcl.nn.sum_shared(torch.ones(3), ids)
        with pytest.raises((TypeError, ValueError), match="ids must be"):
            dgcl.nn.sum_shared(torch.ones(2), torch.ones(2) if comm.rank else torch.arange(2))
        return sums, np.diff(calls), weakref.ref(comm.control)

    for rank, (sums, calls, control) in enumerate(dgcl.launch(run, 2)):
        assert sums == [[1 + rank, 2 - rank]] * 2 + [[1, 1]]
        assert calls[1] == 0 < calls[2] == calls[0]
        gc.collect()
        assert control() is None
