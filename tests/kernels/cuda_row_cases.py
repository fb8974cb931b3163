"""Cases for the CUDA row kernels, judged by numpy indexing and by the CPU kernels."""

from dataclasses import dataclass

import numpy as np

from dgcl.kernels.copies import STREAMED
from dgcl.kernels.cuda_catalogue import sum_name
from dgcl.kernels.cuda_numbers import ITEM_BYTES
from dgcl.kernels.cuda_shapes import deal_blocks, unit_of
from dgcl.kernels.cuda_tables import STATE_BYTES, TASK, arrival_pointers, records
from dgcl.kernels.rows import SUMMABLE, sum_rows
from tests.kernels.cuda_machines import Machine

GUARD = 77
GUARD_BYTES = 64


@dataclass(frozen=True)
class GatherCase:
    """Rows for three peers. ``*_at`` are offsets of addresses, ``unit`` what they and the width allow."""

    name: str
    row_bytes: int
    unit: int
    source_at: int = 0
    second_at: int = 0
    target_at: int = 0
    counts: tuple[int, ...] = (5, 0, 9)


GATHERS: list[GatherCase] = [
    GatherCase("64-float32", 256, 16),
    GatherCase("602-float32", 2408, 8, counts=(2, 3)),
    GatherCase("1-float32", 4, 4, counts=(40, 1, 0)),
    GatherCase("3-float32", 12, 4),
    GatherCase("5-float64", 40, 8),
    GatherCase("1-bfloat16", 2, 2, counts=(33, 7)),
    GatherCase("7-bfloat16", 14, 2),
    GatherCase("129-bfloat16", 258, 2, counts=(1, 2)),
    GatherCase("128-bfloat16", 256, 16, counts=(1,)),
    GatherCase("13-int8", 13, 1),
    GatherCase("source-8-off", 64, 8, source_at=8),
    GatherCase("relay-rows-4-off", 64, 4, second_at=4),
    GatherCase("target-2-off", 64, 2, target_at=2),
    GatherCase("all-1-off", 32, 1, source_at=1, second_at=3, target_at=5),
    GatherCase("same-but-16-off", 48, 16, source_at=16, second_at=32, target_at=48),
    GatherCase("no-rows", 16, 16, counts=(0, 0)),
    GatherCase("more-peers-than-blocks", 16, 16, counts=(1, 2, 3, 4, 1, 2, 0, 1)),
]


def _random_gather(seed: int) -> GatherCase:
    generator = np.random.default_rng(seed)
    row_bytes = int(generator.integers(1, 100) * generator.choice([1, 2, 4, 8, 16]))
    offsets = (generator.integers(0, 16, 3) * generator.choice([1, 2, 4, 8, 16])).tolist()
    unit = next(u for u in (16, 8, 4, 2, 1) if all(number % u == 0 for number in (row_bytes, *offsets)))
    counts = tuple(generator.integers(0, 8, generator.integers(1, 6)).tolist())
    return GatherCase(f"random-{seed}", row_bytes, unit, *offsets, counts)


GATHERS += [_random_gather(seed) for seed in range(30)]


def _addresses(machine: Machine, *values: int) -> int:
    return machine.upload(np.array(values, np.int64))


def _guarded(machine: Machine, num_bytes: int, offset: int) -> int:
    """Memory for a result between two guards."""
    memory = np.full(num_bytes + 2 * GUARD_BYTES, GUARD, np.uint8)
    return machine.upload(memory, offset) + GUARD_BYTES


def _result(machine: Machine, address: int, num_bytes: int) -> np.ndarray:
    memory = machine.download(address - GUARD_BYTES, num_bytes + 2 * GUARD_BYTES)
    guards = np.concatenate([memory[:GUARD_BYTES], memory[GUARD_BYTES + num_bytes :]])
    assert (guards == GUARD).all(), "wrote outside the target"
    return memory[GUARD_BYTES : GUARD_BYTES + num_bytes]


