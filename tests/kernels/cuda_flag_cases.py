"""Cases for the CUDA flag kernels: calls begin, are waited for, resolved, signalled, and stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from dgcl.kernels import cuda_tables as tables
from dgcl.kernels.cuda_shapes import deal_blocks
from tests.kernels.cuda_machines import Machine

TAG = 0x5EED


class Rank:
    """A state in call 3, with an abort word and a place for addresses."""

    def __init__(self, machine: Machine, call: int = 3, num_slots: int = 8) -> None:
        self.machine = machine
        self.words, self.state = machine.words(tables.STATE_BYTES // 8)
        self.abort, abort_at = machine.words(1)
        self.set(tables.CALL, call)
        self.set(tables.ABORT, abort_at)
        self.slots, self.addresses = machine.words(num_slots)

    def set(self, place: int, value: int) -> None:
        self.words[place // 8] = value

    def get(self, place: int) -> int:
        return int(self.words[place // 8])

    def flags(self, *rows: dict[str, int]) -> int:
        """The address of a table of flags."""
        return self.machine.upload(tables.records(tables.FLAG, list(rows)))

    def start(self, **parameters: int) -> Callable[[], None]:
        """``signal_wait`` with these tables."""
        return self.machine.start("signal_wait", 1, 2, *tables.SignalWait(self.state, **parameters))

    def run(self, **parameters: int) -> None:
        self.start(**parameters)()

    def begin(
        self, lines: list[int], words: int, entered: list[int], **parameters: int
    ) -> Callable[[], None]:
        """``begin``, which announces to these lines."""
        at = self.machine.upload(np.array(lines, np.int64))
        begins = tables.Begin(self.state, self.addresses, words, 7, at, len(lines), **parameters)
        return self.machine.start("begin", 1, 2, *begins, *entered)


ENTERED: Final = [1, 2, 3, 4, TAG, 11, 12, 13, 21, 22, 23]


def begin_enters_counts_and_announces(machine: Machine) -> None:
    rank = Rank(machine)
    memory, at = machine.words(64)
    said, words = machine.words(8)
    for call in (4, 5):
        rank.begin([at, at + 128, at + 256], words, ENTERED)()
        assert rank.get(tables.CALL) == call
        assert rank.slots.tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
        assert said.tolist() == [TAG, 11, 12, 13, 21, 22, 23, 0]
        for line in memory[:48].reshape(3, 16):
            assert line.tolist() == [call, TAG, 11, 12, 13, 21, 22, 23] + [0] * 8
    assert not memory[48:].any()


def begin_without_tables_only_counts(machine: Machine) -> None:
    rank = Rank(machine)
    machine.launch("begin", 1, 2, *tables.Begin(rank.state), *[0] * tables.NUM_ENTERED)
    assert rank.get(tables.CALL) == 4
    assert not rank.slots.any()


def begin_announces_before_it_waits(machine: Machine) -> None:
    """Two ranks that begin with each other: neither may wait for what the other has not been told."""
    lines = Lines(machine)
    memory, at = machine.words(16)
    _, words = machine.words(8)
    finish = lines.begin([at], words, ENTERED, ready=lines.table, num_ready=2)
    _until(lambda: memory[0] == 4)  # the peers' lines say 3
    time.sleep(0.02)
    assert lines.get(tables.WAITING) == 1
    assert not lines.slots[4:].any(), "resolved too early"
    lines.lines[[0, 16]] = 4
    finish()
    assert lines.get(tables.SKIP) == 0
    assert lines.slots.tolist() == [1, 2, 10_064, 20_128, 30_000, 0, 0, 0]


def signals_leave_before_it_waits_and_the_end_comes_behind(machine: Machine) -> None:
    lines = Lines(machine)
    flags, at = machine.words(4)
    first, awaited, last = (
        lines.flags({"address": at + 8 * i, "multiplier": 5, "offset": 2}) for i in range(3)
    )
    lines.lines[16] = 2  # the second peer has not begun
    finish = lines.start(
        raised=first, num_raised=1, awaited=awaited, num_awaited=1, ended=last, num_ended=1, **lines.peers
    )
    _until(lambda: lines.get(tables.WAITING) == 2)
    assert flags.tolist() == [17, 0, 0, 0]
    lines.lines[16] = 3
    _until(lambda: lines.get(tables.WAITING) == 3)
    assert lines.slots.tolist() == [0, 0, 10_064, 20_128, 30_000, 0, 0, 0]
    assert flags.tolist() == [17, 0, 0, 0]
    flags[1] = 16  # one stage too early
    time.sleep(0.02)
    assert flags[2] == 0
    flags[1] = 17
    finish()
    assert flags.tolist() == [17, 17, 17, 0]
    assert lines.get(tables.WAITING) == 0


def nothing_is_signalled_behind_a_wait_that_failed(machine: Machine) -> None:
    for fault in (tables.ABORTED, tables.DISAGREES):
        lines = Lines(machine)
        flags, at = machine.words(2)
        awaited, last = (lines.flags({"address": at + 8 * i, "multiplier": 1}) for i in range(2))
        flags[0] = 3 if fault == tables.DISAGREES else tables.FLAG_MAX
        lines.lines[17] = TAG + (fault == tables.DISAGREES)
        lines.run(awaited=awaited, num_awaited=1, ended=last, num_ended=1, **lines.peers)
        assert lines.get(tables.SKIP) == 1
        assert lines.get(tables.FAULT) == fault
        assert lines.get(tables.WHERE) == (1 if fault == tables.DISAGREES else 2)
        assert flags[1] == 0


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline, "does not come so far"


def wait_passes_what_has_come(machine: Machine) -> None:
    rank = Rank(machine)
    flags, at = machine.words(2)
    flags[:] = (3 * 5 + 2, 1000)  # exactly the value, and beyond it
    table = rank.flags(
        {"address": at, "multiplier": 5, "offset": 2}, {"address": at + 8, "multiplier": 1, "offset": 0}
    )
    rank.run(awaited=table, num_awaited=2)
    assert rank.get(tables.WAITING) == 0
    assert rank.get(tables.SKIP) == 0


def wait_waits(machine: Machine) -> None:
    rank = Rank(machine)
    flags, at = machine.words(2)
    flags[0] = 3
    table = rank.flags({"address": at, "multiplier": 1}, {"address": at + 8, "multiplier": 5, "offset": 2})
    finish = rank.start(awaited=table, num_awaited=2)
    _until(lambda: rank.get(tables.WAITING) != 0)
    assert rank.get(tables.WAITING) == 2
    flags[1] = 3 * 5 + 1  # one stage too early
    time.sleep(0.02)
    assert rank.get(tables.WAITING) == 2, "passed too early"
    flags[1] = 3 * 5 + 2
    finish()
    assert rank.get(tables.WAITING) == 0
    assert rank.get(tables.SKIP) == 0


def _aborted(rank: Rank, where: int) -> None:
    assert rank.get(tables.SKIP) == 1
    assert rank.get(tables.FAULT) == tables.ABORTED
    assert rank.get(tables.WHERE) == where


def wait_gives_up_on_the_abort_word(machine: Machine) -> None:
    rank = Rank(machine)
    _, at = machine.words(1)
    finish = rank.start(awaited=rank.flags({"address": at, "multiplier": 1}), num_awaited=1)
    time.sleep(0.02)
    rank.abort[0] = 1
    finish()
    _aborted(rank, 0)
    assert rank.get(tables.WAITING) == 1


def wait_knows_the_greatest_value_as_a_stop(machine: Machine) -> None:
    """What a wait done by the stream itself is ended with must not pass for a flag."""
    rank = Rank(machine)
    flags, at = machine.words(2)
    flags[:] = (7, tables.FLAG_MAX)
    table = rank.flags({"address": at, "multiplier": 1}, {"address": at + 8, "multiplier": 1})
    rank.run(awaited=table, num_awaited=2)
    _aborted(rank, 1)


def signal_raises_flags(machine: Machine) -> None:
    rank = Rank(machine)
    flags, at = machine.words(4)
    table = rank.flags(
        {"address": at + 8, "multiplier": 5, "offset": 2},
        {"address": at + 24, "multiplier": 2, "offset": 1},
        {"address": at, "multiplier": 1},
    )
    rank.run(raised=table, num_raised=3)  # more than threads
    assert flags.tolist() == [3, 17, 0, 7]


class Lines(Rank):
    """Two peers' ready lines, and what this rank has mapped of each."""

    def __init__(self, machine: Machine, num_maps: int | None = None) -> None:
        super().__init__(machine)
        self.lines, line = machine.words(32)
        self.lines[:8] = [3, TAG, 100, 5000, 64, 200, 6000, 128]
        self.lines[16:24] = [3, TAG, 300, 7000, 0, 0, 0, 0]  # no relay rows
        maps = [
            [(200, 6000, 20_000), (0, 0, 0), (100, 5000, 10_000)],
            [(300, 7000, 30_000), (100, 5000, 40_000)],
        ]
        seen = [machine.words(3 * len(rows)) for rows in maps]
        self.maps = [words.reshape(-1, 3) for words, _ in seen]
        for rows, mine in zip(maps, self.maps, strict=True):
            mine[:] = rows
        self.table = self.flags(
            *(
                {
                    "address": line + 128 * peer,
                    "multiplier": 1,
                    "target": 2 + 2 * peer,
                    "maps": at,
                    "num_maps": len(rows) if num_maps is None else num_maps,
                }
                for peer, (rows, (_, at)) in enumerate(zip(maps, seen, strict=True))
            )
        )
        tag, self.tag = machine.words(1)
        tag[0] = TAG

        self.peers = {"addresses": self.addresses, "tag": self.tag, "ready": self.table, "num_ready": 2}

    def resolve(self) -> None:
        self.run(**self.peers)


