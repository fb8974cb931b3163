"""Models that hold a communicator are copied, as to keep the best one, and saved as their state."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import dgcl.nn
from tests.support.layer_ranks import on_ranks, rows
from tests.support.samples import named


def model_of(comm: dgcl.Communicator) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 4), dgcl.nn.BatchNorm(4, comm=comm), dgcl.nn.Dropout(0.5, comm=comm)
    ).double()


@pytest.mark.sample(2, whole=True)
@pytest.mark.parametrize("ranks", ["threads", "processes"])
@named("how", {"copy": copy.copy, "deepcopy": copy.deepcopy})
def test_a_copy_shares_the_communicator_and_its_end_is_not_that_of_the_original(how, ranks, rank_pool):
    results = on_ranks(2, copied, how) if ranks == "threads" else rank_pool(2).run(copied_in_a_process, how)
    assert results == [True, True]


def copied(comm, how) -> bool:
    model = model_of(comm)
    again = how(model)
    assert again[1]._comm is comm
    del again
    gc.collect()
    x = rows(4)[comm.owned_ids].requires_grad_()
    comm.expand(model(x)).sum().backward()
    return bool(x.grad.isfinite().all())


def copied_in_a_process(how) -> bool:
    from tests.support.layer_ranks import CYCLE, part

    return copied(dgcl.build_comm_info(CYCLE, "uniform", part=part(2)), how)


def test_a_model_with_a_communicator_is_saved_as_its_state():
    def rank(comm) -> bool:
        model = model_of(comm)
        with pytest.raises(
            TypeError, match=r"a Communicator belongs to this process .* save model\.state_dict\(\)"
        ):
            pickle.dumps(model)
        state = pickle.loads(pickle.dumps(model.state_dict()))
        plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
        plain.load_state_dict(state)
        x = torch.ones(comm.num_owned, 4, dtype=torch.float64)
        return torch.equal(model.eval()(x), plain.eval()(x))

    assert on_ranks(2, rank) == [True, True]
