"""Sums over the edges of one rank, forward and backward, on one core: ours, DGL's, PyG's, torch's and our old one.

    OMP_NUM_THREADS=1 python docs/benchmarks/local_sum.py [--data ../shared/data/graphs] [--write docs/local_sum.md]

Some ten minutes. Methods take turns, round by round, on rows of 128 float32; times are CPU time of the process, medians
over rounds. Graphs are made symmetric with self loops and cut in two by METIS;
the first part's in-edges are summed. Graphs whose file is not there are left out. Every result is compared with a
float64 computation by scipy: an error of more than 1e-5 of the largest element ends the run with exit status 1.

    weights       none: a plain sum; constant: times an edge's weight; learned: with gradients of the weights, too
    there, back   ms of the forward and of the backward
    as fast       there and back of this method / ours
    GB/s          bytes that the forward must read and write (each edge's row, its ids and weight, each result) / time
    of read rate  that, over the rate at which rows are read in sequence from 256 MB, by the same kernel in the same run
    kept MB       what autograd keeps for the backward
    error         the largest of all elements of all results, over the largest element
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from local_sum_methods import METHODS, Edges
from marked import write_between
from torch import Tensor

from dgcl.aggregation.block import Block
from dgcl.cli.info import describe_machine
from dgcl.graph import as_graph
from dgcl.partition import partition_graph

RANDOM = "random"
GRAPHS = ("ogbn_arxiv", "web_google_scc", "amazon_computers")
WEIGHTS = ("none", "constant", "learned")
WIDTH = 128
LARGEST_ERROR = 1e-5


@dataclass
class Line:
    """One row of the table; times in milliseconds."""

    graph: str
    weights: str
    method: str
    there: float
    back: float
    total: float
    as_fast: float
    rate: float
    of_read_rate: float
    kept: float
    error: float


def first_part(path: Path) -> Edges:
    """The in-edges of the first of two parts, local rows in the order of global ids, owned before halo."""
    file = np.load(path, allow_pickle=False)
    size = int(file["num_nodes"])
    matrix = sp.csr_matrix((np.ones(len(file["indices"])), file["indices"], file["indptr"]), (size, size))
    matrix = (matrix + matrix.T + sp.identity(size)).tocoo()
    part = np.asarray(partition_graph(as_graph(np.stack([matrix.row, matrix.col])), 2, seed=0))
    owned = np.flatnonzero(part == 0)
    rows = sp.csr_matrix(matrix)[owned].tocoo()
    halo = np.setdiff1d(rows.col, owned)
    local = np.zeros(size, np.int32)
    local[owned], local[halo] = np.arange(len(owned)), len(owned) + np.arange(len(halo))
    return Edges(rows.row.astype(np.int32), local[rows.col], len(owned), len(owned) + len(halo))


def synthetic() -> Edges:
    """Edges between random rows: nothing to be found in a cache again."""
    heads = np.repeat(np.arange(100_000, dtype=np.int32), 16)
    tails = np.random.default_rng(0).integers(0, 100_000, len(heads)).astype(np.int32)
    return Edges(heads, tails, 100_000, 100_000)


def exact(edges: Edges, x: Tensor, grad: Tensor, weight: Tensor) -> list[np.ndarray]:
    """Sums, and gradients of rows and of weights, in float64."""
    values, wide, back = (tensor.detach().numpy().astype(np.float64) for tensor in (weight, x, grad))
    matrix = sp.coo_matrix((values, (edges.heads, edges.tails)), (edges.num_heads, edges.num_tails)).tocsr()
    dots = np.concatenate(
        [
            np.einsum("ef,ef->e", back[edges.heads[e : e + 100_000]], wide[edges.tails[e : e + 100_000]])
            for e in range(0, len(edges.heads), 100_000)
        ]
    )
    return [matrix @ wide, matrix.T @ back, dots]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and milliseconds of CPU time."""
    begin = time.process_time()
    result = call()
    return result, 1e3 * (time.process_time() - begin)