def resolve_finds_buffers(machine: Machine) -> None:
    lines = Lines(machine)
    lines.resolve()
    assert lines.slots.tolist() == [0, 0, 10_064, 20_128, 30_000, 0, 0, 0]
    assert lines.get(tables.SKIP) == 0


def _faulty(lines: Lines, fault: int) -> None:
    lines.resolve()
    assert lines.get(tables.SKIP) == 1
    assert lines.get(tables.FAULT) == fault
    assert lines.get(tables.WHERE) == 1


def resolve_notices_another_call(machine: Machine) -> None:
    lines = Lines(machine)
    lines.lines[16] = 4
    _faulty(lines, tables.DISAGREES)


def resolve_notices_another_kind_of_call(machine: Machine) -> None:
    lines = Lines(machine)
    lines.lines[17] = TAG + 1
    _faulty(lines, tables.DISAGREES)


def resolve_waits_for_what_is_not_mapped_yet(machine: Machine) -> None:
    lines = Lines(machine)
    lines.lines[18] = 500  # new memory of the second peer
    finish = lines.start(**lines.peers)
    time.sleep(0.02)
    assert lines.slots[4] == 0, "resolved too early"
    lines.maps[1][1, :2] = (500, 7001)  # of another size
    lines.maps[1][1, 2] = 60_000
    time.sleep(0.02)
    assert lines.slots[4] == 0, "resolved to memory of another size"
    lines.maps[1][0, :2] = (500, 7000)
    finish()
    assert lines.slots.tolist() == [0, 0, 10_064, 20_128, 30_000, 0, 0, 0]
    assert lines.get(tables.SKIP) == 0


