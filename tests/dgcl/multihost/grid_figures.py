"""``python -m tests.dgcl.multihost.grid_figures [--write docs/grids.md]``: exchanges of grids on a network.

Half a minute, as root. Four hosts of one rank, each with a link of 10 MB/s, and a dense graph in random parts: what
both exchanges of an aggregation send, are predicted to take, and take.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.dgcl.multihost.grid_exchanges import exchanges_on_rank
from tests.dgcl.multihost.host_pool import HostPool
from tests.dgcl.multihost.pages import print_table
from tests.dgcl.multihost.rank_main import limited_topology

MARK = "network"
RANKS = [1, 1, 1, 1]
MEGABYTES = 10.0
KINDS: dict[str, dict[str, Any]] = {
    "halo": {},
    "cover": {"edges": "cover"},
    "(2,2,1)": {"grid": (2, 2, 1)},
    "(2,1,2)": {"grid": (2, 1, 2)},
    "(1,1,4)": {"grid": (1, 1, 4)},
}


def lines() -> Iterator[str]:
    """The table."""
    yield "| edges | MB sent by a rank | over halo's | predicted ms | measured ms | over halo's |"
    yield "| --- | --- | --- | --- | --- | --- |"
    pool = HostPool(RANKS, MEGABYTES)
    topology = limited_topology(pool.host_of_rank, MEGABYTES)
    first: dict[str, float] = {}
    for name, options in KINDS.items():
        found = pool.run(exchanges_on_rank, topology, options)
        mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        first = first or mean
        yield (
            f"| {name} | {mean['bytes'] / 1e6:.2f} | {mean['bytes'] / first['bytes']:.2f}"
            f" | {1e3 * mean['predicted']:.0f} | {1e3 * mean['measured']:.0f}"
            f" | {mean['measured'] / first['measured']:.2f} |"
        )
    pool.close()
    yield ""
    yield f"Measured on {os.cpu_count()} cores, which all hosts share."


if __name__ == "__main__":
    print_table(__doc__, MARK, lines())
