"""Programs as the CUDA kernels run them: in numba's simulator, and where there is a GPU, on it."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from dgcl.transport.cuda.program import (
    EXPAND,
    FOLD,
    CallLayout,
    Launch,
    RankAddresses,
    fuse,
)
from tests.dgcl.transport.cuda.device_worlds import CASES, ORDERS, run_case
from tests.support.plans import random_world
from tests.support.samples import named
from tests.support.simulated import run_simulated


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return run_simulated("tests.dgcl.transport.cuda.device_worlds")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_exchange_in_the_simulator(outcome: dict[str, str], name: str, order: str):
    assert outcome[f"{name}-{order}"] == "", outcome[f"{name}-{order}"]


class Uploads:
    """Keeps tables instead of uploading them; their addresses are made up."""

    def __init__(self):
        self.tables: dict[int, np.ndarray] = {}

    def __call__(self, table: np.ndarray) -> int:
        address = 1_000_000 + len(self.tables)
        self.tables[address] = table
        return address


def laid_out(verb: int, trees: str = "line", rank: int = 1) -> tuple[list[Launch], Uploads]:
    world = random_world(3, 4, trees)
    upload = Uploads()
    lines = {
        name: 1000 * (i + 1) + np.arange(4) for i, name in enumerate(("lines", "ready", "done", "raised"))
    }
    addresses = RankAddresses(
        state=7,
        address_table=8,
        ring=9,
        ring_length=10,
        **lines,
    )
    kernel = "gather_16" if verb == EXPAND else "sum_float32_16"
    layout = CallLayout(world.programs[rank], verb, addresses, kernel, 16, 64, 20, upload, 32)
    return list(layout.launches()), upload


def tables_of(launch: Launch) -> list[str]:
    """The tables of flags that a launch has, in its order."""
    names = ("raised", "awaited", "ended")
    return [name for name in names if getattr(launch.parameters, f"num_{name}", 0)]


def steps(launches: list[Launch]) -> list[str]:
    return [step for launch in launches for step in (tables_of(launch) or [launch.kernel])]


@named("verb", {"expand": EXPAND, "fold": FOLD})
def test_a_call_is_announced_first_and_waited_for_last(verb: int):
    launches, _ = laid_out(verb)
    assert launches[0].kernel == "begin"
    assert steps(launches)[-1] == ("awaited" if verb == EXPAND else "sum_float32_16")
    assert [launch.stage for launch in launches] == sorted(launch.stage for launch in launches)


@named("verb", {"expand": EXPAND, "fold": FOLD})
@pytest.mark.parametrize("trees", ["direct", "line", "random-1"])
def test_fused_launches_do_the_same_in_the_same_order(trees: str, verb: int):
    launches, upload = laid_out(verb, trees)

    def done(launches: list[Launch]) -> list[tuple[str, int]]:
        found = []
        for launch in launches:
            found += [] if launch.kernel == "signal_wait" else [(launch.kernel, launch.parameters[-1])]
            for name in tables_of(launch):
                table = getattr(launch.parameters, name)
                assert len(upload.tables[table]) == getattr(launch.parameters, f"num_{name}")
                found.append(("raised" if name == "ended" else name, table))
        return [each for each in found if each[0] != "begin"]  # whose parameters change when it waits, too

    fused = fuse(launches)
    assert fused[0].kernel == "begin"
    assert done(fused) == done(launches)
    for one, two in pairwise(fused):
        assert not {one.kernel, two.kernel} <= {"begin", "signal_wait"}, "two launches where one would do"


@named("verb", {"expand": EXPAND, "fold": FOLD})
def test_a_stage_begins_when_all_of_earlier_stages_has_arrived(verb: int):
    """Also what it does not pass on: the last stage of each peer that sends here before."""
    begun = 0
    for rank in range(4):
        launches, upload = laid_out(verb, "random-1", rank)
        program = random_world(3, 4, "random-1").programs[rank]
        schedule = program.expand if verb == EXPAND else program.fold
        for stage in set(schedule.send_stage.tolist()):
            want = {}
            for peer, received in zip(schedule.recv_peer.tolist(), schedule.recv_stage.tolist(), strict=True):
                if received < stage:
                    want[peer] = max(want.get(peer, 0), received)
            waits = [
                launch for launch in launches if launch.stage == stage and "awaited" in tables_of(launch)
            ]
            tables = [upload.tables[launch.parameters.awaited] for launch in waits]
            flags = [flag for table in tables for flag in table.tolist()]
            got = {address - 3000: offset - 1 for address, multiplier, offset, _ in flags if address >= 3000}
            assert got == want
            receivers = schedule.send_peer[schedule.send_stage == stage]
            assert sorted(flag[0] for flag in flags if flag[0] < 3000) == sorted(2000 + receivers)
            begun += len(want)
    assert begun > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGpu:
    @pytest.fixture(scope="class")
    def gpu(self) -> Iterator[object]:
        from tests.support.gpu_device import Gpu

        gpu = Gpu()
        yield gpu
        torch.cuda.synchronize()

    @pytest.mark.parametrize("name", CASES)
    def test_exchange_of_streams(self, gpu, name: str):  # type: ignore[no-untyped-def]
        from tests.dgcl.transport.cuda.loopback import Loopback
        from tests.dgcl.transport.cuda.streams import Streams

        made: dict[int, Streams] = {}

        def run(loopback: Loopback, verb: int):
            if id(loopback) not in made:
                made[id(loopback)] = Streams(gpu, loopback)
            made[id(loopback)].run(loopback, verb)

        def max_blocks(kernel: str) -> int:
            return gpu.kernels.blocks_at_once(gpu.kernels[kernel], 256) // 4

        run_case(CASES[name], gpu.device, max_blocks, 256, run, 200)
