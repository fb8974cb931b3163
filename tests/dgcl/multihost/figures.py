"""``python -m tests.dgcl.multihost.figures [--write docs/cluster.md]``: the measured tables of the page on clusters.

Three minutes on two idle cores, as root. The first table is of ranks that need every row; the second of a drawn graph
on hosts with one network card, one for two ranks, and one for each. ``--write`` puts them between the page's marks.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.hosts import Hosts
from tests.dgcl.multihost.layouts import LAYOUTS, METHODS, PARTS, measure, small_world
from tests.dgcl.multihost.pages import print_into, require_hosts
from tests.dgcl.multihost.rank_main import CALLS
from tests.dgcl.multihost.support_hosts import MODULE, WORLDS, answers_in, by_host

MEGABYTES = 10.0
NUM_VERTICES = 16_000


def worlds() -> Iterator[str]:
    """The lines of the first table."""
    yield "| hosts: ranks | link, MB/s each way | plan | rows' MB per call | on the wire | predicted, s | measured |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, (ranks, megabytes) in WORLDS.items():
        with tempfile.TemporaryDirectory() as folder, Hosts(len(ranks), megabytes) as hosts:
            hosts.torchrun(ranks, MODULE, folder, f"traffic:{megabytes}")
            world = answers_in(Path(folder), sum(ranks))
        for method in METHODS:
            found = by_host(world, method).values()
            crossing, counted = (sum(one[key] for one in found) for key in ("crossing", "counted"))
            predicted = world[0]["traffic"][method]["predicted"]
            measured = sum(float(answer["traffic"][method]["seconds"]) for answer in world) / len(world)
            yield (
                f"| {name} | {megabytes:g} | `{method}` | {crossing / CALLS / 1e6:.1f} | {counted / crossing:.3f}"
                f" | {predicted:.3f} | {measured:.3f} ({predicted / measured:.0%} of the speed) |"
            )


def layouts() -> Iterator[str]:
    """The lines of the second table."""
    yield (
        "| cards of a host | parts | `direct`: predicted, ms | measured | `auto`: predicted, ms | measured"
        " | gain predicted | measured |"
    )
    yield "|" + " --- |" * 8
    edges = small_world(NUM_VERTICES)
    for name, cards in LAYOUTS.items():
        pool = HostPool([4, 4], MEGABYTES, cards)
        yield from (layout_line(pool, name, edges, parts, False) for parts in PARTS)
        pool.close()
    pool = HostPool([4, 2], MEGABYTES)
    yield layout_line(pool, "one card, 4 ranks and 2", edges, "by hosts", False)
    yield layout_line(pool, "the same, found out", edges, "by hosts", True)
    pool.close()


def layout_line(pool: HostPool, name: str, edges: np.ndarray, parts: str, gathered: bool) -> str:
    """Peer to peer and planned, side by side."""
    direct, planned = (measure(pool, edges, parts, method, gathered=gathered) for method in METHODS)
    keys = ("predicted", "measured")
    cells = [name, parts, *(f"{1e3 * found[key]:.0f}" for found in (direct, planned) for key in keys)]
    cells += [f"{direct[key] / planned[key]:.2f}" for key in keys]
    return f"| {' | '.join(cells)} |"


def main():
    """Print both tables, and put them into the page if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", default="", help="the page")
    parser.add_argument("--only", choices=["worlds", "layouts"], help="one table of the two")
    given = parser.parse_args()
    require_hosts()
    where = ["", f"Measured on {os.cpu_count()} cores, which all hosts share."]
    for name, lines in {"worlds": worlds, "layouts": layouts}.items():
        if given.only in (None, name):
            print_into(given.write, name, chain(lines(), where))


if __name__ == "__main__":
    main()
