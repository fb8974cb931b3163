import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dgcl.transport.common.pool import Block, BufferPool
from dgcl.transport.common.segments import SegmentFile
from tests.support.samples import named

UNIT = 256  # blocks are multiples of this
SEGMENT = 1 << 20  # the smallest segment


def place(block: Block) -> tuple[int, int]:
    return block.segment.base + block.offset, block.size


class PoolMachine(RuleBasedStateMachine):
    """Whatever is taken and given back in whatever order: blocks never overlap and nothing is lost."""

    def __init__(self):
        super().__init__()
        self.pool = BufferPool(SegmentFile())
        self.live: list[tuple[Block, np.ndarray | None]] = []

    @rule(num_bytes=st.one_of(st.integers(0, 2000), st.integers(0, 3 * SEGMENT)), as_array=st.booleans())
    def allocate(self, num_bytes: int, as_array: bool):
        block = self.pool.allocate(num_bytes)
        assert block.size >= max(num_bytes, 1)
        assert block.offset % UNIT == block.size % UNIT == 0
        assert block.offset + block.size <= block.segment.size
        self.live.append((block, self.pool.array(block, num_bytes) if as_array and num_bytes else None))

    @rule(data=st.data())
    def give_back(self, data: st.DataObject):
        if self.live:
            block, array = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            if array is None:
                self.pool.release(block)

    @invariant()
    def no_two_blocks_overlap(self):
        places = sorted(place(block) for block, _ in self.live)
        for (start, size), (after, _) in itertools.pairwise(places):
            assert start + size <= after

    def teardown(self):
        for block, array in self.live:
            if array is None:
                self.pool.release(block)
        self.live.clear()
        block = array = None
        before = self.pool.bytes_allocated
        whole = [self.pool.allocate(segment) for segment in self._segment_sizes()]
        assert self.pool.bytes_allocated == before, "free neighbours were not joined"
        assert self.pool.bytes_in_use == sum(block.size for block in whole) == before

    def _segment_sizes(self) -> list[int]:
        return sorted((segment.size for segment in self.pool._segments.values()), reverse=True)


PoolMachine.TestCase.settings = settings(stateful_step_count=30)
TestPool = PoolMachine.TestCase


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(SegmentFile())


def test_blocks_that_are_free_are_reused_before_memory_grows(pool: BufferPool):
    for _ in range(100):
        blocks = [pool.allocate(200_000) for _ in range(5)]
        for block in blocks:
            pool.release(block)
    assert pool.bytes_allocated == SEGMENT


@named(
    "show",
    {
        "slice": lambda array: array[3:5],
        "view": lambda array: array.view(np.int32),
        "memoryview": lambda array: memoryview(array),
        "container": lambda array: [array],
        "reshaped": lambda array: array[::2].reshape(2, -1),
    },
)
def test_a_lent_block_is_free_when_nothing_shows_it(pool: BufferPool, show: Any):
    block = pool.allocate(64)
    shown = show(pool.array(block, 64))
    assert place(pool.allocate(64)) != place(block)
    del shown
    assert place(pool.allocate(64)) == place(block)


def test_memory_in_use_is_counted(pool: BufferPool):
    array = pool.array(pool.allocate(1000), 1000)
    block = pool.allocate(1)
    assert pool.bytes_in_use == 4 * UNIT + UNIT
    pool.release(block)
    del array
    pool.release(pool.allocate(1))
    pool.allocate(1)
    assert pool.bytes_in_use == UNIT


def test_arrays_may_die_in_any_thread(pool: BufferPool):
    """Autograd frees what it saved wherever it runs; the pool takes it back in its own thread."""
    stop = threading.Event()
    arrays: list[np.ndarray] = []

    def drop():
        while not stop.is_set() or arrays:
            while arrays:
                arrays.pop()

    droppers = [threading.Thread(target=drop) for _ in range(3)]
    for thread in droppers:
        thread.start()
    for step in range(1000):
        array = pool.array(pool.allocate(5000), 5000)
        array[:] = step % 251
        assert (array == step % 251).all()
        arrays.append(array)
        del array
    stop.set()
    for thread in droppers:
        thread.join()
    pool.release(pool.allocate(1))
    pool.allocate(1)
    assert pool.bytes_in_use == UNIT


def test_no_memory_leaves_the_pool_as_it_was(pool: BufferPool):
    kept = pool.allocate(100)
    with pytest.raises(MemoryError, match="use narrower layers or fewer results"):
        pool.allocate(10**15)
    assert pool.bytes_in_use == kept.size
    assert place(pool.allocate(100))[0] == place(kept)[0] + kept.size
