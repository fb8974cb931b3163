"""Stress: more ranks than cores, interleaved communicators, random widths, dtypes and delays; every element checked.

One communicator runs as it is. Another runs step by step (:mod:`tests.support.fault_steps`), with random delays between
any two steps of the protocol. Their calls alternate at random, and some overlap: an exchange of one is under way while
the other works.
"""

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from tests.support.fault_rank import Problem
from tests.support.fault_steps import Steps
from tests.support.plans import random_world
from tests.support.processes import Ranks
from tests.support.ranks import join, local_ids

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64),
)
_SUMMABLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_ROUND = 25  # calls between looks at the clock


@dataclass(frozen=True)
class Outcome:
    """What one run did.

    Attributes:
        ranks: World size.
        calls: Of each rank: every expand and every fold.
        steps: Steps of the protocol at which a rank could be delayed, over all ranks.
        elements: Checked, over all ranks.
        seconds: Of the run, without set-up.
        wrong: What was not as it should be.
    """

    ranks: int
    calls: int
    steps: int
    elements: int
    seconds: float
    wrong: list[str]


class _Delays:
    """Called at every step: mostly goes on, sometimes gives way, seldom sleeps for up to some milliseconds."""

    def __init__(self, seed: int):
        self._draw = np.random.default_rng(seed)
        self.steps = 0

    def __call__(self, name: str):
        self.steps += 1
        luck = self._draw.random()
        if luck < 0.01:
            time.sleep(0.003 * self._draw.random())
        elif luck < 0.1:
            os.sched_yield()


def rows_of(ids: Tensor, width: int, dtype: torch.dtype, call: int) -> Tensor:
    """What vertex ``ids[i]`` sends in a call: small integers, exact in every type."""
    numbers = (ids[:, None] * 31 + torch.arange(width) * 7 + call) % 97
    return numbers % 2 == 0 if dtype is torch.bool else numbers.to(dtype)


class Player:
    """One rank's part: the same calls on all ranks, drawn from one seed."""

    def __init__(self, problems: list[Problem], seed: int):
        self._draw = np.random.default_rng(seed)
        self._problems = problems
        self._comms = [join(problem.shares, 120.0) for problem in problems]
        self.delays = _Delays(1000 * seed + self._comms[0].rank)
        Steps(self._comms[0], self.delays)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.calls = self.elements = 0
        self.wrong: list[str] = []

    def play(self, calls: int):
        """Make some calls."""
        for _ in range(calls):
            which = int(self._draw.integers(len(self._comms)))
            comm, problem = self._comms[which], self._problems[which]
            width = int(
                self._draw.choice([1, 2, 3, 17, 64, 300, 2000], p=[0.15, 0.15, 0.2, 0.2, 0.15, 0.1, 0.05])
            )
            kind = ("expand", "backward", "fold", "overlap")[int(self._draw.integers(4))]
            dtype = DTYPES[int(self._draw.integers(len(DTYPES)))]
            if kind == "expand":
                self._expand(comm, width, dtype)
            elif kind == "backward":
                self._backward(comm, problem, width)
            elif kind == "fold":
                self._fold(comm, problem, width, _SUMMABLE[int(self._draw.integers(len(_SUMMABLE)))])
            else:
                pending = comm.expand_async(rows_of(comm.owned_ids, width, dtype, self.calls))
                wanted = rows_of(comm.halo_ids, width, dtype, self.calls)
                other = (which + 1) % len(self._comms)
                self._fold(self._comms[other], self._problems[other], width, torch.float64)
                self._check("overlap", pending.wait(), wanted)
        for result, copy in self._kept:
            self._check("kept", result, copy)
        self._kept = self._kept[-3:]

    def _expand(self, comm: Communicator, width: int, dtype: torch.dtype):
        with torch.no_grad():
            result = comm.expand(rows_of(comm.owned_ids, width, dtype, self.calls))
        self._check(f"expand {dtype}", result, rows_of(local_ids(comm), width, dtype, self.calls))
        self._kept.append((result, result.clone()))

    def _backward(self, comm: Communicator, problem: Problem, width: int):
        x = rows_of(comm.owned_ids, width, torch.float64, self.calls).requires_grad_()
        rows = comm.expand(x)
        self._check("forward", rows.detach(), rows_of(local_ids(comm), width, torch.float64, self.calls))
        rows.backward(torch.full_like(rows, comm.rank + 1))
        assert x.grad is not None
        wanted = (problem.rank_sum + problem.holders)[comm.owned_ids]
        self._check("backward", x.grad, wanted[:, None].expand(-1, width))

    def _fold(self, comm: Communicator, problem: Problem, width: int, dtype: torch.dtype):
        result = comm.fold(torch.ones(comm.num_local, width, dtype=dtype))
        self._check(
            f"fold {dtype}", result, problem.holders[comm.owned_ids, None].expand(-1, width).to(dtype)
        )

    def _check(self, what: str, result: Tensor, wanted: Tensor):
        self.calls += what != "kept"
        self.elements += result.numel()
        if not torch.equal(result, wanted):
            self.wrong.append(f"call {self.calls}: {what}: {int((result != wanted).sum())} elements differ")


def play(problems: list[Problem], seconds: float, seed: int) -> tuple[Any, ...]:
    """One rank's run: calls, steps, elements, seconds, and what was wrong."""
    player = Player(problems, seed)
    control = context.require_control()
    control.barrier()
    begin = time.monotonic()
    while True:
        player.play(_ROUND)
        if control.broadcast(time.monotonic() - begin > seconds) or any(control.exchange(bool(player.wrong))):
            break
    return player.calls, player.delays.steps, player.elements, time.monotonic() - begin, player.wrong


def _serve(channel: Connection, problems: list[Problem], seconds: float, seed: int):
    channel.send(play(problems, seconds, seed))
    channel.recv()


def make_problems(num_ranks: int, seed: int) -> list[Problem]:
    """The worlds of the communicators: trees, vertices and edges for each rank."""
    sizes = [("random-1", 8, 40), ("direct", 30, 150), ("line", 4, 9)]
    return [
        Problem.of(
            random_world(
                seed + 5 + number, num_ranks, trees, num_nodes=nodes * num_ranks, num_edges=edges * num_ranks
            )
        )
        for number, (trees, nodes, edges) in enumerate(sizes)
    ]


def stress(num_ranks: int, seconds: float, seed: int = 0, grace: float = 120.0) -> Outcome:
    """Run ranks for some seconds; what came of it. A rank that dies or hangs for ``grace`` seconds beyond that
    is an AssertionError that names it."""
    problems = make_problems(num_ranks, seed)
    with Ranks(num_ranks, _serve, problems, seconds, seed) as ranks:
        answers = ranks.told(deadline=seconds + grace)
        ranks.tell("end")
    wrong = []
    for rank, answer in answers.items():
        if answer[0] == "ended by":
            wrong.append(f"rank {rank}: {answer}")
        else:
            wrong += [f"rank {rank}: {text}" for text in answer[4]]
    good = [answer for answer in answers.values() if answer[0] != "ended by"]
    if not good:
        return Outcome(num_ranks, 0, 0, 0, 0.0, wrong)
    calls, took = good[0][0], max(answer[3] for answer in good)
    return Outcome(num_ranks, calls, sum(a[1] for a in good), sum(a[2] for a in good), took, wrong)
