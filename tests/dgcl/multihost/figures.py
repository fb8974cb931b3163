"""``python -m tests.dgcl.multihost.figures``: the table of the page on clusters, measured anew (a minute, as root)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.dgcl.multihost.hosts import Hosts, missing
from tests.dgcl.multihost.rank_main import CALLS
from tests.dgcl.multihost.test_hosts import MODULE, WORLDS, answers_in, by_host, seconds


def main() -> None:
    """Run the worlds and print a line for each and each plan."""
    why = missing()
    if why is not None:
        raise SystemExit(f"no hosts: {why}")
    print(
        "| hosts: ranks | link, MB/s each way | plan | rows' MB per call | on the wire | predicted, s | measured |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (ranks, megabytes) in WORLDS.items():
        with tempfile.TemporaryDirectory() as folder, Hosts(len(ranks), megabytes) as hosts:
            hosts.torchrun(ranks, MODULE, folder, f"traffic:{megabytes}")
            world = answers_in(Path(folder), sum(ranks))
        for method in ("direct", "auto"):
            found = by_host(world, method).values()
            crossing, counted = (sum(one[key] for one in found) for key in ("crossing", "counted"))
            predicted, measured = world[0]["traffic"][method]["predicted"], seconds(world, method)
            print(
                f"| {name} | {megabytes:g} | `{method}` | {crossing / CALLS / 1e6:.1f} | {counted / crossing:.3f}"
                f" | {predicted:.3f} | {measured:.3f} ({predicted / measured:.0%} of the speed) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
