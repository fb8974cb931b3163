"""What a rank does under a fault: calls whose results it knows, then what it makes of the failure."""

from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import dgcl
from dgcl.communicator import Communicator
from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.transport.common.segments import SegmentFile
from tests.support.fault_cases import Case, Said
from tests.support.fault_steps import Point, Steps, set_up_watched, watch_stages
from tests.support.plans import World, random_world
from tests.support.ranks import join, local_ids

#: Elements of a row, call by call: some need new memory, on every rank.
_WIDTHS = (5, 6000, 1, 9000, 33, 14000)
_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Problem:
    """A world, and what its folds must give.

    Attributes:
        shares: What its ranks join with.
        holders: ``(N,)`` how many ranks hold each vertex's row.
        rank_sum: ``(N,)`` the sum of the numbers of those ranks.
    """

    shares: list[Any]
    holders: Tensor
    rank_sum: Tensor

    @classmethod
    def of(cls, world: World) -> Problem:
        """The problem of a world."""
        holders = torch.zeros(world.graph.num_nodes, dtype=torch.float64)
        rank_sum = torch.zeros_like(holders)
        for program in world.programs:
            for ids in (program.owned_ids, program.halo_ids):
                holders[torch.from_numpy(ids)] += 1
                rank_sum[torch.from_numpy(ids)] += program.rank
        return cls(world.shares(), holders, rank_sum)


def make_problems(world_size: int) -> dict[str, Problem]:
    """The worlds that faults happen in, by name; of that many ranks, and of one rank fewer."""
    return {
        f"{trees} of {size}": Problem.of(random_world(7 * size, size, trees, num_nodes=40, num_edges=260))
        for size in (world_size, world_size - 1)
        for trees in ("line", "random-1", "direct")
    }


class _Leave(BaseException):
    """The rank returns early."""


class Fault:
    """Strikes at its point: this object is called with the name of every point that the rank passes."""

    def __init__(self, case: Case, rank: int, channel: Connection):
        self._case, self._channel = case, channel
        self._left = case.occurrence + 1 if rank == case.victim else 0
        self._limits: tuple[int, tuple[int, int]] | None = None
        self.other: Communicator | None = None  # for calls that nobody else makes

    def __call__(self, name: str):
        if self._limits is not None and name.endswith("after"):
            self.lift()
        if self._case.point == "engine" and name == "ready: told one more":
            name = "engine"
        if name != self._case.point or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            self._channel.send(("struck", time.monotonic()))
            self._strike()

    def _strike(self):
        kind = self._case.kind
        if self._case.point == "engine":  # in the middle of compiled code
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(
                signal.ITIMER_REAL, 1e-6 + 0.002 * np.random.default_rng(self._case.seed).random()
            )
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        elif kind == "raise":
            raise ZeroDivisionError("in a layer")
        elif kind == "return":
            raise _Leave
        elif kind == "cross":
            assert self.other is not None
            self.other.expand(self.other.owned_ids)
        else:
            self._exhaust_memory()

    def _exhaust_memory(self):
        """From now on the kernel refuses: a larger memory file, or another mapping."""
        if self._case.point == "map: before":
            limit, size = resource.RLIMIT_AS, int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        else:
            limit, size = resource.RLIMIT_FSIZE, 0
        self._limits = limit, resource.getrlimit(limit)
        resource.setrlimit(limit, (size, self._limits[1][1]))

    def lift(self):
        """Let there be memory again."""
        if self._limits is not None:
            resource.setrlimit(*self._limits)
            self._limits = None


def _nothing(name: str):
    """A point where nothing happens."""


def work(comm: Communicator, problem: Problem, seed: int, point: Point, kept: list[Any], rounds: int):
    """Every verb in turn, every result held against what is known; some are kept with a copy."""
    order = np.random.default_rng(seed).permutation(len(_WIDTHS))
    ids, owned = local_ids(comm).double(), comm.owned_ids
    sums, holders = problem.rank_sum[owned], problem.holders[owned]
    for step in range(rounds):
        width = _WIDTHS[order[step % len(order)]]
        scale = (torch.arange(width) % 7 + step + 1).double()
        point("layer: before a call")
        x = (owned.double()[:, None] * scale).requires_grad_()
        rows = comm.expand(x)
        assert torch.equal(rows, ids[:, None] * scale), "expand"
        if step % 3 == 0:
            kept.append((rows.detach(), rows.detach().clone()))
        point("layer: before a backward")
        rows.backward(torch.full_like(rows, comm.rank + 1))
        assert torch.equal(x.grad, (sums + holders)[:, None].expand(-1, width)), "backward"
        del rows, x
        pending = comm.expand_async(owned[:, None] * scale)
        point("halo: started, not waited for")
        assert torch.equal(pending.wait(), ids[comm.num_owned :, None] * scale), "halo"
        into = torch.ones(comm.num_owned, width, dtype=torch.float64)
        comm.fold_halo(torch.ones(comm.num_halo, width, dtype=torch.float64), into)
        assert torch.equal(into, holders[:, None].expand(-1, width)), "fold of a halo"
        del pending


