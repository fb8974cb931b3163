from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gpu.row_speed import HEAD, Line, Size, row_table
from tests.simulated import run_simulated

LINE = Line(
    what="sum",
    element="float32",
    width=64,
    order="random",
    kernel="sum_float32_16",
    blocks=264,
    threads=256,
    speed=3600.0,
    copy=4000.0,
    torch=1500.4,
    right=True,
    target=0.85,
)


def changed(**fields: Any) -> Line:
    return Line(**{**vars(LINE), **fields})


@pytest.mark.parametrize(
    ("line", "good", "end"),
    [
        (LINE, True, "| 3600 | 0.90 | 1500 | yes | 0.85 yes |"),
        (changed(speed=3000.0), False, "| 3000 | 0.75 | 1500 | yes | 0.85 MISSED |"),
        (changed(right=False), False, "| 3600 | 0.90 | 1500 | NO | 0.85 MISSED |"),
        (changed(target=None, torch=None), True, "| 3600 | 0.90 |  | yes |  |"),
        (changed(target=None, right=False), False, "| 3600 | 0.90 | 1500 | NO |  |"),
    ],
    ids=["good", "slow", "wrong", "no-target", "wrong-without-target"],
)
def test_a_line_is_good_when_right_and_fast_enough(line: Line, good: bool, end: str) -> None:
    assert line.good == good
    assert str(line).endswith(end)
    assert str(line).count("|") == HEAD.splitlines()[0].count("|")
    assert json.loads(json.dumps(line.to_json()))["share"] == line.speed / line.copy


def test_size_in_rows() -> None:
    assert Size(num_bytes=1 << 31).num_rows(256) == 1 << 23
    assert Size(num_bytes=1000).num_rows(256) == 2
    assert Size(num_bytes=1 << 31).num_rows(4) == 1 << 24


def test_row_tables_name_existing_rows() -> None:
    assert sorted(row_table("random", 10)) == list(range(10))
    table = row_table("sorted", 10)
    assert (table[:5] == table[5:]).all()
    assert (table[1:5] > table[:4]).all()


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    return run_simulated("tests.gpu.simulated")


@pytest.mark.slow
def test_kernels_measured_in_the_simulator_are_right(outcome: dict[str, Any]) -> None:
    assert len(outcome["right"]) > 30
    assert [name for name, right in outcome["right"].items() if not right] == []
    assert all(line["speed"] > 0 for line in outcome["lines"])


@pytest.mark.slow
def test_damaged_kernels_are_noticed(outcome: dict[str, Any]) -> None:
    assert outcome["damaged"] == {"gather": False, "sum": False}


@pytest.mark.slow
def test_exchanges_measured_in_the_simulator_are_right(outcome: dict[str, Any]) -> None:
    for method, lines in outcome["exchanges"].items():
        assert [line["verb"] for line in lines] == ["expand", "fold"]
        assert [line["right"] for line in lines] == [True, True]
        assert [line["host"] for line in lines] == [pytest.approx([2.0, 3.0])] * 2
        assert all(line["operations"] >= 5 for line in lines)
        assert (lines[0]["torch"] is not None) == (method == "direct")


@pytest.mark.slow
def test_damaged_exchanges_are_noticed(outcome: dict[str, Any]) -> None:
    assert [line["right"] for line in outcome["damaged exchanges"]] == [True, False]
