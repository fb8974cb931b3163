"""Programs as the CUDA kernels run them: in numba's simulator, and where there is a GPU, on it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dgcl.kernels.cuda_tables import FLAG, TASK
from dgcl.transport.cuda.program import EXPAND, FOLD, Launch, RankAddresses, lay_out, peer_slot
from tests.dgcl.support_plans import random_world
from tests.dgcl.transport.cuda.device_worlds import CASES, ORDERS, run_case
from tests.simulated import run_simulated


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return run_simulated("tests.dgcl.transport.cuda.device_worlds")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_exchange_in_the_simulator(outcome: dict[str, str], name: str, order: str) -> None:
    assert outcome[f"{name}-{order}"] == "", outcome[f"{name}-{order}"]


class Uploads:
    """Keeps tables instead of uploading them; their addresses are made up."""

    def __init__(self) -> None:
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
        words=9,
        num_words=7,
        maps=np.array([[50 + i, 3] for i in range(4)]),
        **lines,
    )
    kernel = "gather_16" if verb == EXPAND else "sum_float32_16"
    return lay_out(world.programs[rank], verb, addresses, kernel, 16, 64, 20, upload, 32), upload


@pytest.mark.parametrize("verb", [EXPAND, FOLD], ids=["expand", "fold"])
def test_a_call_is_announced_first_and_waited_for_last(verb: int) -> None:
    launches, _ = laid_out(verb)
    names = [launch.kernel for launch in launches]
    assert names[0] == "announce"
    assert names[-1] == ("wait" if verb == EXPAND else "sum_float32_16")
    assert [launch.stage for launch in launches] == sorted(launch.stage for launch in launches)


@pytest.mark.parametrize("verb", [EXPAND, FOLD], ids=["expand", "fold"])
def test_every_stage_waits_moves_and_signals_in_this_order(verb: int) -> None:
    launches, _ = laid_out(verb)
    program = random_world(3, 4, "line").programs[1]
    mover = "gather_16" if verb == EXPAND else "sum_float32_16"
    for stage in range(program.num_stages):
        names = [launch.kernel for launch in launches if launch.stage == stage]
        if names:
            assert names in (
                ["wait", "resolve", mover, "signal"],
                ["wait", "resolve", "wait", mover, "signal"],
            )
    assert sum(launch.kernel == "signal" for launch in launches) >= 2


def test_all_rows_and_receivers_are_in_the_tasks() -> None:
    launches, upload = laid_out(EXPAND)
    schedule = random_world(3, 4, "line").programs[1].expand
    tasks = np.concatenate(
        [upload.tables[step.parameters[2]] for step in launches if "gather" in step.kernel]
    )
    assert tasks.dtype == TASK
    assert tasks["count"].sum() == schedule.rows_sent
    assert set(tasks["target"] // 2 * 2) == {peer_slot(int(peer)) for peer in schedule.send_peer}


def test_flags_are_those_of_the_peers() -> None:
    launches, upload = laid_out(EXPAND, "direct")
    assert [launch.kernel for launch in launches] == [
        "announce",
        "wait",
        "resolve",
        "gather_16",
        "signal",
        "wait",
    ]
    _, ready, resolved, _, signal, done = (
        upload.tables.get(launch.parameters[2 if launch.kernel == "resolve" else 1]) for launch in launches
    )
    for table, first, multiplier, offset in (
        (ready, 2000, 1, 0),
        (resolved, 2000, 1, 0),
        (signal, 4000, 1, 1),
        (done, 3000, 1, 1),
    ):
        assert table is not None
        assert table.dtype == FLAG
        assert table["peer"].tolist() == [0, 2, 3]
        assert table["address"].tolist() == [first, first + 2, first + 3]
        assert (table["multiplier"] == multiplier).all()
        assert (table["offset"] == offset).all()
    assert resolved["maps"].tolist() == [50, 52, 53]  # type: ignore[index]
    assert resolved["target"].tolist() == [peer_slot(peer) for peer in (0, 2, 3)]  # type: ignore[index]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGpu:
    @pytest.fixture(scope="class")
    def gpu(self) -> Iterator[object]:
        from tests.gpu.device import Gpu

        gpu = Gpu()
        yield gpu
        torch.cuda.synchronize()
        gpu.kernels.close()

    @pytest.mark.parametrize("name", CASES)
    def test_exchange_of_streams(self, gpu, name: str) -> None:  # type: ignore[no-untyped-def]
        from tests.gpu.loopback import Loopback
        from tests.gpu.streams import Streams

        made: dict[int, Streams] = {}

        def run(loopback: Loopback, verb: int) -> None:
            if id(loopback) not in made:
                made[id(loopback)] = Streams(gpu, loopback)
            made[id(loopback)].run(loopback, verb)

        def max_blocks(kernel: str) -> int:
            return gpu.kernels.blocks_at_once(gpu.kernels[kernel], 256) // 4

        run_case(CASES[name], gpu.device, max_blocks, 256, run, 200)