def serve(channel: Connection, problems: dict[str, Problem]):
    """Play the cases that come through the channel, and answer what the harness asks about them."""
    everyone = context.require_control()
    rank = everyone.rank
    kept: list[Any] = []
    old: Communicator | None = None
    _meet_again()
    calm(problems[f"line of {everyone.world_size}"], 2)  # compiles, opens what stays open
    before = leftovers()
    while True:
        order = channel.recv()
        if order[0] == "play":
            kept, case = [], order[1]
            old, said = play(channel, case, problems[f"{case.world} of {everyone.world_size}"], kept)
            channel.send(("ended", dataclasses.replace(said, rank=rank)))
            del said
        elif order[0] == "without":  # the victim is dead or stopped: the others go on among themselves
            others = [other for other in range(everyone.world_size) if other != order[1]]
            control: Any = _StoreControl(f"without {order[1]}, {order[3]}", others, rank)
            context.control = control
            problem = problems.get(f"{order[2]} of {everyone.world_size - 1}")
            channel.send(("fresh", calm(problem, 3, kept) if problem is not None else None))
        elif order[0] == "again":  # all live: the same processes start afresh
            wrong = look_back(old, kept)
            old = None
            kept.clear()
            gc.collect()
            _meet_again()
            wrong = wrong or calm(problems[f"{order[1]} of {everyone.world_size}"], 2)
            gc.collect()
            after = leftovers()
            if after != before and wrong is None:
                wrong = f"(mappings, files) were {before}, are {after}"
            channel.send(("fresh", wrong))
        else:
            return


def _meet_again(timeout: float = 60.0):
    context.control = None
    dgcl.init(timeout=timeout)


class _StoreControl(Control):
    """The control plane of some of the ranks: torch's groups need all of them to be made."""

    def __init__(self, name: str, ranks: list[int], rank: int):
        super().__init__(ranks.index(rank), len(ranks))
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._round = 0

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value."""
        self._round += 1
        self._store.set(f"{self._round}/{self.rank}", pickle.dumps(value))
        keys = [f"{self._round}/{rank}" for rank in range(self.world_size)]
        return [pickle.loads(self._store.get(key)) for key in keys]

    def only_ranks_run(self) -> bool:
        """Unknown here, so not relied on."""
        return False


def calm(problem: Problem, rounds: int, kept: list[Any] | None = None) -> str | None:
    """A new communicator at work where nothing happens; what went wrong, if anything."""
    try:
        comm = join(problem.shares, 60.0)
        work(comm, problem, 1, _nothing, [] if kept is None else kept, rounds)
        comm.close()
    except Exception as error:  # whatever it is, the harness shall show it
        return f"a fresh communicator: {type(error).__name__}: {error}"
    return None


def play(
    channel: Connection, case: Case, problem: Problem, kept: list[Any]
) -> tuple[Communicator | None, Said]:
    """Run into the fault, the rank's own or a peer's."""
    comm = None
    if case.kind == "stop" and case.in_set_up:
        _meet_again(case.deadline)
    fault = Fault(case, context.require_control().rank, channel)
    fresh_file = SegmentFile.grow

    def grow_board(file: SegmentFile, num_bytes: int) -> Any:
        fault("control page")
        try:
            return fresh_file(file, num_bytes)
        finally:
            fault("control page: after")

    try:
        with set_up_watched(fault):
            SegmentFile.grow = grow_board  # type: ignore[method-assign]
            try:
                comm = join(problem.shares, case.deadline or 60.0, case.channel)
            finally:
                SegmentFile.grow = fresh_file  # type: ignore[method-assign]
            if case.kind == "cross":
                fault.other = join(problem.shares, 60.0)
            transport: Any = comm.transport
            if case.channel == "auto":
                Steps(comm, fault)
            else:
                watch_stages(transport.wire, fault)
            work(comm, problem, case.seed, fault, kept, _ROUNDS)
        said = Said(-1, "no error", "", time.monotonic())
    except _Leave:
        said = Said(-1, "returned", "", time.monotonic())
    except CommError as error:
        said = Said(-1, type(error).__name__, str(error), time.monotonic())
    except BaseException as error:
        said = Said(-1, type(error).__name__, str(error), time.monotonic())
        if comm is not None and not case.is_told:  # as dgcl.launch does
            comm.fail(f"stopped by {type(error).__name__}: {error}")
    fault.lift()
    if fault.other is not None:
        fault.other.close()
    if comm is not None and said.error == "returned":
        comm.close()
    return comm, said


def look_back(old: Communicator | None, kept: list[Any]) -> str | None:
    """Whether a failed communicator refuses to work, and what it had given is what it was."""
    if any(not torch.equal(result, copy) for result, copy in kept):
        return "a result changed after it was returned"
    if old is not None:
        try:
            old.expand(torch.zeros(old.num_owned))
            return "a failed communicator went on"
        except (CommError, ValueError):
            old.close()
    return None


def leftovers() -> tuple[int, int]:
    """How many mappings of the library's memory this process has, and how many open files of it."""
    context.communicator = None
    gc.collect()
    with open("/proc/self/maps") as maps:
        mappings = sum("memfd:dgcl" in line for line in maps)
    files = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            files += "memfd:dgcl" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return mappings, files
