"""``dgcl bench``: the communication alone, measured and verified, in the form of nccl-tests."""

from __future__ import annotations

import argparse
import functools
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dgcl import __version__
from dgcl.cli.arguments import at_least, byte_size, list_of, number
from dgcl.cli.errors import CliError, reading
from dgcl.cli.files import check_output, replacing
from dgcl.cli.info import describe_machine
from dgcl.cli.output import print_json, step
from dgcl.cli.partition import GRAPH_HELP, load_graph
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from dgcl.bench.problems import Problem
    from dgcl.bench.records import Case, Line, RankInfo, Settings

MAX_RANKS = 64
DEFAULT_WIDTH = 128


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="measure and verify exchanges of rows between ranks of this host",
        description="Measure allgathers (forward) and their gradients (backward) between CPU ranks of this"
        " host, or ranks on its GPUs, verify every element, and print one line for each size and method as"
        " nccl-tests do.",
    )
    what = parser.add_argument_group("what is exchanged (default: --pattern alltoall)")
    source = what.add_mutually_exclusive_group()
    source.add_argument("--graph", metavar="GRAPH", help=GRAPH_HELP)
    source.add_argument("--relation", metavar="R.npz", help="relation file of `dgcl plan --relation-out`")
    source.add_argument("--pattern", metavar="NAME", help="alltoall, allgather or ring")
    what.add_argument("--part", metavar="part.npy", help="owner of each vertex of the graph (default: METIS)")
    what.add_argument(
        "--fraction",
        metavar="F[,F...]",
        type=list_of(number(0, open_end=True)),
        help="send only these parts of the vertices, and fit measured to modelled time",
    )
    sizes = parser.add_argument_group("sizes, in bytes that a rank receives (K, M, G: powers of 1024)")
    sizes.add_argument("-b", "--minbytes", metavar="SIZE", type=byte_size, help="smallest (default: 1M)")
    sizes.add_argument("-e", "--maxbytes", metavar="SIZE", type=byte_size, help="largest (default: smallest)")
    sizes.add_argument("-f", "--stepfactor", metavar="F", type=at_least(2), default=2, help="default: 2")
    sizes.add_argument(
        "--width",
        metavar="W[,W...]",
        type=list_of(at_least(1)),
        help="elements of a row; of a graph's rows instead of -b and -e, of a pattern's at most (128)",
    )
    sizes.add_argument("-d", "--datatype", metavar="TYPE", default="float", help="default: float")
    how = parser.add_argument_group("how")
    how.add_argument("--ranks", metavar="P", type=at_least(2), default=2, help="default: 2")
    how.add_argument("--threads", action="store_true", help="ranks are threads, not processes")
    how.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where rows lie: rank r on GPU r, in turns"
    )
    how.add_argument("--method", metavar="M[,M...]", default="auto", help="planners and baselines, in turns")
    how.add_argument("--fold", metavar="FOLD", default="sum", help="sum, atomic or substages")
    how.add_argument("--topology", metavar="T", help=f"to plan for (default: this host). {TOPOLOGY_HELP}")
    how.add_argument("--layers", metavar="K", type=at_least(1), default=2, help="of replicas; default 2")
    how.add_argument("-n", "--iters", metavar="N", type=at_least(1), default=20, help="default: 20")
    how.add_argument("-w", "--warmup-iters", metavar="N", type=at_least(0), default=5, help="default: 5")
    how.add_argument("--seed", metavar="S", type=at_least(0), default=0, help="default: 0")
    how.add_argument(
        "--timeout", metavar="S", type=number(0, open_end=True), default=300.0, help="default: 300"
    )
    parser.add_argument("-J", "--json-file", metavar="OUT.json", help="write everything as JSON as well")
    parser.add_argument(
        "--trace", metavar="OUT.json", help="write a trace of one exchange for chrome://tracing or Perfetto"
    )
    parser.runs(bench)