def resolve_only_compares_calls_of_who_is_out_of_reach(machine: Machine) -> None:
    for announced, fault in ((3, 0), (4, tables.DISAGREES)):
        lines = Lines(machine, num_maps=-1)
        lines.lines[16] = announced
        lines.slots[2:6] = 7
        lines.resolve()
        assert lines.get(tables.FAULT) == fault
        assert fault or lines.slots.tolist() == [0, 0, 0, 0, 0, 0, 0, 0]  # else nothing runs that reads them


def resolve_gives_up_on_the_abort_word(machine: Machine) -> None:
    lines = Lines(machine)
    lines.lines[18] = 200  # mapped of the other peer only
    finish = lines.start(**lines.peers)
    time.sleep(0.02)
    assert lines.get(tables.SKIP) == 0
    lines.abort[0] = 1
    finish()
    assert lines.get(tables.SKIP) == 1
    assert lines.get(tables.FAULT) == tables.UNMAPPED
    assert lines.get(tables.WHERE) == 1


def nothing_is_done_after_a_stop(machine: Machine) -> None:
    lines = Lines(machine)
    lines.set(tables.SKIP, 1)
    before = lines.lines.copy()
    flags, at = machine.words(1)
    table = lines.flags({"address": at, "multiplier": 1})
    lines.resolve()
    lines.run(awaited=table, num_awaited=1)  # would wait forever
    lines.run(raised=table, num_raised=1)
    lines.run(ended=table, num_ended=1)
    assert not lines.slots.any()
    _, words = machine.words(8)
    lines.begin([at], words, ENTERED, awaited=table, num_awaited=1)()
    assert flags[0] == 0
    assert np.array_equal(lines.lines, before)
    assert lines.get(tables.CALL) == 3

    source, target = machine.upload(np.full(64, 5, np.uint8)), machine.upload(np.full(64, 77, np.uint8))
    addresses = machine.upload(np.array([source, source, target], np.int64))
    row = {"source": 0, "second": 1, "target": 2, "count": 4, "near_rows": 4}
    tasks = machine.upload(tables.records(tables.TASK, [row]))
    blocks = deal_blocks([4], 1, 1)
    indices = machine.upload(np.zeros(8, np.int32))
    cut = (machine.upload(blocks), indices)
    machine.launch("gather_16", 1, 4, lines.state, addresses, tasks, *cut, 16)
    machine.launch("sum_float32_16", 1, 4, lines.state, addresses, tasks, *cut, indices, 16)
    assert (machine.download(target, 64) == 77).all()


FLAG_CASES: Final = {
    function.__name__.replace("_", "-"): function
    for function in (
        begin_enters_counts_and_announces,
        begin_without_tables_only_counts,
        begin_announces_before_it_waits,
        signals_leave_before_it_waits_and_the_end_comes_behind,
        nothing_is_signalled_behind_a_wait_that_failed,
        wait_passes_what_has_come,
        wait_waits,
        wait_gives_up_on_the_abort_word,
        wait_knows_the_greatest_value_as_a_stop,
        signal_raises_flags,
        resolve_finds_buffers,
        resolve_notices_another_call,
        resolve_notices_another_kind_of_call,
        resolve_waits_for_what_is_not_mapped_yet,
        resolve_only_compares_calls_of_who_is_out_of_reach,
        resolve_gives_up_on_the_abort_word,
        nothing_is_done_after_a_stop,
    )
}
