"""What the CUDA kernels do, on the same tables, with numpy: for the driver that is made of host memory.

Each is (number of parameters, what it does at once, whether it can go on, what it does then).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgcl.kernels import cuda_tables as tables
from dgcl.kernels.cuda_catalogue import UNITS
from dgcl.kernels.cuda_numbers import ITEM_BYTES

if TYPE_CHECKING:
    from tests.support.fake_cuda import FakeCuda


def word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def set_word(device: FakeCuda, address: int, value: int):
    device.check(address, 8)
    ctypes.c_int64.from_address(address).value = value


def array(device: FakeCuda, address: int, count: int, kind: Any) -> np.ndarray:
    kind = np.dtype(kind)
    device.check(address, count * kind.itemsize)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind, count)


def rows_at(device: FakeCuda, address: int, count: int, row_bytes: int) -> np.ndarray:
    return array(device, address, count * row_bytes, np.uint8).reshape(count, row_bytes)


def skips(state: int) -> bool:
    return word(state + tables.SKIP) != 0


def nothing(device: FakeCuda, *values: int):
    pass


def announce(device: FakeCuda, *values: int):
    """What ``begin`` does before it waits."""
    at = tables.Begin(*values)
    call = word(at.state + tables.CALL) + 1
    entered = array(device, at.ring + 8 * at.num_slots * (call % at.ring_length), at.num_slots, np.int64)
    for i, value in enumerate(entered.tolist()):
        set_word(device, at.addresses + 8 * i, value)
    if not skips(at.state):
        set_word(device, at.state + tables.CALL, call)
        for line in array(device, at.lines, at.num_lines, np.int64).tolist():
            set_word(device, line, call)


def signal(device: FakeCuda, state: int, flags: int, count: int):
    if not skips(state):
        call = word(state + tables.CALL)
        for address, multiplier, offset, _ in array(device, flags, count, tables.FLAG).tolist():
            set_word(device, address, call * multiplier + offset)


def _is_up(device: FakeCuda, at: tables.Begin | tables.SignalWait) -> bool:
    """Whether what is waited for has come."""
    call = word(at.state + tables.CALL)
    for address, multiplier, offset, _ in array(device, at.awaited, at.num_awaited, tables.FLAG).tolist():
        device.check(address, 8)
        if word(address) < call * multiplier + offset:
            return False
    return True


def met(device: FakeCuda, at: tables.Begin | tables.SignalWait) -> bool:
    """Whether what is waited for has come, or the wait is over anyhow."""
    return skips(at.state) or word(word(at.state + tables.ABORT)) != 0 or _is_up(device, at)


def meet(device: FakeCuda, at: tables.Begin | tables.SignalWait):
    """What waiting leaves behind."""
    if not skips(at.state) and not _is_up(device, at):
        set_word(device, at.state + tables.SKIP, 1)


def may_begin(device: FakeCuda, *values: int) -> bool:
    return met(device, tables.Begin(*values))


def begin(device: FakeCuda, name: str, grid: int, *values: int):
    assert grid == 1
    meet(device, tables.Begin(*values))


def raise_flags(device: FakeCuda, *values: int):
    at = tables.SignalWait(*values)
    signal(device, at.state, at.raised, at.num_raised)


def may_go_on(device: FakeCuda, *values: int) -> bool:
    return met(device, tables.SignalWait(*values))


def signal_wait(device: FakeCuda, name: str, grid: int, *values: int):
    assert grid == 1
    at = tables.SignalWait(*values)
    meet(device, at)
    signal(device, at.state, at.ended, at.num_ended)


def _tasks(device: FakeCuda, tasks: int, blocks: int, grid: int) -> list[dict[str, int]]:
    """What a launch's blocks do; every part of a task must have its block."""
    dealt = array(device, blocks, grid, tables.BLOCK)
    found = []
    for task in np.unique(dealt["task"]).tolist():
        mine = dealt[dealt["task"] == task]
        assert sorted(mine["part"].tolist()) == list(range(int(mine["parts"][0])))
        record = array(device, tasks + task * tables.TASK_BYTES, 1, tables.TASK)[0]
        found.append({key: int(record[key]) for key in tables.TASK.names or ()})
    return found


def gather(
    device: FakeCuda,
    name: str,
    grid: int,
    state: int,
    addresses: int,
    tasks: int,
    blocks: int,
    rows: int,
    row_bytes: int,
):
    if skips(state):
        return
    for task in _tasks(device, tasks, blocks, grid):
        near, far, target = (word(addresses + 8 * task[slot]) for slot in ("source", "second", "target"))
        index = array(device, rows + 4 * task["first"], task["count"], np.int32)
        out = rows_at(device, target + task["to"] * row_bytes, task["count"], row_bytes)
        limit = task["near_rows"]
        for start, skipped, chosen in ((near, 0, index < limit), (far, limit, index >= limit)):
            if chosen.any():
                numbers = index[chosen] - skipped
                picked = rows_at(device, start, int(numbers.max()) + 1, row_bytes)[numbers]
                out[chosen] = picked


def sum_rows(
    device: FakeCuda,
    name: str,
    grid: int,
    state: int,
    addresses: int,
    tasks: int,
    blocks: int,
    pointers: int,
    slots: int,
    row_bytes: int,
):
    if skips(state):
        return
    element = re.fullmatch(r"sum_(\w+)_\d+", name)
    assert element is not None
    dtype = getattr(torch, element[1])
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def typed(memory: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(memory.copy()).view(dtype).to(wide)

    for task in _tasks(device, tasks, blocks, grid):
        target = word(addresses + 8 * task["target"]) + task["to"] * row_bytes
        ptr = array(device, pointers + 4 * task["first"], task["count"] + 1, np.int32)
        where = array(device, slots + 4 * int(ptr[0]), int(ptr[-1] - ptr[0]), np.int32)
        arrivals = word(addresses + 8 * task["second"])
        counts = np.diff(ptr)
        begin = (ptr - ptr[0])[:-1].copy()
        taken = np.zeros(task["count"], np.int64)
        if task["source"] >= 0:
            own = word(addresses + 8 * task["source"]) + task["first"] * row_bytes
            total = typed(rows_at(device, own, task["count"], row_bytes))
        else:
            assert (counts > 0).all(), "a row that nobody has"
            total = typed(
                np.concatenate(
                    [rows_at(device, arrivals + int(where[b]) * row_bytes, 1, row_bytes) for b in begin]
                )
            )
            taken += 1
        while (taken < counts).any():
            chosen = np.flatnonzero(taken < counts)
            added = np.concatenate(
                [
                    rows_at(device, arrivals + int(where[begin[i] + taken[i]]) * row_bytes, 1, row_bytes)
                    for i in chosen
                ]
            )
            total[torch.from_numpy(chosen)] += typed(added)
            taken[chosen] += 1
        out = rows_at(device, target, task["count"], row_bytes)
        out[:] = total.to(dtype).view(torch.uint8).numpy().reshape(out.shape)


def always(device: FakeCuda, *values: int) -> bool:
    return True


KERNELS: dict[str, tuple[int, Callable[..., None], Callable[..., bool], Callable[..., None]]] = {
    "begin": (len(tables.Begin._fields), announce, may_begin, begin),
    "signal_wait": (len(tables.SignalWait._fields), raise_flags, may_go_on, signal_wait),
    "gather": (6, nothing, always, gather),
    **{f"sum_{element}": (7, nothing, always, sum_rows) for element in ITEM_BYTES},
}
assert UNITS