def bench(args: argparse.Namespace) -> int:
    """Measure; exit status 1 when an element was wrong or a rank was lost."""
    from dgcl.bench.measure import measure
    from dgcl.bench.on_device.measure import measure_on_device
    from dgcl.bench.report import footer, to_json, total_wrong
    from dgcl.errors import CommError
    from dgcl.ranks.launcher import launch

    _check(args)
    settings = _settings(args)
    problem = _read_problem(args, settings)
    with tempfile.TemporaryDirectory(prefix="dgcl-bench-") as folder:
        cases = _cases(args, problem, Path(folder) / "problem.npz")
        machine = describe_machine()
        emit = functools.partial(_print, settings, args.json)
        run = measure if args.device == "cpu" else measure_on_device
        if not args.json:
            print(_preamble(args, problem, settings, machine), flush=True)
        kind: Literal["threads", "processes"] = "threads" if args.threads else "processes"
        try:
            results = launch(run, args.ranks, cases, settings, emit, ranks=kind)
        except CommError as error:
            raise CliError(str(error), status=1) from error
    result = results[0]
    value = to_json(result.lines, settings, result.ranks, {"dgcl": __version__, **machine})
    if args.json_file is not None:
        with replacing(args.json_file) as temporary, temporary.open("w") as file:
            json.dump(value, file, allow_nan=False, indent=1)
    if args.trace is not None:
        with replacing(args.trace) as temporary, temporary.open("w") as file:
            json.dump(result.trace, file, allow_nan=False)
    if args.json:
        print_json(value)
    else:
        print(footer(result.lines))
    return 1 if total_wrong(result.lines) else 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is read or started."""
    from dgcl.bench.measure import CALLS, split_method
    from dgcl.bench.methods import PLANNERS, check_method
    from dgcl.bench.patterns import DTYPES
    from dgcl.bench.problems import PATTERNS
    from dgcl.replication import METHOD

    if args.device == "cuda":
        _check_device(args)
    movers = []
    for method in args.method.split(",") if args.device == "cpu" else []:
        mover, fold = split_method(method, args.fold)
        if mover in CALLS and fold != "sum":
            raise CliError(f"--method {mover} goes with fold sum (got {fold!r})")
        check_method(CALLS[mover][0] if mover in CALLS else mover, fold)
        movers.append(mover)
    if args.datatype not in DTYPES:
        raise CliError(f"--datatype must be one of {', '.join(DTYPES)} (got {args.datatype!r})")
    if args.pattern not in (None, *PATTERNS):
        raise CliError(f"--pattern must be one of {', '.join(PATTERNS)} (got {args.pattern!r})")
    if args.ranks > MAX_RANKS:
        raise CliError(f"--ranks must be at most {MAX_RANKS}: ranks run on this host (got {args.ranks})")
    if (args.maxbytes or args.minbytes or 0) < (args.minbytes or 0):
        raise CliError(f"--maxbytes {args.maxbytes} is less than --minbytes {args.minbytes}")
    whole = args.graph is not None or args.relation is not None
    if whole and args.width and (args.minbytes or args.maxbytes):
        raise CliError("--width goes without --minbytes and --maxbytes: a graph's rows are given")
    if not whole and args.width and len(args.width) > 1:
        raise CliError("--width takes one number for a pattern, whose sizes come from --minbytes")
    if args.part is not None and args.graph is None:
        raise CliError("--part goes with --graph")
    copying = next((mover for mover in movers if mover in ("replication", METHOD)), None)
    if copying is not None and args.graph is None:
        raise CliError(f"--method {copying} goes with --graph: what it copies depends on the edges")
    if args.fraction is not None:
        if not whole:
            raise CliError("--fraction goes with --graph or --relation")
        if copying is not None:
            raise CliError(f"--fraction and --method {copying} exclude each other")
        if max(args.fraction) > 1:
            raise CliError(f"--fraction must be at most 1 (got {max(args.fraction):g})")
    inputs = {"--graph": args.graph, "--relation": args.relation, "--part": args.part}
    check_output("--json-file", args.json_file, inputs)
    check_output("--trace", args.trace, inputs | {"--json-file": args.json_file})
    if args.trace is not None and not {*movers} & {"executor", "operator", "halo", METHOD, *PLANNERS}:
        raise CliError("--trace goes with a planned method")


def _check_device(args: argparse.Namespace) -> None:
    """Refuse what is not measured on GPUs."""
    import torch

    from dgcl.bench.on_device.measure import PEERS
    from dgcl.planner.methods import METHODS

    names = [*METHODS, *PEERS]
    if unknown := [method for method in args.method.split(",") if method not in names]:
        raise CliError(f"--method must be of {', '.join(names)} with --device cuda (got {unknown[0]!r})")
    for option, given in (
        ("--threads", args.threads),
        ("--trace", args.trace),
        ("--fold", args.fold != "sum"),
    ):
        if given:
            raise CliError(f"{option} goes without --device cuda")
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise CliError(
            f"--device cuda: torch {torch.__version__} (built for CUDA: {built}) sees no CUDA device"
        )


def _settings(args: argparse.Namespace) -> Settings:
    from dgcl.bench.records import Settings

    if args.device == "cuda":
        topology = resolve(args.topology or f"uniform:{args.ranks}", args.ranks)
    elif args.topology is None:
        with step("measuring how fast this host copies"):
            topology = resolve("host", args.ranks)
    else:
        topology = resolve(args.topology, args.ranks)
    return Settings(
        methods=tuple(dict.fromkeys(args.method.split(","))),
        topology=topology,
        show_bound=args.topology is not None,
        fold=args.fold,
        dtype=args.datatype,
        iterations=args.iters,
        warmup=args.warmup_iters,
        layers=args.layers,
        seed=args.seed,
        timeout=args.timeout,
        trace=args.trace is not None,
    )


def _read_problem(args: argparse.Namespace, settings: Settings) -> Problem | None:
    """The graph in parts, or what a relation says; None for a pattern."""
    from dgcl.bench.problems import Problem, from_relation

    if args.graph is not None:
        from dgcl.partition import check_part, partition_graph

        graph = load_graph(args.graph)
        if args.part is None:
            with step(f"partitioning {graph.num_nodes} vertices into {args.ranks} parts"):
                part = partition_graph(graph, args.ranks, topology=settings.topology, seed=args.seed)
        else:
            with reading(args.part, "part vector"):
                part = np.load(args.part, allow_pickle=False)
                part = check_part(part, graph.num_nodes, args.ranks, allow_empty=True)
        problem = Problem(Path(args.graph).stem, graph, part, args.ranks)
    elif args.relation is not None:
        from dgcl.planner import Relation

        with reading(args.relation, "relation"):
            relation = Relation.load(args.relation)
        if relation.world_size != args.ranks:
            raise CliError(f"--ranks {args.ranks}: {args.relation} is for {relation.world_size} ranks")
        problem = from_relation(Path(args.relation).stem, relation)
    else:
        return None
    if problem.deliveries == 0:
        raise CliError(f"{args.graph or args.relation}: no part needs a row of another: nothing to measure")
    return problem


def _cases(args: argparse.Namespace, problem: Problem | None, path: Path) -> list[Case]:
    """What to measure, with problems that ranks can make or read for themselves."""
    from dgcl.bench.patterns import DTYPES
    from dgcl.bench.problems import load_problem, save_problem
    from dgcl.bench.records import Case

    itemsize = DTYPES[args.datatype].itemsize
    if problem is None:
        return _pattern_cases(args, itemsize)
    save_problem(problem, path)
    if args.width:
        widths = args.width
    elif args.minbytes is None and args.maxbytes is None:
        widths = [DEFAULT_WIDTH]
    else:
        per_element = problem.deliveries / args.ranks * itemsize
        widths = [max(1, round(size / per_element)) for size in _sizes(args)]
    widths = tuple(dict.fromkeys(widths))
    if args.fraction is None:
        return [Case(functools.partial(load_problem, path), widths)]
    return [
        Case(functools.partial(_load_fraction, path, fraction, args.seed), widths, fraction)
        for fraction in sorted(set(args.fraction))
    ]


def _pattern_cases(args: argparse.Namespace, itemsize: int) -> list[Case]:
    """As many rows of the given width as a size takes; narrower ones where it is less than one row."""
    from dgcl.bench.problems import from_pattern
    from dgcl.bench.records import Case

    pattern = args.pattern or "alltoall"
    senders = 1 if pattern == "ring" else args.ranks - 1
    most = args.width[0] if args.width else DEFAULT_WIDTH
    shapes = []
    for size in _sizes(args):
        elements = max(1, round(size / senders / itemsize))
        width = min(most, elements)
        shapes.append((max(1, round(elements / width)), width))
    return [
        Case(functools.partial(from_pattern, pattern, args.ranks, rows), (width,))
        for rows, width in dict.fromkeys(shapes)
    ]


def _sizes(args: argparse.Namespace) -> list[int]:
    least = args.minbytes or min(1 << 20, args.maxbytes or 1 << 20)
    most = args.maxbytes or least
    steps = range(math.floor(math.log(most / least, args.stepfactor) + 1e-9) + 1)
    return [least * args.stepfactor**k for k in steps]


def _load_fraction(path: Path, fraction: float, seed: int) -> Problem:
    from dgcl.bench.problems import load_problem, take_fraction

    return take_fraction(load_problem(path), fraction, seed)


def _preamble(
    args: argparse.Namespace, problem: Problem | None, settings: Settings, machine: dict[str, Any]
) -> str:
    kind = "threads of one process" if args.threads else "processes"
    lines = [
        f"# dgcl {__version__}: {args.ranks} ranks ({kind}) on {machine['cores']} cores of {machine['cpu']}",
        f"# warmup iters: {args.warmup_iters} iters: {args.iters} fold: {args.fold} validation: every element"
        f" of every iteration",
        f"# planned for {settings.topology.name}"
        + ("" if settings.show_bound or args.device == "cuda" else ", measured just now")
        + f"; seed {args.seed}",
    ]
    if problem is None:
        lines.append(f"# pattern {args.pattern or 'alltoall'}")
    else:
        boundary = problem.classes.num_boundary
        lines.append(
            f"# {problem.name}: {problem.graph.num_nodes} vertices, {problem.graph.num_edges} edges;"
            f" {boundary} boundary vertices, {problem.deliveries} halo rows"
        )
    return "\n".join([*lines, "#", "# Using ranks"])


def _print(settings: Settings, quiet: bool, record: list[RankInfo] | Line | str) -> None:
    """Print what rank 0 reports, as it comes."""
    from dgcl.bench.report import header, row

    if quiet:
        return
    if isinstance(record, str):
        print(f"# {record}", flush=True)
    elif isinstance(record, list):
        for rank in record:
            print(
                f"#   rank {rank.rank:>2}  pid {rank.process:>7}  {rank.host}  {rank.device}, {rank.threads} threads:"
                f" {rank.num_owned} owned rows, {rank.num_halo} halo rows"
            )
        print("#")
        print(header(settings), flush=True)
    else:
        print(row(record, settings), flush=True)
