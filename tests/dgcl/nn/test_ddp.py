"""dgcl.nn with DistributedDataParallel, which averages gradients: ddp=True makes up for it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgcl
import dgcl.nn
from tests.support.awkward import CASES, Case

CASE = next(case for case in CASES if case.name == "one-rank-trains")
STEPS = 4


class MeanModel(nn.Module):
    """Two layers of mean aggregation, with normalisation and dropout between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 8), dgcl.nn.BatchNorm(8), nn.Linear(8, 3)
        self.drop = dgcl.nn.Dropout(0.3, seed=5)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def forward(self, x: Tensor) -> Tensor:
        graph = dgcl.current_communicator().local_graph("csr")
        h = self.drop(torch.tanh(self.norm(self.first(graph.mean(dgcl.graph_allgather(x))))))
        return self.second(graph.mean(dgcl.graph_allgather(h)))


def train(case: Case, world_size: int, ddp: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Losses of all steps and the final parameters of one rank."""
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(world_size))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.num_nodes, 5, dtype=torch.float64, generator=generator)[comm.owned_ids]
    labels = torch.arange(case.num_nodes)[comm.owned_ids] % 3
    mask = torch.from_numpy(case.train)[comm.owned_ids]
    model = MeanModel().double()
    wrapped = DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = dgcl.nn.loss(F.cross_entropy, ddp=ddp)(wrapped(x), labels, mask)
        loss.backward()
        if not ddp:
            dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
    comm.close()
    return losses, [p.detach() for p in model.parameters()]


def test_ddp_gives_the_run_of_one_rank(rank_pool):
    ((losses, parameters),) = dgcl.launch(train, 1, CASE, 1, False)
    assert losses[0] != losses[-1]
    for ddp in (False, True):
        for found_losses, found in rank_pool(4).run(train, CASE, 4, ddp):
            torch.testing.assert_close(found_losses, losses, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(found, parameters, rtol=1e-11, atol=1e-11)


def test_the_loss_of_one_rank_is_torchs(rank_pool):
    logits = torch.randn(CASE.num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = F.cross_entropy(logits[CASE.train], torch.arange(CASE.num_nodes)[CASE.train] % 3)
    for found in rank_pool(4).run(one_loss, CASE, logits):
        torch.testing.assert_close(found, expected)


def one_loss(case: Case, logits: Tensor) -> Tensor:
    """The loss of given logits."""
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4))
    own = comm.owned_ids
    return dgcl.nn.loss(F.cross_entropy)(
        logits[own], torch.arange(case.num_nodes)[own] % 3, torch.from_numpy(case.train)[own]
    )
