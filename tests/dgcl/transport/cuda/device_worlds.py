"""Whole exchanges by the CUDA kernels, judged vertex by vertex; run in numba's simulator and on a GPU.

``python -m tests.dgcl.transport.cuda.device_worlds`` runs them in the simulator (NUMBA_ENABLE_CUDASIM=1) and
prints JSON: case to what went wrong, "" for nothing.
"""

import ctypes
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dgcl.kernels.cuda_catalogue import catalogue
from dgcl.kernels.cuda_tables import CALL, FLAG, Begin, SignalWait
from dgcl.transport.cuda.program import EXPAND, FOLD, Launch
from tests.dgcl.transport.cuda.loopback import Loopback, connect
from tests.support import cuda_stand_in
from tests.support.plans import TREES, World, random_world

#: Runs one call of a verb on all ranks, and waits for its end.
Runner = Callable[[Loopback, int], None]


#: The orders in which ranks run in the simulator.
ORDERS = ("in-any-order-1", "in-any-order-2", "in-any-order-3")


@dataclass(frozen=True)
class Case:
    trees: str
    world_size: int
    width: int
    dtype: torch.dtype
    empty: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.trees}-{self.world_size}-ranks-{self.width}-{kind}" + "-one-empty" * bool(self.empty)


CASES = {
    case.name: case
    for case in [
        *(Case(trees, 4, 4, torch.int32) for trees in TREES),
        *(Case("line", 3, width, torch.int64) for width in (1, 2)),
        Case("chain", 5, 3, torch.int16),
        Case("random-1", 5, 5, torch.int8),
        Case("hub", 3, 8, torch.int32, empty=(0,)),
        Case("direct", 1, 2, torch.int32),
        Case("random-2", 4, 3, torch.float64),
        Case("line", 4, 4, torch.float32),
        Case("hub", 4, 7, torch.bfloat16),
    ]
}


def values(vertices: np.ndarray, rank: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank has for vertices: small whole numbers, whose sums are exact in every type."""
    columns = np.arange(width)
    return torch.from_numpy((vertices[:, None] * 7 + rank * 3 + columns) % 9 - 4).to(dtype)


def check_expand(loopback: Loopback, run: Runner, width: int, dtype: torch.dtype):
    for rank in loopback.ranks:
        program = rank.program
        for buffer in (rank.local, rank.relay):
            buffer.fill_(77)
        rank.local[: program.num_owned] = values(program.owned_ids, 0, width, dtype).to(rank.local.device)
    loopback.enter(EXPAND)
    run(loopback, EXPAND)
    for rank in loopback.ranks:
        ids = np.concatenate([rank.program.owned_ids, rank.program.halo_ids])
        assert torch.equal(rank.local.cpu(), values(ids, 0, width, dtype)), f"rank {rank.program.rank}"


def check_fold(loopback: Loopback, world: World, run: Runner, width: int, dtype: torch.dtype):
    total = torch.zeros(world.graph.num_nodes, width, dtype=dtype)
    for rank in loopback.ranks:
        program = rank.program
        ids = np.concatenate([program.owned_ids, program.halo_ids])
        mine = values(ids, program.rank, width, dtype)
        total[torch.from_numpy(ids)] += mine  # each id at most once per rank
        rank.local.copy_(mine)
        for buffer in (rank.relay, rank.arrivals, rank.result):
            buffer.fill_(77)
    loopback.enter(FOLD)
    run(loopback, FOLD)
    for rank in loopback.ranks:
        right = total[torch.from_numpy(rank.program.owned_ids)]
        assert torch.equal(rank.result.cpu(), right), f"rank {rank.program.rank}"


def run_case(
    case: Case, device: torch.device, max_blocks: Callable[[str], int], threads: int, run: Runner, scale: int
):
    """Two rounds of expand and fold: what a first call leaves behind must not help a second."""
    world = random_world(
        5,
        case.world_size,
        case.trees,
        num_nodes=20 * scale,
        num_edges=50 * scale,
        empty=case.empty,
    )
    loopback = connect(world.programs, case.width, case.dtype, device, max_blocks, threads)
    for _ in range(2):
        check_expand(loopback, run, case.width, case.dtype)
        check_fold(loopback, world, run, case.width, case.dtype)
    loopback.check(4)


def _satisfied(launch: Launch) -> bool:
    """Whether a launch would end at once."""
    at = launch.parameters
    if not isinstance(at, SignalWait):
        return True
    call = ctypes.c_int64.from_address(at.state + CALL).value
    table = (ctypes.c_char * (at.num_awaited * FLAG.itemsize)).from_address(at.awaited or 1)
    flags = np.frombuffer(table, FLAG)
    return all(
        ctypes.c_int64.from_address(int(flag["address"])).value >= call * flag["multiplier"] + flag["offset"]
        for flag in flags
    )


def _halves(launch: Launch) -> list[Launch]:
    """What a launch does before it waits, and the rest: here a kernel that waits would keep all others waiting."""
    if launch.kernel == "begin":
        at = Begin(*launch.parameters)
        second = SignalWait(at.state, awaited=at.awaited, num_awaited=at.num_awaited)
        first = replace(launch, parameters=at._replace(num_awaited=0))
        return [first, Launch(launch.stage, "signal_wait", 1, 32, second)]
    if isinstance(launch.parameters, SignalWait):
        at_once = SignalWait(launch.parameters.state, launch.parameters.raised, launch.parameters.num_raised)
        later = launch.parameters._replace(num_raised=0)
        return [replace(launch, parameters=each) for each in (at_once, later)]
    return [launch]


def run_in_any_order(loopback: Loopback, verb: int, launch: Callable[..., None], seed: int):
    """One call of all ranks, one after the other as far as each can go before it must wait.

    What a wait fails to wait for has not come, then.
    """
    generator = np.random.default_rng(seed)
    left = {
        rank: [half for launch in launches for half in _halves(launch)]
        for rank, launches in enumerate(loopback.launches[verb])
    }
    while left:
        for rank in generator.permutation(list(left)).tolist():
            steps = left[rank]
            if not _satisfied(steps[0]):
                continue
            while steps and _satisfied(steps[0]):
                step = steps.pop(0)
                launch(step.kernel, step.blocks, step.threads, *step.parameters)
            if not steps:
                del left[rank]
            break
        else:
            raise AssertionError(f"ranks {list(left)} wait for each other")


def _simulate() -> dict[str, str]:
    from numba import cuda

    kernels: dict[str, Any] = {name: cuda.jit(kernel.build()) for name, kernel in catalogue().items()}

    def launch(name: str, blocks: int, threads: int, *parameters: int):
        kernels[name][blocks, min(threads, 4)](*parameters)

    def in_any_order(seed: int) -> Runner:
        return lambda loopback, verb: run_in_any_order(loopback, verb, launch, seed)

    runners = {order: in_any_order(seed) for seed, order in enumerate(ORDERS)}
    outcome = {}
    for name, case in CASES.items():
        for how, run in runners.items():
            try:
                run_case(case, torch.device("cpu"), lambda kernel: 3, 4, run, 1)
                outcome[f"{name}-{how}"] = ""
            except Exception:  # the parent judges
                outcome[f"{name}-{how}"] = traceback.format_exc()
    return outcome


if __name__ == "__main__":
    cuda_stand_in.install()
    json.dump(_simulate(), sys.stdout)
