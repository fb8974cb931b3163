"""Cases for the CUDA flag kernels: calls begin, flags are set, waited for, and stopped."""

import time
from collections.abc import Callable

import numpy as np

from dgcl.kernels import cuda_tables as tables
from dgcl.kernels.cuda_shapes import deal_blocks
from tests.kernels.cuda_machines import Machine


class Rank:
    """A state in call 3, with an abort word, a place for addresses, and a ring of two calls."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.words, self.state = machine.words(tables.STATE_BYTES // 8)
        self.abort, abort_at = machine.words(1)
        self.set(tables.CALL, 3)
        self.set(tables.ABORT, abort_at)
        self.slots, self.addresses = machine.words(8)
        ring, self.ring = machine.words(10)
        ring[:] = [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]  # of even calls, and of odd ones

    def set(self, place: int, value: int):
        self.words[place // 8] = value

    def get(self, place: int) -> int:
        return int(self.words[place // 8])

    def flags(self, *rows: dict[str, int]) -> int:
        """The address of a table of flags."""
        return self.machine.upload(tables.records(tables.FLAG, list(rows)))

    def start(self, **parameters: int) -> Callable[[], None]:
        """``signal_wait`` with these tables."""
        return self.machine.start("signal_wait", 1, 2, *tables.SignalWait(self.state, **parameters))

    def run(self, **parameters: int):
        self.start(**parameters)()

    def begin(self, lines: list[int], **parameters: int) -> Callable[[], None]:
        """``begin``, which announces to these lines."""
        at = self.machine.upload(np.array(lines, np.int64))
        begins = tables.Begin(self.state, self.ring, 2, self.addresses, 5, at, len(lines), **parameters)
        return self.machine.start("begin", 1, 2, *begins)


def begin_enters_counts_and_announces(machine: Machine):
    rank = Rank(machine)
    memory, at = machine.words(64)
    for call, first in ((4, 10), (5, 20), (6, 10)):
        rank.begin([at, at + 128, at + 256])()
        assert rank.get(tables.CALL) == call
        assert rank.slots.tolist() == [*range(first, first + 5), 0, 0, 0]
        for line in memory[:48].reshape(3, 16):
            assert line.tolist() == [call] + [0] * 15
    assert not memory[48:].any()


def begin_announces_before_it_waits(machine: Machine):
    """Two ranks that begin with each other: neither may wait for what the other has not been told."""
    rank = Rank(machine)
    memory, at = machine.words(2)
    finish = rank.begin([at], awaited=rank.flags({"address": at + 8, "multiplier": 1}), num_awaited=1)
    _until(lambda: memory[0] == 4)
    time.sleep(0.02)
    memory[1] = 4
    finish()
    assert rank.get(tables.SKIP) == 0


def signals_leave_before_it_waits_and_the_end_comes_behind(machine: Machine):
    rank = Rank(machine)
    flags, at = machine.words(4)
    first, awaited, last = (
        rank.flags({"address": at + 8 * i, "multiplier": 5, "offset": 2}) for i in range(3)
    )
    finish = rank.start(raised=first, num_raised=1, awaited=awaited, num_awaited=1, ended=last, num_ended=1)
    _until(lambda: flags[0] == 17)
    flags[1] = 16  # one stage too early
    time.sleep(0.02)
    assert flags.tolist() == [17, 16, 0, 0]
    flags[1] = 17
    finish()
    assert flags.tolist() == [17, 17, 17, 0]


def _until(happened: Callable[[], bool]):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "does not come so far"


def wait_passes_what_has_come(machine: Machine):
    rank = Rank(machine)
    flags, at = machine.words(2)
    flags[:] = (3 * 5 + 2, 1000)  # exactly the value, and beyond it
    table = rank.flags({"address": at, "multiplier": 5, "offset": 2}, {"address": at + 8, "multiplier": 1})
    rank.run(awaited=table, num_awaited=2)
    assert rank.get(tables.SKIP) == 0


def wait_waits_for_the_last_of_its_flags(machine: Machine):
    rank = Rank(machine)
    flags, at = machine.words(3)
    flags[0] = 3
    table = rank.flags({"address": at, "multiplier": 1}, {"address": at + 8, "multiplier": 5, "offset": 2})
    ended = rank.flags({"address": at + 16, "multiplier": 1})
    finish = rank.start(awaited=table, num_awaited=2, ended=ended, num_ended=1)
    flags[1] = 3 * 5 + 1  # one stage too early
    time.sleep(0.02)
    assert flags[2] == 0, "passed too early"
    flags[1] = 3 * 5 + 2
    finish()
    assert flags[2] == 3
    assert rank.get(tables.SKIP) == 0


def wait_gives_up_on_the_abort_word_and_signals_nothing_behind(machine: Machine):
    rank = Rank(machine)
    flags, at = machine.words(2)
    awaited, ended = (rank.flags({"address": at + 8 * i, "multiplier": 1}) for i in range(2))
    finish = rank.start(awaited=awaited, num_awaited=1, ended=ended, num_ended=1)
    time.sleep(0.02)
    rank.abort[0] = 1
    finish()
    assert rank.get(tables.SKIP) == 1
    assert flags.tolist() == [0, 0]


def signal_raises_flags(machine: Machine):
    rank = Rank(machine)
    flags, at = machine.words(4)
    table = rank.flags(
        {"address": at + 8, "multiplier": 5, "offset": 2},
        {"address": at + 24, "multiplier": 2, "offset": 1},
        {"address": at, "multiplier": 1},
    )
    rank.run(raised=table, num_raised=3)  # more than threads
    assert flags.tolist() == [3, 17, 0, 7]


def nothing_is_done_after_a_stop(machine: Machine):
    rank = Rank(machine)
    rank.set(tables.SKIP, 1)
    flags, at = machine.words(1)
    table = rank.flags({"address": at, "multiplier": 1})
    rank.run(awaited=table, num_awaited=1)  # would wait forever
    rank.run(raised=table, num_raised=1)
    rank.run(ended=table, num_ended=1)
    rank.begin([at], awaited=table, num_awaited=1)()
    assert flags[0] == 0
    assert rank.get(tables.CALL) == 3

    source, target = machine.upload(np.full(64, 5, np.uint8)), machine.upload(np.full(64, 77, np.uint8))
    addresses = machine.upload(np.array([source, source, target], np.int64))
    row = {"source": 0, "second": 1, "target": 2, "count": 4, "near_rows": 4}
    tasks = machine.upload(tables.records(tables.TASK, [row]))
    blocks = deal_blocks([4], 1, 1)
    indices = machine.upload(np.zeros(8, np.int32))
    cut = (machine.upload(blocks), indices)
    machine.launch("gather_16", 1, 4, rank.state, addresses, tasks, *cut, 16)
    machine.launch("sum_float32_16", 1, 4, rank.state, addresses, tasks, *cut, indices, 16)
    assert (machine.download(target, 64) == 77).all()


FLAG_CASES = {
    function.__name__.replace("_", "-"): function
    for function in (
        begin_enters_counts_and_announces,
        begin_announces_before_it_waits,
        signals_leave_before_it_waits_and_the_end_comes_behind,
        wait_passes_what_has_come,
        wait_waits_for_the_last_of_its_flags,
        wait_gives_up_on_the_abort_word_and_signals_nothing_behind,
        signal_raises_flags,
        nothing_is_done_after_a_stop,
    )
}
