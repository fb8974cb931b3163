"""The command ``dgcl bench``: measures exchanges of rows between ranks and checks every element.

Lines are printed in the style of nccl-tests. Ranks are started here, or are those of a job under torchrun, where rank 0
alone reads, decides and prints. Exit status 1: an element was wrong, or a rank was lost. `dgcl/bench/measure` measures.

Called by `dgcl/cli/__init__`. Free to change while lines, footer, JSON and exit status are what docs/cli.md says
(`tests/dgcl/cli/test_bench.py`; between hosts: `tests/dgcl/multihost/test_bench.py`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dgcl import __version__
from dgcl.cli.arguments import at_least, byte_size, list_of, number, option, refuse
from dgcl.cli.bench_cases import make_cases, read_problem
from dgcl.cli.command_errors import CliError, reading
from dgcl.cli.info import describe_machine
from dgcl.cli.jobs import add_job, ranks_of_job
from dgcl.cli.option_groups import OF_GRAPHS, add_parts, add_source
from dgcl.cli.output import print_json, print_written, say, step
from dgcl.cli.result_files import check_outputs, replacing
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from dgcl.bench.problems import Problem
    from dgcl.bench.records import Case, Line, Measurement, RankInfo, Settings
    from dgcl.topology import Topology


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "bench",
        help="measure and verify exchanges of rows between ranks",
        description="Measure allgathers (forward) and their gradients (backward) between CPU ranks of this"
        " host, ranks on its GPUs, or the ranks of a job under torchrun; verify every element, and print a line for"
        " each size, method and verb. algbw is the size over the time. busbw is the bytes that the busiest rank"
        " receives from others over the time: in alltoall and allgather of n ranks algbw x (n-1)/n, as in"
        " nccl-tests.",
    )
    what = parser.add_argument_group("what is exchanged (default: --pattern alltoall)")
    add_source(what, "relation", "pattern", required=False)
    add_parts(what)
    sizes = parser.add_argument_group(
        "sizes, in bytes that a rank receives, its own block included as in nccl-tests (K, M, G: powers of 1024)"
    )
    option(sizes, "-b, --minbytes SIZE", "smallest (default: 8)", byte_size)
    option(sizes, "-e, --maxbytes SIZE", "largest (default: 64M; with -b alone: SIZE)", byte_size)
    option(sizes, "-f, --stepfactor F", "from size to size; default: 2", at_least(2), 2)
    option(
        sizes,
        "--width W[,W...]",
        "elements of a row; of a graph's rows instead of sizes, of a pattern's at most (default: 128)",
        list_of(at_least(1)),
    )
    option(sizes, "-d, --datatype TYPE", "default: float", default="float")
    how = parser.add_argument_group("how")
    add_job(how)
    option(how, "--channel", "by which planned rows travel", ("auto", "memory", "collective"), "auto")
    option(how, "--method M[,M...]", "planners and baselines, in turns", default="auto")
    option(how, "--topology T", f"to plan for (default: this host). {TOPOLOGY_HELP}")
    option(how, "-n, --iters N", "default: 20", at_least(1), 20)
    option(how, "-w, --warmup-iters N", "default: 5", at_least(0), 5)
    option(how, "--timeout S", "default: 300", number(0, open_end=True), 300.0)
    out = parser.add_argument_group("results")
    option(out, "-J, --json-file OUT.json", "write everything as JSON as well")
    option(out, "--against RUN.json", "compare with a run that --json-file wrote")
    parser.runs(bench)


def bench(args: argparse.Namespace) -> int:
    """Measure; exit status 1 when an element was wrong or a rank was lost."""
    from dgcl.bench.bench_report import against, footer, read_run, to_json, total_wrong

    num_ranks, job = ranks_of_job(args)
    _check(args)
    other = None
    if args.against is not None:
        with reading(args.against, "run"):
            other = read_run(args.against)
    measured = (_in_job if job else _started)(args, num_ranks)
    if measured is None:
        return 0  # another rank than 0
    settings, result = measured
    value = to_json(result.lines, settings, result.ranks, {"dgcl": __version__, **describe_machine()})
    if args.json_file is not None:
        with replacing(args.json_file) as path:
            path.write_text(json.dumps(value, allow_nan=False, indent=1))
    if other is not None:
        compared = against(value, other)
        value["against"] = compared.json()
    if args.json:
        print_json(value)
    else:
        say(footer(result.lines))
        if other is not None:
            text = compared.text() if compared.rows else f"{args.against} has no line in common with this run"
            say("#\n# " + text.replace("\n", "\n# "))
        print_written(("# JSON", args.json_file))
    return 1 if total_wrong(result.lines) else 0


def _started(args: argparse.Namespace, num_ranks: int) -> tuple[Settings, Measurement]:
    """Measure ranks of this host."""
    from dgcl.bench.measure import measure
    from dgcl.ranks.launcher import launch

    kind: Literal["threads", "processes"] = "threads" if args.threads else "processes"
    with tempfile.TemporaryDirectory(prefix="dgcl-bench-") as folder:
        settings, cases = _prepare(args, _topology(args, num_ranks), num_ranks, folder, kind)
        emit = partial(_print, settings, args.json)
        results = launch(measure, num_ranks, cases, settings, emit, ranks=kind)
    return settings, results[0]


def _in_job(args: argparse.Namespace, num_ranks: int) -> tuple[Settings, Measurement] | None:
    """Measure the ranks that torchrun started; rank 0 reads, decides and prints."""
    import dgcl
    from dgcl.bench.measure import measure
    from dgcl.ranks.answers import from_rank_0
    from dgcl.ranks.context import context
    from dgcl.ranks.machines import find_topology, places_of_ranks, several_machines

    dgcl.init()
    control = context.require_control()
    places = places_of_ranks(control)
    topology = None
    if args.topology is None and several_machines(places):
        topology = find_topology(control, places).topology
    with tempfile.TemporaryDirectory(prefix="dgcl-bench-") as folder:
        kind = f"processes of a job, on {len({place.machine for place in places})} machines"

        def prepare() -> list[tuple[Settings, list[Case]]]:
            machine = topology or _topology(args, num_ranks)
            return [_prepare(args, machine, num_ranks, folder, kind)] * num_ranks

        settings, cases = from_rank_0(control, prepare)
        emit = partial(_print, settings, args.json)
        result = measure(cases, settings, emit)
    return None if result is None else (settings, result)


def _prepare(
    args: argparse.Namespace, topology: Topology, num_ranks: int, folder: str, kind: str
) -> tuple[Settings, list[Case]]:
    """What to measure, after printing what is known of it."""
    from dgcl.bench.records import Settings

    settings = Settings(
        methods=tuple(dict.fromkeys(args.method.split(","))),
        topology=topology,
        show_bound=args.topology is not None,
        dtype=args.datatype,
        iterations=args.iters,
        warmup=args.warmup_iters,
        seed=args.seed,
        timeout=args.timeout,
        channel=args.channel,
        device=args.device,
    )
    problem = read_problem(args, topology, num_ranks)
    cases = make_cases(args, problem, Path(folder) / "problem.npz", num_ranks)
    if not args.json:
        say(_preamble(args, problem, settings, kind), flush=True)
    return settings, cases


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is read or started."""
    from dgcl.bench import BASELINES
    from dgcl.bench.measure import CALLS
    from dgcl.bench.patterns import DTYPES
    from dgcl.planner.methods import METHODS
    from dgcl.topology.checks import check_choice

    for method in args.method.split(","):
        check_choice(method, "method", (*METHODS, *BASELINES, *CALLS))
    check_choice(args.datatype, "--datatype", DTYPES)
    if (args.maxbytes or args.minbytes or 0) < (args.minbytes or 0):
        raise CliError(f"--maxbytes {args.maxbytes} is less than --minbytes {args.minbytes}")
    whole = args.graph is not None or args.relation is not None
    if whole and args.width and (args.minbytes or args.maxbytes):
        raise CliError("--width goes without --minbytes and --maxbytes: a graph's rows are given")
    if not whole and args.width and len(args.width) > 1:
        raise CliError("--width takes one number for a pattern, whose sizes come from --minbytes")
    if args.graph is None:
        refuse(args, OF_GRAPHS, "goes with a graph")
    inputs = {"GRAPH": args.graph, "--relation": args.relation, "--part": args.part}
    check_outputs(args, "json-file", {**inputs, "--against": args.against})


