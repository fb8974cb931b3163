"""The command ``dgcl simulate``: simulates a plan message by message, on its own machine or another.

Unlike in the cost model there are no stages: messages share connections max-min fairly and start when their rows have
arrived. When a rank sends, and how many messages at once, is what ranks of that machine do, unless an option says it.

Called by `dgcl/cli/__init__`. Free to change while times are those of plans that are played by hand, and a plan that
lies is refused (`tests/dgcl/cli/test_simulate.py`; changed machines: `tests/dgcl/cli/test_show.py`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.cli.arguments import at_least, number, option, per_rank, refuse
from dgcl.cli.command_errors import CliError
from dgcl.cli.output import print_fields, print_json, print_legend, print_written, say, seconds, size, step
from dgcl.cli.plans import add_plan_file, load_plan
from dgcl.cli.result_files import Results, check_outputs, write_all
from dgcl.cli.topologies import TOPOLOGY_HELP, add_changes, machines
from dgcl.topology.table import Column, Table

if TYPE_CHECKING:
    from dgcl.planner import Plan

ORDERS = {
    "eager": "as soon as its rows are there",
    "neighbours": "after all that it sends and receives in earlier stages",
    "barrier": "after everybody has finished earlier stages",
}
BUSIEST = 10
SLICES = 100  # of the time, in a trace and on a page


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    orders = ", or ".join(f"{what} ({order})" for order, what in ORDERS.items())
    parser = verbs.add_parser(
        "simulate",
        help="play a plan message by message, on its own machine or another",
        description="Simulate a plan with messages that share connections max-min fairly and start when their"
        " rows have arrived, without the cost model's stages: how long it takes, how long each rank waits (it"
        f" is in the call and sends nothing), and which connections are used. A rank sends {orders}.",
    )
    add_plan_file(parser)
    option(parser, "--topology T[,T]", f"another machine: {TOPOLOGY_HELP}; several: a table")
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
    add_changes(parser)
    option(parser, "--trace trace.json", "write every message and connection, for ui.perfetto.dev")
    option(parser, "--html FILE", "write a page that shows it, for a browser")
    parser.runs(simulate)


def simulate(args: argparse.Namespace) -> int:
    """Print what happened, beside what the cost model says; write the trace if asked for."""
    from dgcl.planner.bounds.best import best_bound
    from dgcl.planner.cost import predicted_seconds
    from dgcl.planner.reading.page import page_data, write_page
    from dgcl.planner.simulator.event_simulator import simulate as play
    from dgcl.planner.simulator.executed import protocol
    from dgcl.planner.simulator.trace import chrome_trace

    check_outputs(args, "trace html", {"plan.npz": args.plan, "--topology": args.topology})
    refuse(args, "scale", "must name what is scaled: NAME=FACTOR")
    plan = load_plan(args.plan, proved=True)
    topologies = machines(args, [plan.world_size], plan.topology)
    if len(topologies) > 1:
        refuse(args, "trace html", "is of one machine: give one --topology")
    row_bytes = args.row_bytes or plan.row_bytes
    everything = []
    for machine in topologies:
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
                slices=SLICES if args.trace or args.html else 0,
            )
        own = machine == plan.topology and row_bytes == plan.row_bytes
        everything.append(
            {
                "topology": machine.name,
                "row_bytes": row_bytes,
                **settings,
                "predicted_seconds": predicted_seconds(plan.trees, machine.arrays(), row_bytes),
                "limited_by": plan.meta.get("limited_by", "")
                if own
                else best_bound(plan.relation, machine, row_bytes).where,
                **played.to_json(),
            }
        )
    facts = everything[0]

    def page(path: Path) -> None:
        times = np.linspace(0, played.seconds, SLICES + 1)[1:].tolist()
        steps = [("all the time", played.direction_used)]
        steps += [(f"until {seconds(time)}", use) for time, use in zip(times, played.slices, strict=True)]
        title = f"{plan.method} plan, simulated on {machine.name}"
        write_page(path, page_data(plan, machine, title, _head(facts, plan), _tables(facts), steps))

    results: Results = [
        ("trace", args.trace, lambda path: path.write_text(json.dumps(chrome_trace(played)))),
        ("page", args.html, page),
    ]
    write_all(results)
    if args.json:
        print_json(facts if len(everything) == 1 else {"machines": everything})
    elif len(everything) > 1:
        say(Table(Column("machine", left=True, key="topology"), *_TOTALS).fill(everything).text())
    else:
        print_fields(_head(facts, plan))
        for table in _tables(facts):
            say(f"\n{table.text()}")
        print_legend(_LEGEND)
        print_written(*results, space=True)
    return 0


_LEGEND = {
    "finished, waited": "when a rank is done, and how long of that it sends nothing",
    "limited by": "what the least time of any plan rests on there; what this plan waits for is used most",
    "used": "the bytes over a connection, in percent of what it could carry in that time",
}
_TOTALS = (
    Column("simulated", seconds, key="seconds"),
    Column("model", seconds, key="predicted_seconds"),
    Column("limited by", lambda text: shorten(text, 60), left=True, key="limited_by"),
)


def _by_rank(option: str, values: list[tuple[int, float]], world_size: int) -> dict[int, float]:
    for rank, _ in values:
        if rank >= world_size:
            raise CliError(f"{option}: rank must be below {world_size}, the ranks of the plan (got {rank})")
    return dict(values)


def _head(facts: dict[str, Any], plan: Plan) -> list[tuple[str, str]]:
    total, predicted = facts["seconds"], facts["predicted_seconds"]
    ratio = f", {total / predicted:.4g} times the model's" if predicted else ""
    stages = f"{plan.num_stages} stages on {facts['topology']}, rows of {size(facts['row_bytes'])}"
    return [
        ("plan", f"{stages}, order {facts['order']}"),
        ("model", seconds(predicted)),
        ("simulated", f"{seconds(total)}{ratio}"),
        ("messages", f"{facts['num_messages']}, {size(facts['bytes_sent'])}"),
        ("limited by", facts["limited_by"]),
    ]


def _tables(facts: dict[str, Any]) -> list[Table]:
    ranks = Table(
        Column("rank", left=True),
        Column("finished", seconds, key="finish_seconds"),
        Column("waited", seconds, key="wait_seconds"),
    )
    wires = Table(Column("connection", left=True, key="name"), Column("used", ".0%"), Column("bytes", size))
    most = sorted(facts["connections"], key=lambda each: (-each["used"], each["name"]))[:BUSIEST]
    return [ranks.fill(facts["ranks"]), *([wires.fill(most)] if most else [])]
