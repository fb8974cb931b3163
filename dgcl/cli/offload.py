"""``dgcl offload``: chunks of a graph whose rows stay in host memory, and what they load, move and take."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, byte_size, list_of, option
from dgcl.cli.errors import CliError
from dgcl.cli.groups import add_parts, add_source
from dgcl.cli.output import print_fields, print_json, print_legend, print_table, size, step
from dgcl.cli.problem import load_graph, read_part

if TYPE_CHECKING:
    from dgcl.offload.offline import Arranged, OfflineRanks
    from dgcl.offload.prediction import LayerRows


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="count what training from host memory loads, moves and takes",
        description="Divide each rank's vertices into chunks whose rows are loaded from host memory, and count rows and"
        " bytes before anything runs.",
    )
    add_source(parser)
    option(parser, "--ranks P", "default: 1", at_least(1), 1)
    how_many = parser.add_mutually_exclusive_group()
    option(how_many, "--chunks N", "chunks of each rank", at_least(1))
    option(
        how_many, "--memory SIZE", "bytes of device memory of a rank: the fewest chunks that fit", byte_size
    )
    option(
        parser,
        "--widths D0,D1,..",
        "elements of a row of the input and of each layer's result",
        list_of(at_least(1)),
        required=True,
    )
    option(parser, "--row-type-bytes B", "bytes of an element; default: 4", at_least(1), 4)
    option(parser, "--chunk-by", "default: metis", ("metis", "range"), "metis")
    option(parser, "--slots ROWS", "rows a rank can hold (default: the fullest batch)", at_least(1))
    option(parser, "--kept", "aggregates are kept, and no neighbour is loaded in the backward")
    add_parts(parser)
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Count, and print."""
    if len(args.widths) < 2:
        raise CliError("--widths needs two numbers or more")
    if args.chunks is None and args.memory is None:
        raise CliError("--chunks or --memory is needed: how many chunks each rank has, or what they must fit")
    ranks = _ranks(args)
    chunks = args.chunks or _fitting(ranks, args)
    with step(f"arranging {chunks} chunks of each rank"):
        arranged = ranks.arrange(chunks)
    facts = _facts(args, ranks, arranged, chunks)
    if args.json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def _ranks(args: argparse.Namespace) -> OfflineRanks:
    from dgcl.offload.offline import OfflineRanks
    from dgcl.partition import partition_graph

    graph = load_graph(args)
    if args.part is not None:
        part = read_part(args.part, graph.num_nodes, args.ranks)
    with step("partitioning"):
        if args.part is None:
            part = partition_graph(graph, args.ranks, seed=args.seed)
        return OfflineRanks(
            graph,
            part,
            args.ranks,
            chunk_by=args.chunk_by,
            slots=args.slots,
            seed=args.seed,
        )


def _fitting(ranks: OfflineRanks, args: argparse.Namespace) -> int:
    with step("looking for the fewest chunks that fit"):
        chunks, peak = ranks.smallest(args.memory, args.widths, args.row_type_bytes)
    if not chunks:
        raise CliError(
            f"--memory {size(args.memory)} is too little for any number of chunks: the least that was found takes"
            f" {size(peak)}. (1) give more, (2) take more --ranks, (3) narrower layers, (4) fewer in-edges a vertex"
        )
    return chunks


def _facts(args: argparse.Namespace, ranks: OfflineRanks, arranged: Arranged, chunks: int) -> dict[str, Any]:
    from dgcl.offload.prediction import host_bytes, layer_rows

    widths, item = args.widths, args.row_type_bytes
    v_ori, v_p2p, v_ru = arranged.volumes
    layers = []
    for number, (width, out) in enumerate(pairwise(widths)):
        rows = layer_rows(arranged.schedule, needs_grad=number > 0, kept=args.kept)
        layers.append({"width": width, "rows": asdict(rows), "bytes": _bytes(rows, width * item, out * item)})
    device = ranks.device_bytes(arranged, widths, item)
    host = host_bytes(len(ranks.part), widths, item, kept=args.kept)
    return {
        "ranks": args.ranks,
        "chunks": chunks,
        "vertices": len(ranks.part),
        "reordered": arranged.reordered,
        "v_ori": v_ori,
        "v_p2p": v_p2p,
        "v_ru": v_ru,
        "host_rows": arranged.schedule.host_rows,
        "device_rows": arranged.schedule.device_rows,
        "slots": list(arranged.schedule.num_slots),
        "layers": layers,
        "device_bytes": {**asdict(device), "total": device.total},
        "host_bytes": {**asdict(host), "total": host.total},
    }


def _bytes(rows: LayerRows, width: int, out: int) -> dict[str, int]:
    """Bytes in a step by direction."""
    return {
        "host_in": (rows.loaded + rows.loaded_again + rows.kept_again) * width + rows.gradients_in * out,
        "host_out": (rows.gradients_out + rows.kept) * width + rows.stored * out,
        "exchanged": (rows.exchanged + rows.exchanged_again) * width,
    }


def _print(facts: dict[str, Any]) -> None:
    device = facts["device_bytes"]
    rows = [("chunks", f"{facts['chunks']} of each of {facts['ranks']} ranks")]
    rows.append(
        (
            "rows",
            f"read by chunks {facts['v_ori']}, by batches {facts['v_p2p']}, beyond the batch before {facts['v_ru']}",
        )
    )
    rows.append(
        (
            "schedule",
            f"loaded from the host {int(facts['host_rows'].sum())}, between ranks {int(facts['device_rows'].sum())},"
            f" in at most {max(facts['slots'])} slots",
        )
    )
    host = facts["host_bytes"]
    rows.append(("device", f"{size(device['total'])} on the fullest rank: {_named(device)}"))
    rows.append(("host", f"{size(host['total'])} over all ranks at most: {_named(host)}"))
    print_fields(rows)
    print()
    print_table(
        ["layer", "width", "loaded", "again", "gradients out", "from host", "to host", "between ranks"],
        [
            [
                str(number),
                str(layer["width"]),
                str(layer["rows"]["loaded"]),
                str(layer["rows"]["loaded_again"]),
                str(layer["rows"]["gradients_out"]),
                *(size(layer["bytes"][name]) for name in ("host_in", "host_out", "exchanged")),
            ]
            for number, layer in enumerate(facts["layers"])
        ],
    )
    print_legend(
        {
            "loaded, again": "rows that all ranks load from the host in the forward, and once more in the backward",
            "gradients out": "rows of gradients that go to the host",
            "from host, to host, between ranks": "bytes of a training step, over all ranks",
        }
    )


def _named(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size(value)}" for name, value in sizes.items() if name != "total" and value)