def _topology(args: argparse.Namespace, num_ranks: int) -> Topology:
    """What is planned for, where all ranks are on this host."""
    if args.topology is not None or args.device == "cuda":
        return resolve(args.topology or f"uniform:{num_ranks}", num_ranks)
    with step("measuring how fast this host copies"):
        return resolve("host", num_ranks)


def _preamble(args: argparse.Namespace, problem: Problem | None, settings: Settings, kind: str) -> str:
    machine = describe_machine()
    lines = [
        f"# dgcl {__version__}: {settings.topology.num_devices} ranks ({kind}), {machine['cores']} cores of"
        f" {machine['cpu']}",
        f"# warmup iters: {args.warmup_iters} iters: {args.iters} validation: every element of"
        " every iteration",
        f"# planned for {settings.topology.name}"
        + ("" if settings.show_bound or args.device == "cuda" else ", measured just now")
        + f"; seed {args.seed}",
    ]
    if problem is None:
        lines.append(f"# pattern {args.pattern or 'alltoall'}")
    else:
        boundary = len(problem.classes.items)
        lines.append(
            f"# {problem.name}: {problem.graph.num_nodes} vertices, {problem.graph.num_edges} edges;"
            f" {boundary} boundary vertices, {problem.deliveries} halo rows"
        )
    return "\n".join([*lines, "#", "# Using ranks"])


def _print(settings: Settings, quiet: bool, record: list[RankInfo] | Line) -> None:
    """Print what rank 0 reports, as it comes: where the ranks run, or a line; nothing before a JSON object."""
    from dgcl.bench.bench_report import header, row

    if quiet:
        return
    if not isinstance(record, list):
        say(row(record, settings), flush=True)
        return
    for rank in record:
        say(
            f"#   rank {rank.rank:>2}  pid {rank.process:>7}  {rank.host}  {rank.device}, {rank.threads}"
            f" threads: {rank.num_owned} owned rows, {rank.num_halo} halo rows"
        )
    say(f"#\n{header(settings)}", flush=True)
