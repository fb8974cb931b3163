"""``python -m tests.dgcl.multihost.aggregation_figures GRAPH.npz [--write docs/aggregation.md]``: on a network.

Two minutes, as root. Two hosts of two ranks, joined at 1 Gbit/s: what the exchanges of an aggregation and its backward
send from host to host, are predicted to take, and take, wherever edges are summed; and an epoch of three GCN layers.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgcl.cli.info import describe_machine
from tests.dgcl.multihost.aggregation_exchanges import aggregation_on_rank
from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.pages import print_into, require_hosts
from tests.dgcl.multihost.rank_main import limited_topology

MARK = "hosts"
RANKS = [2, 2]
MEGABYTES, ROUNDS = 125.0, 3
EDGES = {
    "head": "halo",
    "tail": "tail",
    "cover": "cover",
    "cover of machines": "cover:machine",
}


def lines(graph: str) -> Iterator[str]:
    """The table."""
    yield (
        "| edges | MB to the other host, planned | moved / planned | on the wire / planned | of head's | predicted ms"
        " | ms | of head's | epoch ms | of head's | loss differs by |"
    )
    yield "|" + " --- |" * 11
    pool = HostPool(RANKS, MEGABYTES)
    topology = limited_topology(pool.host_of_rank, MEGABYTES)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in EDGES}
    for name, options in [*EDGES.items()] * ROUNDS:
        found = pool.run(aggregation_on_rank, graph, topology, options, pool.host_of_rank)
        sums = {key: sum(one[key] for one in found) for key in ("planned", "crossing")}
        wire = sum(one["counted"] for one in found[:: RANKS[0]])  # one card for the ranks of a host
        rounds[name].append({**found[0], **sums, "counted": wire})
    first: dict[str, Any] = {}
    for name, each in rounds.items():
        best = {**each[0], **{key: min(one[key] for one in each) for key in ("exchanges", "step", "counted")}}
        first = first or best
        of_first = {key: best[key] / first[key] for key in ("planned", "exchanges", "step")}
        differs = max(abs(a / b - 1) for a, b in zip(best["losses"], first["losses"], strict=True))
        yield (
            f"| {name} | {best['planned'] / 1e6:.2f} | {best['crossing'] / best['planned']:.3f}"
            f" | {best['counted'] / best['planned']:.3f} | {of_first['planned']:.2f}"
            f" | {1e3 * best['predicted']:.0f} | {1e3 * best['exchanges']:.0f} | {of_first['exchanges']:.2f}"
            f" | {1e3 * best['step']:.0f} | {of_first['step']:.2f} | {differs:.0e} |"
        )
    pool.close()
    yield ""
    machine = describe_machine()
    yield (
        f"Measured on {machine['cpu']}, {machine['cores']} cores, which both hosts share, {machine['system']};"
        f" {Path(graph).stem}, both ways; the least of"
        f" {ROUNDS} rounds."
    )


def main():
    """Print the table, and put it into the page if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="a graph file")
    parser.add_argument("--write", default="", help="the page")
    given = parser.parse_args()
    require_hosts()
    print_into(given.write, MARK, lines(given.graph))


if __name__ == "__main__":
    main()
