"""The measurement counts what it says, and an exchange that corrupts anything is found out."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.bench import measure
from dgcl.bench.problems import Problem, from_pattern
from dgcl.bench.records import Case, Settings
from dgcl.bench.transports import Baseline
from dgcl.topology import resolve_topology
from tests.support.awkward import CASES


def run(world_size: int, case: Case, methods: tuple[str, ...] = ("auto",), **options: Any) -> Any:
    topology = options.pop("topology", None) or resolve_topology("uniform", world_size)
    settings = Settings(methods, topology, **{"iterations": 6, "warmup": 1, **options})
    told: list[Any] = []
    results = dgcl.launch(measure.measure, world_size, [case], settings, told.append)
    assert results[1:] == [None] * (world_size - 1)
    assert told == [results[0].ranks, *results[0].lines]
    return results[0]


def test_sizes_and_rows_are_those_of_the_problem():
    result = run(4, Case(functools.partial(from_pattern, "alltoall", 4, 7), (3, 5)), ("direct", "spst"))
    assert [rank.num_halo for rank in result.ranks] == [21] * 4
    assert [(line.method, line.width) for line in result.lines] == [
        ("direct", 3),
        ("spst", 3),
        ("direct", 5),
        ("spst", 5),
    ]
    for line in result.lines:
        assert (line.halo_rows, line.local_rows) == (84, 168)
        assert line.size == 21 * line.width * 4
        assert line.moved == 168 * line.width * 4
        for timing in (line.forward, line.backward):
            assert timing.wrong == 0
            assert 0 < timing.best <= timing.median
            assert line.algbw(timing) == pytest.approx(line.size / timing.seconds / 1e9)
            assert line.busbw(timing) == pytest.approx(line.size / timing.seconds / 1e9)
            assert len(timing.calls) >= 6
            assert sum(timing.calls) / len(timing.calls) == pytest.approx(timing.seconds)
        assert (line.busiest, line.own, line.messages) == (line.size, line.size, 12)


def test_the_model_is_that_of_the_topology():
    # Each rank sends 14 rows of 12 bytes through its port of 10 GB/s.
    line = run(3, Case(functools.partial(from_pattern, "alltoall", 3, 7), (3,)), ("direct",)).lines[0]
    assert line.model_seconds == pytest.approx(14 * 12 / 10e9)
    assert 0 < line.bound_seconds <= line.model_seconds
    assert line.stages == 1


@pytest.mark.parametrize("dtype", ["double", "half", "bfloat16", "int8", "int64"])
def test_every_type(dtype: str):
    case = Case(lambda: Problem("directed", CASES[0].graph, CASES[0].part(3), 3), (9,))
    lines = run(3, case, ("auto", "spst"), dtype=dtype).lines
    assert [line.forward.wrong + line.backward.wrong for line in lines] == [0, 0]


def test_halo_rows_alone_are_measured_and_verified():
    case = Case(lambda: Problem("directed", CASES[0].graph, CASES[0].part(3), 3), (9,))
    halo, whole = run(3, case, ("halo", "auto")).lines
    assert halo.forward.wrong == halo.backward.wrong == 0
    assert (halo.moved, whole.moved) == (halo.halo_rows * 36, whole.local_rows * 36)
    assert (halo.own * 3, whole.own * 3) == (0, whole.moved - halo.moved)
    part, (tails, heads) = CASES[0].part(3), CASES[0].edges
    needs = {(part[v], u) for u, v in zip(tails, heads, strict=True) if part[u] != part[v]}
    assert whole.busiest == 36 * max(sum(rank == r for rank, _ in needs) for r in range(3))
    assert halo.halo_rows < whole.local_rows


def _flip(rows: Tensor) -> Tensor:
    rows.view(torch.uint8)[-1, -1] ^= 1
    return rows


def _swap_last(rows: Tensor) -> Tensor:
    rows[[-1, -2]] = rows[[-2, -1]]
    return rows


CORRUPTIONS = {"one bit": (_flip, 1), "two rows changed places": (_swap_last, 10), "poison": (None, 5)}


@pytest.mark.parametrize("verb", ["expand", "fold"])
@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_corrupted_exchange_is_found_out(verb: str, what: str, monkeypatch):
    damage, wrong = CORRUPTIONS[what]

    class Corrupt(Baseline):
        calls = 0

        def _damaged(self, name: str, rows: Tensor, exchange: int) -> Tensor:
            result = getattr(Baseline, name)(self, rows, exchange)
            if name == verb and self.comm.rank == 1:
                self.calls += 1
                if self.calls == 5 and damage is not None:
                    damage(result)
                elif self.calls == 5:  # a row that never came
                    result[-1].view(torch.uint8).fill_(255)
            return result

        def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
            return self._damaged("expand", rows, exchange)

        def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
            return self._damaged("fold", rows, exchange)

    monkeypatch.setattr(measure, "calls_of", Corrupt)
    case = Case(functools.partial(from_pattern, "alltoall", 3, 4), (5,))
    (line,) = run(3, case, ("direct",)).lines
    found = {"expand": line.forward.wrong, "fold": line.backward.wrong}
    other = {"expand": "fold", "fold": "expand"}[verb]
    assert found[verb] == wrong
    assert found[other] == 0


def test_an_exchange_that_gives_the_last_result_again_is_found_out(monkeypatch):
    class Stale(Baseline):
        last: Tensor | None = None

        def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
            result = super().expand(rows, exchange)
            stale = result if self.last is None else self.last
            self.last = result.clone()
            return stale

    monkeypatch.setattr(measure, "calls_of", Stale)
    (line,) = run(2, Case(functools.partial(from_pattern, "ring", 2, 4), (5,)), ("direct",)).lines
    assert line.forward.wrong == 6 * 2 * 8 * 5  # every element of every call after the first
