"""Reports derive their numbers as docs/bench.md says."""

import json
from dataclasses import replace

import pytest

from dgcl.bench.bench_report import footer, header, row, short_size, to_json
from dgcl.bench.records import Line, RankInfo, Settings
from dgcl.bench.turns import Timing
from dgcl.topology import resolve_topology

SETTINGS = Settings(("auto",), resolve_topology("uniform", 4))
RANKS = [RankInfo(0, 11, "here", 1, 5, 6)]
# 1 ms forward, 2 ms backward; 4 ranks receive 1 MB each on average, one of them 1.5 MB, copy 250 kB of their own and
# write 8 MB together; copies take 0.5 ms; 12 messages.
FORWARD = Timing([1e-3], [k * 1e-4 for k in range(1, 20)])
BACKWARD = Timing([2e-3], [2e-3])
COPY = Timing([0.4e-3, 0.6e-3], [])
LINE = Line(
    *("web", "auto", "float32", 125, 8000, 16000),
    size=1e6,
    busiest=1_500_000,
    own=256_000,
    moved=8_000_000,
    forward=FORWARD,
    backward=BACKWARD,
    copy=COPY,
    model_seconds=0.8e-3,
    bound_seconds=0.4e-3,
    stages=1,
    messages=12,
)


def test_a_line():
    forward, backward = (line.split() for line in row(LINE, SETTINGS).splitlines())
    #  size, count, type, width, method, verb; time, min, p50, p95, max; kmsg/s, algbw, busbw, own, %copy, #wrong
    assert forward == [
        *("1000000", "250000", "float", "125", "auto", "forward"),
        *("1000.00", "100.00", "1000.00", "1900.00", "1900.00"),
        *("12.0", "1.00", "1.50", "250K", "50.0", "0"),
    ]
    assert backward == [
        *("1000000", "250000", "float", "125", "auto", "backward"),
        *["2000.00"] * 5,
        *("6.0", "0.50", "0.75", "250K", "25.0", "0"),
    ]


@pytest.mark.parametrize(
    "num_bytes, text",
    [
        (0, "0"),
        (9999, "9999"),
        (10240, "10K"),
        (64 << 20, "64M"),
        (1 << 40, "1024G"),
        (1.5e6, "1465K"),
        (2048, "2K"),
        (2050, "2050"),
    ],
)
def test_short_sizes(num_bytes: float, text: str):
    assert short_size(num_bytes) == text


def test_a_line_with_the_bound():
    forward, backward = row(LINE, replace(SETTINGS, show_bound=True)).splitlines()
    assert (forward.split()[-2:], backward.split()[-2:]) == (["80.00", "40.00"], ["40.00", "20.00"])
    assert "%bound" in header(replace(SETTINGS, show_bound=True))


def test_columns_stand_under_their_titles():
    for settings in (SETTINGS, replace(SETTINGS, show_bound=True)):
        *legend, titles, _ = header(settings).splitlines()
        assert all(name.strip("#") in "".join(legend) for name in titles[titles.index("verb") + 4 :].split())
        line = row(LINE, settings).splitlines()[0]
        assert len(titles) == len(line)
        assert line[: titles.index("size") + 4].strip() == "1000000"
        assert line[titles.index("method") :].startswith("auto")


def test_no_bandwidth_for_what_was_wrong():
    bad = replace(LINE, forward=replace(FORWARD, wrong=3))
    cells = row(bad, SETTINGS).splitlines()[0].split()
    assert cells[6] == "1000.00"
    assert cells[11:17] == [*"-----", "3"]
    assert "3 FAILED" in footer([bad, LINE])
    assert "Avg bus bandwidth" not in footer([bad, LINE])
    value = to_json([bad], SETTINGS, RANKS, {})
    assert value["wrong"] == 3
    assert value["lines"][0]["forward"]["busbw"] is None
    assert value["lines"][0]["backward"]["busbw"] == 0.75


def test_the_footer():
    text = footer([LINE, replace(LINE, forward=BACKWARD)])
    assert "# Out of bounds values : 0 OK" in text
    assert "0.938 GB/s auto (forward 1.125, backward 0.750)" in text


def test_the_json_twin_is_json():
    value = json.loads(json.dumps(to_json([LINE], SETTINGS, RANKS, {"cpu": "x"}), allow_nan=False))
    assert value["schema"] == "dgcl-bench/3"
    assert value["settings"]["topology"] == "uniform4"
    forward = value["lines"][0]["forward"]
    assert (forward["algbw"], forward["busbw"], forward["message_rate"]) == (1.0, 1.5, 12000.0)
    assert [forward[name] for name in ("min", "p50", "p95", "max")] == [1e-4, 1e-3, 1.9e-3, 1.9e-3]
    rank = {"rank": 0, "process": 11, "host": "here", "threads": 1, "num_owned": 5, "num_halo": 6}
    assert value["ranks"] == [{**rank, "device": "cpu"}]
    assert [forward[name] for name in ("seconds", "best", "median", "wrong")] == [1e-3, 1e-3, 1e-3, 0]
    assert (forward["copy_seconds"], forward["copy_samples"]) == (0.5e-3, COPY.samples)
