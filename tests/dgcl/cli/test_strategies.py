"""`dgcl plan --strategy` and `dgcl partition --strategy`: golden rows of small graphs, files, loading, refusals."""

import numpy as np
import pytest
import torch

import dgcl
from dgcl.planner import Plan, check_plan_file
from tests.support.aggregator import EXACT, dense, features
from tests.support.awkward import Case
from tests.support.exchanges import in_ranges, toy_24
from tests.support.grid_items import TOY
from tests.support.samples import named


def toy(folder, ranks):
    edges = zip(*toy_24().edges(), strict=True)
    (folder / "toy.txt").write_text("".join(f"{u} {v}\n" for u, v in edges))
    np.save(folder / "toy.npy", in_ranges(24, ranks))
    return ["plan", "toy.txt", "--part", "toy.npy", "--topology", f"uniform:{ranks}"]


def star(folder):
    """Thirty leaves read by one vertex; leaves of the first part, the hub of another."""
    (folder / "star.txt").write_text("".join(f"{leaf} 30\n" for leaf in range(30)) + "30 31\n")
    np.save(folder / "star.npy", np.array([0] * 30 + [1, 1], np.int32))
    return ["plan", "star.txt", "--part", "star.npy", "--topology", "uniform:2"]


@named(
    "strategy, rows, sums",
    {
        "halo": ("halo", 30, None),
        "tail": ("tail", 0, 1),
        "cover": ("cover", 0, 1),
        **{
            str(sizes): (f"grid:{','.join(map(str, sizes))}", sum(expanded), sum(folded))
            for sizes, (expanded, folded, _, _) in TOY.items()
            if sizes[1:] != (1, 1)  # which is halo
        },
    },
)
def test_rows_of_both_exchanges(run, folder, strategy, rows, sums):
    """Both are planned, proved, written and reported, alike for every strategy."""
    name, _, sizes = strategy.partition(":")
    argv = toy(folder, int(np.prod([int(size) for size in sizes.split(",")]))) if sizes else star(folder)
    argv += ["--strategy", strategy, "--out", "rows.npz"]
    facts = run(*argv, *([] if sums is None else ["--fold-out", "sums.npz"]), "--json").json
    shown = run(*argv, "--compare", "direct").out
    for file, count, told in (("rows.npz", rows, facts), ("sums.npz", sums, facts.get("partial"))):
        if count is None:
            assert told is None
            continue
        check_plan_file(folder / file)
        assert Plan.load(folder / file).relation.deliveries == count
        assert told["report"]["relation"]["deliveries"] == count
        assert told["lower_bound_seconds"] <= told["predicted_seconds"] * (1 + 1e-12)
    assert ("Partial sums" in shown) == (sums is not None)
    assert shown.startswith("machine" if name == "halo" else "strategy")


def aggregate(folder):
    comm = dgcl.load_comm_info(folder)
    return comm.collect(comm.aggregator()(comm.dispatch_features(features(24, 5))), None)


@pytest.mark.parametrize("strategy", ["cover", "grid:2,1,2", "grid:1,1,4", "grid:2,2,1", "grid:4,1,1"])
def test_ranks_load_what_was_written(run, folder, strategy):
    toy(folder, 4)
    assert run("partition", "toy.txt", "--ranks", 4, "--strategy", strategy, "--out", "parts/").status == 0
    graph = toy_24()
    case = Case("", np.stack(graph.edges()).astype(np.int64), 24, np.ones(24, bool))
    expected = dense(case, "sum", None) @ features(24, 5)
    for result in dgcl.launch(aggregate, 4, "parts"):
        torch.testing.assert_close(result, expected, rtol=EXACT, atol=EXACT)


@named(
    "options, message",
    {
        "called": ("plan --strategy offload:4", "take that here, then call dgcl.Offload(comm, chunks=4)"),
        "written": ("partition --out parts/ --strategy windows:2", "call comm.aggregator(windows=2)"),
    },
)
def test_what_is_no_plan(run, folder, options, message):
    outcome = run(*options.split(), "graph.npz", "--topology", "line.json")
    assert outcome.status == 2
    assert message in outcome.err
