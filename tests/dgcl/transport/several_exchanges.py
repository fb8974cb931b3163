"""What ranks do with a communicator of several exchanges; importable, so that processes can run it."""

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.bench.baselines import AllToAll
from dgcl.communicator import Communicator
from tests.support.plans import World, make_world
from tests.support.ranks import join, same_bits

RANKS = 4
NODES = 40


def worlds(*trees: str) -> dict[str, World]:
    """Relations of different graphs over the same parts, by the names of their exchanges; "halo" is the first."""
    generator = np.random.default_rng(5)
    part = generator.integers(0, RANKS, NODES)
    names = ("halo", "partials", "third")
    return {
        name: make_world(generator.integers(0, NODES, (60 + 50 * i, 2)), part, RANKS, each)
        for i, (name, each) in enumerate(zip(names, trees, strict=False))
    }


def shares_of(given: dict[str, World]) -> list[Any]:
    """What each rank needs of all of them."""
    return given["halo"].shares(*list(given.items())[1:])


def _integers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Small whole numbers: their sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).double()


def _dense_fold(comm: Communicator, name: str, rows: Tensor) -> Tensor:
    """What a fold must give here, added up densely; collective."""
    total = torch.zeros(comm.num_nodes, *rows.shape[1:], dtype=rows.dtype)
    for ids, theirs in comm.control.exchange((comm.layouts[name].local_ids, rows.detach().clone())):
        total.index_add_(0, torch.from_numpy(ids), theirs)
    return total[torch.from_numpy(comm.layouts[name].owned_ids)]


def check_verbs(comm: Communicator, names: list[str], rounds: int = 3) -> list[str]:
    """What goes wrong when both verbs of all exchanges take turns, with gradients, started or not."""
    wrong = []

    def hold(right: bool, what: str):
        if not right:
            wrong.append(f"rank {comm.rank}: {what}")

    for turn in range(rounds):
        whole = _integers((comm.num_nodes, 3 + turn), turn)
        for name in names:
            layout = comm.layouts[name]
            local, owned = map(torch.from_numpy, (layout.local_ids, layout.owned_ids))
            x = whole[owned].requires_grad_()
            out = comm.expand(x, exchange=name)
            hold(same_bits(out.detach(), whole[local]), f"expand of {name}")
            weights = _integers((len(local), 3 + turn), 100 * turn + comm.rank)
            other = names[names.index(name) - 1]  # another exchange between the forward and the backward
            comm.expand(whole[torch.from_numpy(comm.layouts[other].owned_ids)], exchange=other)
            (out * weights).sum().backward()
            hold(same_bits(x.grad, _dense_fold(comm, name, weights)), f"gradient of an expand of {name}")
            rows = weights.clone().requires_grad_()
            summed = comm.fold(rows, exchange=name)
            hold(same_bits(summed.detach(), _dense_fold(comm, name, weights)), f"fold of {name}")
            (summed * whole[owned]).sum().backward()
            hold(same_bits(rows.grad, whole[local]), f"gradient of a fold of {name}")
        for name in names:
            layout = comm.layouts[name]
            pending = comm.expand_async(whole[torch.from_numpy(layout.owned_ids)], exchange=name)
            halo = torch.from_numpy(layout.halo_ids)
            hold(same_bits(pending.wait(), whole[halo]), f"started expand of {name}")
            weights = _integers((layout.num_local, 2), turn + comm.rank)
            into = weights[: layout.num_owned].clone()
            comm.fold_halo(weights[layout.num_owned :], into, exchange=name)
            hold(same_bits(into, _dense_fold(comm, name, weights)), f"fold of halo rows of {name}")
    return wrong


def check_bytes(comm: Communicator, planned: dict[str, np.ndarray]) -> list[str]:
    """Which exchanges move other rows than planned; of each 2 expands and 1 fold of 5 float32."""
    wrong = []
    for repeats in range(2):
        before = {name: comm.bytes_sent_by(name) for name in planned}
        for name in planned:
            layout = comm.layouts[name]
            for _ in range(2):
                comm.expand(torch.ones(layout.num_owned, 5), exchange=name)
            comm.fold(torch.ones(layout.num_local, 5), exchange=name)
        for name, rows in planned.items():
            sent = comm.bytes_sent_by(name)
            for verb, expected in (("expand", 2 * rows[comm.rank]), ("fold", rows[:, comm.rank])):
                if (sent[verb] - before[name][verb]).tolist() != (expected * 20).tolist():
                    wrong.append(f"rank {comm.rank}, round {repeats}: {verb} of {name}")
    total = {verb: sum(comm.bytes_sent_by(name)[verb] for name in planned) for verb in ("expand", "fold")}
    if any(not torch.equal(total[verb], comm.bytes_sent[verb]) for verb in total):
        wrong.append("the sum over exchanges")
    return wrong


def check_all(
    shares: list[Any], planned: dict[str, np.ndarray], channel: str, all_to_all: bool = False
) -> list[str]:
    """Everything above on one communicator; with ``all_to_all`` its verbs alone, by that baseline."""
    with contextlib.closing(join(shares, 60.0, channel)) as comm:
        if all_to_all:
            comm.use_transport(AllToAll(comm))
            return check_verbs(comm, list(planned))
        return check_verbs(comm, list(planned)) + check_bytes(comm, planned)
