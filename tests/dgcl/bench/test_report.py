"""Reports derive their numbers as docs/bench.md says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.bench.records import Line, RankInfo, Settings, Timing
from dgcl.bench.report import fit_line, footer, header, row, to_json
from dgcl.topology import resolve_topology

SETTINGS = Settings(("auto",), resolve_topology("uniform", 4))
RANKS = [RankInfo(0, 11, "here", 1, 5, 6)]
# 1 ms forward, 2 ms backward; 4 ranks receive 1 MB each and write 8 MB together; copies take 0.5 ms.
FORWARD = Timing(1e-3, 0.9e-3, 1e-3, 0.5e-3, 0, [1e-3], [0.5e-3])
BACKWARD = Timing(2e-3, 1.9e-3, 2e-3, 0.5e-3, 0, [2e-3], [0.5e-3])
LINE = Line(
    "web", 1.0, "auto", "float32", 125, 8000, 16000, 1e6, 8_000_000, FORWARD, BACKWARD, 0.8e-3, 0.4e-3, 1
)


def test_a_line() -> None:
    cells = row(LINE, SETTINGS).split()
    #       size, count, type, width, method; time, algbw, busbw, %copy, wrong, twice
    assert cells == [
        *("1000000", "250000", "float", "125", "auto"),
        *("1000.00", "1.00", "8.00", "50.0", "0"),
        *("2000.00", "0.50", "4.00", "25.0", "0"),
    ]


def test_a_line_with_the_bound() -> None:
    cells = row(LINE, replace(SETTINGS, show_bound=True)).split()
    assert (cells[10], cells[16]) == ("40.00", "20.00")
    assert "%bound" in header(replace(SETTINGS, show_bound=True))


def test_columns_stand_under_their_titles() -> None:
    for settings in (SETTINGS, replace(SETTINGS, show_bound=True)):
        _, titles, _ = header(settings).splitlines()
        line = row(LINE, settings)
        assert len(titles) == len(line)
        assert line[: titles.index("size") + 4].strip() == "1000000"
        assert line[titles.index("method") :].startswith("auto")


def test_no_bandwidth_for_what_was_wrong() -> None:
    bad = replace(LINE, forward=replace(FORWARD, wrong=3))
    cells = row(bad, SETTINGS).split()
    assert cells[5:10] == ["1000.00", "-", "-", "-", "3"]
    assert "3 FAILED" in footer([bad, LINE])
    assert "Avg bus bandwidth" not in footer([bad, LINE])
    value = to_json([bad], SETTINGS, RANKS, {})
    assert value["wrong"] == 3
    assert value["lines"][0]["forward"]["busbw"] is None
    assert value["lines"][0]["backward"]["busbw"] == 4.0


def test_the_footer() -> None:
    text = footer([LINE, replace(LINE, forward=replace(FORWARD, seconds=2e-3))])
    assert "# Out of bounds values : 0 OK" in text
    assert "5.000 GB/s auto (forward 6.000, backward 4.000)" in text


def test_the_json_twin_is_json() -> None:
    value = json.loads(json.dumps(to_json([LINE], SETTINGS, RANKS, {"cpu": "x"}), allow_nan=False))
    assert value["schema"] == "dgcl-bench/1"
    assert value["settings"]["topology"] == "uniform4"
    assert value["lines"][0]["forward"]["algbw"] == 1.0
    rank = {"rank": 0, "process": 11, "host": "here", "threads": 1, "num_owned": 5, "num_halo": 6}
    assert value["ranks"] == [{**rank, "device": "cpu"}]
    assert value["lines"][0]["host_seconds"] is None


def test_fractions_are_fitted() -> None:
    lines = [
        replace(
            LINE,
            fraction=f,
            model_seconds=f * 1e-3,
            forward=replace(FORWARD, median=2 * f * 1e-3 + 5e-5),
            backward=replace(BACKWARD, median=f * 1e-3 + 1e-3),
        )
        for f in (0.25, 0.5, 1.0)
    ]
    text = footer(lines)
    assert "auto forward: 50.0 us + 2.000 x modelled, R^2 1.0000 over 3 points" in text
    assert "auto backward: 1000.0 us + 1.000 x modelled" in text
    assert "modelled" not in footer(lines[:2])


@given(
    slope=st.floats(-10, 10), intercept=st.floats(-10, 10), noise=st.floats(0, 1), seed=st.integers(0, 999)
)
def test_the_fitted_line_is_the_least_squares_line(
    slope: float, intercept: float, noise: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    x = np.array([0.5, 1.0, 2.0, 4.0])
    y = slope * x + intercept + noise * draw.standard_normal(4)
    fit = fit_line(x, y)
    # At the optimum the residuals are orthogonal to 1 and x.
    left = y - fit.slope * x - fit.intercept
    assert abs(left.sum()) < 1e-9
    assert abs((left * x).sum()) < 1e-9
    assert fit.r_squared <= 1 + 1e-9
    assert fit.points == 4
    if noise == 0:
        assert fit.slope == pytest.approx(slope, abs=1e-9)
