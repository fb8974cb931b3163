"""Reads what ``dgcl bench`` measures (a graph in parts, a relation or a pattern) and makes its sweep of sizes.

A size is bytes that a rank receives. A graph's rows are given, so a size becomes a row width; a pattern gets as many
rows of the given width as a size takes. Graphs and relations are saved in a file, which rank 0 loads when it measures.

Called by `bench`. Free to change while a sweep has the sizes that were asked for, to the nearest whole row or element,
and alltoall and allgather count a rank's own block, as in nccl-tests (`tests/dgcl/cli/test_bench.py`).
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from dgcl.cli.command_errors import CliError
from dgcl.cli.problem import graph_in_parts, load_relation

if TYPE_CHECKING:
    from dgcl.bench.problems import Problem
    from dgcl.bench.records import Case
    from dgcl.topology import Topology

DEFAULT_WIDTH = 128
LEAST, MOST = 8, 64 << 20  # bytes; a sweep over patterns


def read_problem(args: argparse.Namespace, topology: Topology, num_ranks: int) -> Problem | None:
    """The graph in parts, or what a relation says; None for a pattern."""
    from dgcl.bench.problems import Problem, from_relation

    if args.graph is not None:
        problem = Problem(Path(args.graph).stem, *graph_in_parts(args, topology), num_ranks)
    elif args.relation is not None:
        problem = from_relation(Path(args.relation).stem, load_relation(args.relation, num_ranks))
    else:
        return None
    if problem.deliveries == 0:
        raise CliError(f"{args.graph or args.relation}: no part needs a row of another: nothing to measure")
    return problem


def make_cases(args: argparse.Namespace, problem: Problem | None, path: Path, num_ranks: int) -> list[Case]:
    """What to measure, with problems that ranks can make or read for themselves."""
    from dgcl.bench.patterns import DTYPES
    from dgcl.bench.problems import load_problem, save_problem
    from dgcl.bench.records import Case

    itemsize = DTYPES[args.datatype].itemsize
    if problem is None:
        return _pattern_cases(args, itemsize, num_ranks)
    save_problem(problem, path)
    if args.width:
        widths = args.width
    elif args.minbytes is None and args.maxbytes is None:
        widths = [DEFAULT_WIDTH]
    else:
        per_element = problem.deliveries / num_ranks * itemsize
        widths = [max(1, round(size / per_element)) for size in sizes(args)]
    return [Case(functools.partial(load_problem, path), tuple(dict.fromkeys(widths)))]


def _pattern_cases(args: argparse.Namespace, itemsize: int, num_ranks: int) -> list[Case]:
    """As many rows of the given width as a block takes; narrower ones where it is less than one row.

    A size has a block for each rank in alltoall and allgather, as in nccl-tests, and one in a ring.
    """
    from dgcl.bench.problems import from_pattern
    from dgcl.bench.records import Case

    pattern = args.pattern or "alltoall"
    blocks = 1 if pattern == "ring" else num_ranks
    most = args.width[0] if args.width else DEFAULT_WIDTH
    shapes = []
    for size in sizes(args):
        elements = max(1, round(size / blocks / itemsize))
        width = min(most, elements)
        shapes.append((max(1, round(elements / width)), width))
    factor = blocks / max(blocks - 1, 1)
    return [
        Case(functools.partial(from_pattern, pattern, num_ranks, rows), (width,), factor)
        for rows, width in dict.fromkeys(shapes)
    ]


def sizes(args: argparse.Namespace) -> list[int]:
    """The sizes that were asked for; all from 8 bytes to 64 MB where none was."""
    least = args.minbytes or min(LEAST, args.maxbytes or LEAST)
    most = args.maxbytes or args.minbytes or MOST
    values = [least]
    while values[-1] * args.stepfactor <= most:
        values.append(values[-1] * args.stepfactor)
    return values
