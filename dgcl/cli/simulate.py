"""``dgcl simulate``: play a plan on a machine, message by message."""

import argparse
import json
from typing import Any

from dgcl.cli.arguments import at_least, number, option, per_rank
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_output, replacing
from dgcl.cli.output import (
    print_fields,
    print_json,
    print_legend,
    print_table,
    print_written,
    say,
    seconds,
    size,
    step,
)
from dgcl.cli.plans import proved_plan
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

ORDERS = {
    "eager": "as soon as its rows are there",
    "neighbours": "after all that it sends and receives in earlier stages",
    "barrier": "after everybody has finished earlier stages",
}
BUSIEST = 10


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    orders = ", or ".join(f"{what} ({order})" for order, what in ORDERS.items())
    parser = verbs.add_parser(
        name,
        help="play a plan message by message, on its own machine or another",
        description="Simulate a plan with messages that share connections max-min fairly and start when their"
        " rows have arrived, without the cost model's stages: how long it takes, how long each rank waits (it"
        f" is in the call and sends nothing), and which connections are busy. A rank sends {orders}.",
    )
    parser.add_argument("plan", metavar="plan.npz", help="a plan file written by `dgcl plan --out`")
    option(parser, "--topology T", f"another machine: {TOPOLOGY_HELP}")
    option(parser, "--row-bytes B", "default: the plan's", at_least(1))
    option(parser, "--order", "when a rank sends; default: as ranks of the machine do", ORDERS)
    option(
        parser,
        "--shares",
        "what messages that meet get of a connection: as much as each other, or by their bytes; default:"
        " the machine's",
        ("equal", "bytes"),
    )
    option(
        parser,
        "--sends-at-once N",
        "messages that a rank sends at a time; default: the machine's (1: CPU ranks)",
        at_least(1),
    )
    option(parser, "--slow RANK:FACTOR", "slow device", per_rank(number(1)), [], action="append")
    option(parser, "--late RANK:SECONDS", "late rank", per_rank(number(0)), [], action="append")
    option(parser, "--trace trace.json", "write every message, for ui.perfetto.dev")
    parser.runs(simulate)


def simulate(args: argparse.Namespace) -> int:
    """Print what happened, beside what the cost model says; write the trace if asked for."""
    from dgcl.planner.cost import predicted_seconds
    from dgcl.planner.simulator.executed import protocol
    from dgcl.planner.simulator.simulate import simulate as play
    from dgcl.planner.simulator.trace import chrome_trace

    check_output("--trace", args.trace, {"plan.npz": args.plan, "--topology": args.topology})
    plan = proved_plan(args.plan)
    machine = resolve(args.topology, plan.world_size) if args.topology else plan.topology
    row_bytes = args.row_bytes or plan.row_bytes
    settings = protocol(machine)
    settings |= {name: getattr(args, name) for name in settings if getattr(args, name) is not None}
    with step(f"simulating {args.plan} on {machine.name}"):
        played = play(
            plan,
            topology=machine,
            row_bytes=row_bytes,
            **settings,
            slow=_by_rank("--slow", args.slow, plan.world_size),
            start=_by_rank("--late", args.late, plan.world_size),
        )
        predicted = predicted_seconds(plan.trees, machine.arrays(), row_bytes)
    if args.trace is not None:
        with replacing(args.trace) as temporary:
            temporary.write_text(json.dumps(chrome_trace(played)))
    facts = {
        "topology": machine.name,
        "row_bytes": row_bytes,
        **settings,
        "predicted_seconds": predicted,
        **played.to_json(),
    }
    if args.json:
        print_json(facts)
        return 0
    _print(facts, plan.num_stages)
    print_legend(_LEGEND)
    if args.trace is not None:
        say()
    print_written(("trace", args.trace))
    return 0


_LEGEND = {
    "finished, waited": "when a rank is done, and how long of that it sends nothing",
    "busy, share": "how long a connection carries anything, and that over the simulated time",
}


def _by_rank(option: str, values: list[tuple[int, float]], world_size: int) -> dict[int, float]:
    for rank, _ in values:
        if rank >= world_size:
            raise CliError(f"{option}: rank must be below {world_size}, the ranks of the plan (got {rank})")
    return dict(values)


def _print(facts: dict[str, Any], num_stages: int) -> None:
    total, predicted = facts["seconds"], facts["predicted_seconds"]
    ratio = f", {total / predicted:.4g} times the model's" if predicted else ""
    print_fields(
        [
            (
                "plan",
                f"{num_stages} stages on {facts['topology']}, rows of {size(facts['row_bytes'])}, order"
                f" {facts['order']}",
            ),
            ("model", seconds(predicted)),
            ("simulated", f"{seconds(total)}{ratio}"),
            ("messages", f"{facts['num_messages']}, {size(facts['bytes_sent'])}"),
        ]
    )
    say()
    print_table(
        ("rank", "finished", "waited"),
        [
            (str(each["rank"]), seconds(each["finish_seconds"]), seconds(each["wait_seconds"]))
            for each in facts["ranks"]
        ],
    )
    if not facts["connections"]:
        return
    busy = sorted(facts["connections"], key=lambda each: (-each["busy_seconds"], each["name"]))
    say()
    print_table(
        ("connection", "busy", "share", "bytes"),
        [
            (
                each["name"],
                seconds(each["busy_seconds"]),
                f"{each['busy_seconds'] / total:.0%}",
                size(each["bytes"]),
            )
            for each in busy[:BUSIEST]
        ],
    )
