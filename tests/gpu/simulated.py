"""``python -m tests.gpu.simulated``: the measurements of the GPU tests, tiny, in numba's simulator.

What they measure means nothing there; that they build the right tables and notice wrong bytes does. Prints
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda

from dgcl.kernels.cuda_catalogue import Kernel, catalogue, variants
from dgcl.kernels.cuda_memory import SIMULATED
from tests.gpu.exchange_speed import measure_exchange
from tests.gpu.loopback import Loopback, connect, run_in_lockstep
from tests.gpu.programs import make_programs
from tests.gpu.row_speed import WITH_TARGET, WITHOUT_TARGET, Size, measure_gather, measure_sum

SIZE = Size(num_bytes=1 << 13, num_peers=3, repeats=1)
THREADS = 2


class SimulatedTarget:
    """The simulator. It ignores how many threads are asked for, because each is a thread of Python."""

    name = "simulator"
    device = torch.device("cpu")

    def __init__(self, damage: bool = False) -> None:
        self._damage = damage

    def blocks_at_once(self, kernel: Kernel, threads: int) -> int:
        return 4

    def prepare(self, kernel: Kernel, blocks: int, threads: int, *parameters: int) -> Callable[[], None]:
        function: Any = cuda.jit(kernel.build())

        def run() -> None:
            # Damage: the last block does not run.
            function[blocks - self._damage, THREADS](*parameters)

        return run

    def seconds(self, run: Callable[[], object], repeats: int) -> list[float]:
        start = time.perf_counter()
        run()
        return [time.perf_counter() - start]


class SimulatedExchange:
    """Calls of all ranks of a loopback, stage by stage."""

    def __init__(self, loopback: Loopback, damage: bool = False) -> None:
        self._loopback, self._damage = loopback, damage
        self._kernels: dict[str, Any] = {
            name: cuda.jit(kernel.build()) for name, kernel in catalogue().items()
        }

    def _launch(self, name: str, blocks: int, threads: int, *parameters: int) -> None:
        # Damage: sums are left out.
        if not (self._damage and name.startswith("sum")):
            self._kernels[name][blocks, min(threads, 4)](*parameters)

    def run(self, loopback: Loopback, verb: int) -> None:
        run_in_lockstep(loopback, verb, self._launch)

    def enqueue(self, verb: int) -> list[float]:
        self.run(self._loopback, verb)
        return [1e-6, 3e-6]

    def num_operations(self, verb: int) -> int:
        return max(map(len, self._loopback.launches[verb]))


def exchanges(method: str, damage: bool) -> list[dict[str, Any]]:
    programs = make_programs(3, 60, method)
    device = torch.device("cpu")
    loopback = connect(programs, 4, torch.float32, device, lambda kernel: 2, 4)
    exchange = SimulatedExchange(loopback, damage)
    lines = measure_exchange(SimulatedTarget(), loopback, exchange, SIZE, method, 1.0)
    return [line.to_json() for line in lines]


def main() -> None:
    assert SIMULATED, "set NUMBA_ENABLE_CUDASIM=1"
    lines = {}
    for element, width in (*WITH_TARGET[:2], *WITH_TARGET[-1:], *WITHOUT_TARGET):
        name = f"{element}-{width}"
        for order in ("random", "sorted"):
            lines[f"gather-{name}-{order}"] = measure_gather(
                SimulatedTarget(), SIZE, element, width, 1.0, order=order
            )
        lines[f"sum-{name}"] = measure_sum(SimulatedTarget(), SIZE, element, width, 1.0)
    for kernel in variants():
        line = measure_gather(SimulatedTarget(), SIZE, "float32", 16, 1.0, kernel=kernel, compare=False)
        lines[kernel.name] = line
    damaged = {
        "gather": measure_gather(SimulatedTarget(True), SIZE, "float32", 16, 1.0),
        "sum": measure_sum(SimulatedTarget(True), SIZE, "float32", 16, 1.0),
    }
    outcome = {
        "right": {name: line.right for name, line in lines.items()},
        "damaged": {name: line.right for name, line in damaged.items()},
        "exchanges": {method: exchanges(method, False) for method in ("direct", "spst")},
        "damaged exchanges": exchanges("direct", True),
        "lines": [line.to_json() for line in lines.values()],
    }
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
