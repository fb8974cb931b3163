"""`dgcl check`: a good plan passes, a plan that lies is rejected with status 1 and the reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from dgcl.planner.plan_io import fingerprint
from tests.dgcl.cli.support import Run
from tests.support.samples import named


def test_good_plan(run: Run, plan_file: Path):
    report = run("check", plan_file, "--json").json
    with np.load(plan_file) as file:
        meta = json.loads(str(file["meta"]))
    assert report["ok"] is True
    assert report["deliveries"] == 6
    assert report["predicted_seconds"] == meta["predicted_seconds"]
    assert report["fingerprint"] == meta["fingerprint"]
    assert report["fold_seconds"] == pytest.approx(meta["predicted_seconds"])  # the line is alike both ways
    text = run("check", plan_file)
    assert text.status == 0
    assert "accepted" in text.out
    assert "every contribution added once" in text.out


LIES = [
    ("cheaper than it is", {"predicted_seconds": 1e-12}, "predicted_seconds"),
    ("better bound", {"lower_bound_seconds": 1.0}, "lower_bound_seconds"),
    ("other seed", {"seed": 99}, "fingerprint"),
    ("other rows", {"row_bytes": 1}, "seconds"),
]


def rewrite(path: Path, signed: bool, **changes: object):
    with np.load(path) as file:
        arrays = dict(file)
    meta = {**json.loads(str(arrays["meta"])), **changes}
    if signed:
        meta["fingerprint"] = fingerprint(arrays, meta)
    np.savez(path, **{**arrays, "meta": np.array(json.dumps(meta))})


@named("changes, reason", {lie[0]: lie[1:] for lie in LIES})
def test_lie_in_the_meta(run: Run, plan_file: Path, changes: dict[str, object], reason: str):
    rewrite(plan_file, False, **changes)
    assert_rejected(run, plan_file, reason)


def test_a_forged_bound_is_not_said_to_be_proved(run: Run, plan_file: Path):
    """Two rows of 512 B must leave rank 0, over 4 GB/s: 256 ns; the plan takes half as much more."""
    cost = run("check", plan_file, "--json").json["predicted_seconds"]
    rewrite(plan_file, True, lower_bound_seconds=cost, gap=0.0)
    report, text = run("check", plan_file, "--json").json, run("check", plan_file).out
    assert report["cut_bound_seconds"] == report["fold_bound_seconds"] == pytest.approx(256e-9)
    assert "256 ns by cuts, proved; the plan is 50.00% above it\n" in text
    assert "bound 384 ns, gap 0.00%: not proved here" in text


def test_row_that_does_not_arrive(run: Run, plan_file: Path):
    """A tree sends to the wrong rank, so that one destination goes without."""
    with np.load(plan_file) as file:
        arrays = dict(file)
    arrays["edge_dst"] = np.roll(arrays["edge_dst"], 1)
    np.savez(plan_file, **arrays)
    assert_rejected(run, plan_file, "tree|class|link")


def assert_rejected(run: Run, path: Path, reason: str):
    text = run("check", path)
    assert text.status == 1
    assert text.out == ""
    assert text.err.startswith(f"dgcl check: {path}: rejected: ")
    assert text.err.count("\n") == 1
    outcome = run("check", path, "--json")
    assert outcome.status == 1
    assert outcome.json["ok"] is False
    assert any(word in outcome.json["reason"] for word in reason.split("|"))
