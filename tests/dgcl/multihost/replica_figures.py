"""``python -m tests.dgcl.multihost.replica_figures [--write docs/cluster.md]``: replicas against the ordinary plan.

A minute on two idle cores, as root. Two hosts of two ranks, links of three speeds; two layers of sums and products,
forward and backward, on a drawn graph whose parts few edges leave. What is predicted is what "auto" goes by.
"""

import os
from collections.abc import Iterator

from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.layouts import small_world
from tests.dgcl.multihost.pages import print_table
from tests.dgcl.multihost.rank_main import limited_topology
from tests.dgcl.multihost.replica_layers import LAYERS, NUM_VERTICES, layers_on_rank

MARK = "replicas"
RANKS = [2, 2]
SPEEDS = [2.0, 20.0, 200.0]  # MB/s each way
NEAR, FAR = 16, 1  # edges into each vertex


def lines() -> Iterator[str]:
    """The table."""
    edges = small_world(NUM_VERTICES, NEAR, FAR)
    yield (
        "| network, MB/s | plan | copies of a vertex | predicted ms a layer: exchange + work | measured ms"
        " | predicted faster |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    pool = HostPool(RANKS, SPEEDS[0])
    for speed in SPEEDS:
        if pool.hosts is not None:
            for host in range(len(RANKS)):
                pool.hosts.limit(host, speed)
        topology = limited_topology(pool.host_of_rank, speed)
        both = [pool.run(layers_on_rank, edges, topology, hops)[0] for hops in (None, LAYERS)]
        fastest = min(both, key=lambda found: float(found["exchange"] + found["work"]))
        for name, found in zip(("ordinary", "replicas"), both, strict=True):
            taken = "yes" if found is fastest else ""
            yield (
                f"| {speed:g} | {name} | {found['copies']:.2f} | {1e3 * found['exchange']:.1f} +"
                f" {1e3 * found['work']:.1f} | {1e3 * found['measured']:.1f} | {taken} |"
            )
    pool.close()
    yield ""
    yield f"Measured on {os.cpu_count()} cores, which all ranks share."


if __name__ == "__main__":
    print_table(__doc__, MARK, lines())