def run_gather(machine: Machine, case: GatherCase):
    """Gather rows for several peers in one launch."""
    generator = np.random.default_rng(len(case.name))
    counts = [count * machine.scale for count in case.counts]
    num_near, num_far, skipped = 20, 9, 2
    near = generator.integers(0, 256, (num_near, case.row_bytes), np.uint8)
    far = generator.integers(0, 256, (num_far, case.row_bytes), np.uint8)
    table = generator.integers(0, num_near + num_far, sum(counts) + 3).astype(np.int32)
    source, second = machine.upload(near, case.source_at), machine.upload(far, case.second_at)
    # Each peer's rows begin two rows into its memory; the row table begins with three that nobody asks for.
    sizes = [(count + skipped) * case.row_bytes for count in counts]
    targets = [_guarded(machine, size, case.target_at) for size in sizes]
    unit = unit_of(case.row_bytes, source, second, *targets)
    assert unit == case.unit
    firsts = 3 + np.cumsum([0, *counts])
    tasks = records(
        TASK,
        [
            {
                "source": 0,
                "second": 1,
                "target": 2 + peer,
                "first": firsts[peer],
                "to": skipped,
                "count": count,
                "near_rows": num_near,
            }
            for peer, count in enumerate(counts)
        ],
    )
    blocks = deal_blocks(
        [count * case.row_bytes // unit for count in counts], machine.max_blocks, machine.threads
    )

    machine.launch(
        f"gather_{unit}",
        len(blocks),
        machine.threads,
        machine.upload(np.zeros(STATE_BYTES, np.uint8)),
        _addresses(machine, source, second, *targets),
        machine.upload(tasks),
        machine.upload(blocks),
        machine.upload(table),
        case.row_bytes,
    )

    rows = np.concatenate([near, far])
    for peer, count in enumerate(counts):
        written = _result(machine, targets[peer], sizes[peer]).reshape(-1, case.row_bytes)
        expected = rows[table[firsts[peer] : firsts[peer] + count]]
        assert (written[:skipped] == GUARD).all(), "wrote before the first row"
        assert np.array_equal(written[skipped:], expected), f"peer {peer}"


@dataclass(frozen=True)
class SumCase:
    """Sums for two tasks: rows with own values, and rows that only pass through."""

    element: str
    width: int
    unit: int
    offset: int = 0
    seed: int | None = None

    @property
    def name(self) -> str:
        """As it is shown."""
        shown = f"{self.width}-{self.element}" + f"-{self.offset}-off" * (self.offset > 0)
        return shown if self.seed is None else f"random-{self.seed}-{shown}"


def _sum_cases() -> list[SumCase]:
    cases = []
    for element in SUMMABLE:
        size = 1 if element == "uint8" else ITEM_BYTES[element]
        for width in (1, 3, 7, 64, 602):
            offsets = [0, *(offset for offset in (1, 2, 4, 8) if offset >= size)] if width == 64 else [0]
            for offset in offsets:
                unit = next(u for u in (16, 8, 4, 2, 1) if (width * size) % u == 0 and offset % u == 0)
                cases.append(SumCase(element, width, unit, offset))
    return cases


def _random_sum(seed: int) -> SumCase:
    generator = np.random.default_rng([seed, 1])
    element = SUMMABLE[seed % len(SUMMABLE)]
    size = 1 if element == "uint8" else ITEM_BYTES[element]
    width, offset = int(generator.integers(1, 70)), int(generator.integers(0, 16 // size) * size)
    unit = next(u for u in (16, 8, 4, 2, 1) if (width * size) % u == 0 and offset % u == 0)
    return SumCase(element, width, unit, offset, seed)


SUMS = [*_sum_cases(), *(_random_sum(seed) for seed in range(27))]


def random_rows(generator: np.random.Generator, shape: tuple[int, int], element: str) -> np.ndarray:
    """Rows, as bytes, whose sums show the order of addition (floats) or wrap around (integers)."""
    if "float" not in element:
        return generator.integers(0, 256, (shape[0], shape[1] * np.dtype(element).itemsize), np.uint8)
    spread = generator.standard_normal(shape) * 10.0 ** generator.integers(-2, 3, shape)
    if element == "bfloat16":
        upper = (spread.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return upper.view(np.uint8)
    return spread.astype(element).view(np.uint8)


def run_sum(machine: Machine, case: SumCase):
    """Sum rows for two tasks in one launch; the CPU kernel says what comes out, to the bit."""
    generator = np.random.default_rng([case.width, case.offset, case.seed or 0])
    num_local, num_relay = 12 * machine.scale, 4 * machine.scale
    counts = np.concatenate(
        [generator.integers(0, 4, num_local), generator.integers(1, 4, num_relay)]  # relay rows have arrivals
    )
    counts[[2, 5]] = (0, 9)
    rows = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    slots = generator.permutation(len(rows)).astype(np.int32)
    own = random_rows(generator, (num_local, case.width), case.element)
    arrivals = random_rows(generator, (max(len(rows), 1), case.width), case.element)
    row_bytes = own.shape[1]
    parts = [(0, 1, num_local - 1), (-1, num_local, num_relay)]  # source slot, first row, rows

    expected = []
    for source, first, count in parts:
        out = np.zeros((count, row_bytes), np.uint8)
        sum_rows(
            SUMMABLE.index(case.element),
            out.ctypes.data,
            own.ctypes.data if source == 0 else 0,
            first,
            first + count,
            rows,
            slots,
            int(np.searchsorted(rows, first)),
            arrivals.ctypes.data,
            row_bytes,
            STREAMED,
        )
        expected.append(out)

    own_at, arrivals_at = machine.upload(own, case.offset), machine.upload(arrivals, case.offset)
    targets = [_guarded(machine, (count + 1) * row_bytes, case.offset) for _, _, count in parts]
    item_bytes = 1 if case.element == "uint8" else ITEM_BYTES[case.element]
    unit = unit_of(row_bytes, own_at, arrivals_at, *targets, item_bytes=item_bytes)
    assert unit == case.unit
    tasks = records(
        TASK,
        [
            {"source": source, "second": 1, "target": 2 + i, "first": first, "to": 1, "count": count}
            for i, (source, first, count) in enumerate(parts)
        ],
    )
    blocks = deal_blocks(
        [count * row_bytes // unit for _, _, count in parts], machine.max_blocks, machine.threads
    )

    machine.launch(
        sum_name(case.element, unit),
        len(blocks),
        machine.threads,
        machine.upload(np.zeros(STATE_BYTES, np.uint8)),
        _addresses(machine, own_at, arrivals_at, *targets),
        machine.upload(tasks),
        machine.upload(blocks),
        machine.upload(arrival_pointers(rows, len(counts))),
        machine.upload(slots),
        row_bytes,
    )

    for target, right in zip(targets, expected, strict=True):
        written = _result(machine, target, right.nbytes + row_bytes).reshape(-1, row_bytes)
        assert (written[0] == GUARD).all(), "wrote before the first row"
        assert np.array_equal(written[1:], right)


def run_rounding(machine: Machine, element: str):
    """Sums of 16-bit floats are those in float32, rounded once, to nearest even: one 1 and many parts too small to
    change it alone, and random ones; judged by float64."""
    generator = np.random.default_rng(3)
    width, num_arrivals, scale = 24, 40, machine.scale
    digits = {"float16": 11, "bfloat16": 8}[element]
    values = generator.standard_normal((scale * num_arrivals, width))
    values[:num_arrivals] = 0.9 * 2.0**-digits
    own_values = np.ones((scale, width))
    own_values[:, 1::2] = generator.standard_normal((scale, width // 2))

    def stored(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows as they are kept, in bits and as numbers."""
        if element == "float16":
            kept = rows.astype(np.float16)
            return kept.view(np.uint8), kept.astype(np.float64)
        upper = (rows.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return upper.view(np.uint8), (upper.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)

    own_bits, own = stored(own_values)
    bits, arrived = stored(values)
    rows = np.repeat(np.arange(scale), num_arrivals).astype(np.int32)
    row_bytes = 2 * width
    own_at, arrived_at = machine.upload(own_bits), machine.upload(bits)
    target = _guarded(machine, scale * row_bytes, 0)
    unit = unit_of(row_bytes, own_at, arrived_at, target, item_bytes=2)
    blocks = deal_blocks([scale * row_bytes // unit], machine.max_blocks, machine.threads)
    machine.launch(
        sum_name(element, unit),
        len(blocks),
        machine.threads,
        machine.upload(np.zeros(STATE_BYTES, np.uint8)),
        _addresses(machine, own_at, arrived_at, target),
        machine.upload(records(TASK, [{"source": 0, "second": 1, "target": 2, "count": scale}])),
        machine.upload(blocks),
        machine.upload(arrival_pointers(rows, scale)),
        machine.upload(np.arange(len(rows), dtype=np.int32)),
        row_bytes,
    )
    found = _result(machine, target, scale * row_bytes).view(np.uint16)
    if element == "float16":
        sums = found.view(np.float16).astype(np.float64)
    else:
        sums = (found.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    every = np.concatenate([own[:, None], arrived.reshape(scale, num_arrivals, width)], axis=1)
    exact, size = every.sum(1), np.abs(every).sum(1)
    # One rounding to 16 bits of what float32 has added.
    allowed = 2.0**-digits * np.abs(exact) + 2.0**-24 * (num_arrivals + 2) * 2 * size
    assert (np.abs(sums.reshape(exact.shape) - exact) <= allowed).all()
    assert (exact[0, 0::2] > 1 + 30 * 2.0**-digits).all(), "parts that count together"


def run_far(machine: Machine, row_bytes: int):
    """Rows that begin beyond 2**31 bytes: gathered, summed, and written there."""
    row = 2**31 // row_bytes + 5
    data = np.random.default_rng(4).integers(0, 256, row_bytes, np.uint8)
    far = machine.upload_behind(row * row_bytes, data)
    near = _guarded(machine, 2 * row_bytes, 0)
    unit = unit_of(row_bytes, far, near)
    state = machine.upload(np.zeros(STATE_BYTES, np.uint8))
    addresses = _addresses(machine, far, near)
    blocks = machine.upload(deal_blocks([row_bytes // unit], 1, 1))
    index = machine.upload(np.array([row], np.int32))

    for task in (
        {"target": 1, "to": 1, "count": 1, "near_rows": row + 1},
        {"second": 0, "target": 1, "to": 0, "count": 1, "near_rows": 0},
    ):
        tasks = machine.upload(records(TASK, [task]))
        # The second counts from relay row 0.
        machine.launch(
            f"gather_{unit}", 1, machine.threads, state, addresses, tasks, blocks, index, row_bytes
        )
    gathered = _result(machine, near, 2 * row_bytes).reshape(2, -1)
    assert np.array_equal(gathered, [data, data])

    # Its own row, and itself as what arrived for it, into the place where it lies.
    task = {"second": 0, "target": 0, "first": row, "to": row, "count": 1}
    tasks = machine.upload(records(TASK, [task]))
    pointers = machine.upload_behind(4 * row, np.array([0, 1], np.int32))
    machine.launch(
        sum_name("uint8", unit),
        1,
        machine.threads,
        *(state, addresses, tasks, blocks, pointers, index, row_bytes),
    )
    assert np.array_equal(machine.download(far + row * row_bytes, row_bytes), data + data)


ROW_CASES = {
    "far-rows-of-8000-bytes": (run_far, 8000),
    "far-rows-of-2408-bytes": (run_far, 2408),
    **{f"rounding-{element}": (run_rounding, element) for element in ("float16", "bfloat16")},
    **{f"gather-{case.name}": (run_gather, case) for case in GATHERS},
    **{f"sum-{case.name}": (run_sum, case) for case in SUMS},
}