def reading() -> Callable[[], float]:
    """What measures GB/s of rows read in sequence from memory."""
    rows = torch.ones((256 << 20) // (4 * WIDTH), WIDTH)
    block = Block(np.arange(len(rows)) // 16, np.arange(len(rows)), len(rows) // 16, len(rows))
    out = torch.zeros(block.num_heads, WIDTH)
    return lambda: rows.numel() * 4e-6 / timed(lambda: block.put(rows, out))[1]


def measure(name: str, edges: Edges, weights: str, rounds: int, read: Callable[[], float]) -> list[Line]:
    """All methods in turns."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(edges.num_tails, WIDTH, generator=generator).requires_grad_()
    grad = torch.randn(edges.num_heads, WIDTH, generator=generator)
    weight = torch.rand(len(edges.heads), generator=generator).requires_grad_(weights == "learned")
    given = None if weights == "none" else weight
    truth = exact(edges, x, grad, torch.ones_like(weight) if given is None else weight)
    methods = {label: method for label, make in METHODS.items() if (method := make(edges, given)) is not None}
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in methods}
    rates, errors, kept = [], dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0.0)
    for number in range(rounds + 1):
        rates.append(read())
        for label, method in methods.items():
            x.grad = weight.grad = None
            saved: list[int] = []

            def save(tensor: Tensor, saved: list[int] = saved) -> Tensor:
                saved.append(tensor.numel() * tensor.element_size())
                return tensor

            if number == 0:  # warms up, too
                with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
                    out = method(x)
                out.backward(grad)
                kept[label] = sum(saved) / 1e6
                found = [out.detach(), x.grad, weight.grad if weights == "learned" else None]
                errors[label] = max(
                    float(np.abs(one.numpy() - true).max() / np.abs(true).max())
                    for one, true in zip(found, truth, strict=True)
                    if one is not None
                )
                continue
            out, there = timed(lambda method=method: method(x))
            _, back = timed(lambda out=out: out.backward(grad))
            times[label].append((there, back))
            out = None
    size = edges.heads.nbytes * (WIDTH + 1 + (given is not None)) + edges.num_heads * WIDTH * 4
    lines = []
    for label, found in times.items():
        there, back = np.median(found, 0)
        versus = np.median([sum(mine) / sum(ours) for mine, ours in zip(found, times["dgcl"], strict=True)])
        rate = size / there / 1e6
        share = rate / float(np.median(rates))
        total = float(np.median([sum(pair) for pair in found]))
        lines.append(
            Line(name, weights, label, there, back, total, versus, rate, share, kept[label], errors[label])
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def table(lines: list[Line]) -> str:
    """The page's table."""
    head = [
        "graph",
        "weights",
        "method",
        "there",
        "back",
        "both",
        "as fast",
        "GB/s",
        "of read rate",
        "kept MB",
        "error",
    ]
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    rows += [
        f"| {line.graph} | {line.weights} | {line.method} | {line.there:.1f} | {line.back:.1f} | {line.total:.1f} |"
        f" {line.as_fast:.2f} | {line.rate:.1f} | {100 * line.of_read_rate:.0f}% | {line.kept:.0f} | {line.error:.0e} |"
        for line in lines
    ]
    return "\n".join(rows)


def write(page: str, lines: list[Line], problems: dict[str, Edges], load: float) -> None:
    """Put the table into the page, and write its JSON twin."""
    machine = describe_machine()
    sizes = "; ".join(
        f"{name}: {edges.num_heads:,} rows of {edges.num_tails:,}, {len(edges.heads):,} edges"
        for name, edges in problems.items()
    )
    rate = float(np.median([line.rate / line.of_read_rate for line in lines]))
    text = (
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['system']}; torch {torch.__version__}."
        f" Load average when the run began: {load:.1f}. Rows are read in sequence at {rate:.1f} GB/s.\n"
        f"Sums at {sizes}."
    )
    write_between(page, "sums", f"{text}\n\n{table(lines)}")
    twin = Path(__file__).with_suffix(".json")
    twin.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Measure, print, and write the page and its JSON twin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/graphs"), help="folder of graph files"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: DGL reads it when it is loaded")
    torch.set_num_threads(1)
    load, read, lines = os.getloadavg()[0], reading(), []
    cases = {name: given.data / f"{name}.npz" for name in GRAPHS if (given.data / f"{name}.npz").exists()}
    problems = {name: first_part(path) for name, path in cases.items()} | {RANDOM: synthetic()}
    for weights in given.weights:
        for name, edges in problems.items():
            lines += measure(name, edges, weights, given.rounds, read)
            if given.write:  # what there is so far
                write(given.write, lines, problems, load)
    print(table(lines))
    wrong = [line for line in lines if line.error > LARGEST_ERROR]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
