"""What a rank under torchrun runs on a test host: ``python -m ... FOLDER CHECK ...``; answers go to ``FOLDER/RANK``.

Checks that compare raise where they find a difference, which fails the rank, torchrun, and the test.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import dgcl
from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.ranks.machines import places_of_ranks
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.hosts import Host, hosts_topology
from dgcl.topology.machine import Net
from tests.dgcl.multihost.hosts import read_counter
from tests.support.equivalence import assert_equal_runs, on_rank, reference

WIDTH = 128
CALLS = 4
NUM_VERTICES = 24_000
RUNS = [
    ("torch-gcn", "directed", "uniform", "float64"),
    ("torch-sage", "multi-edges", "chain", "float64"),
    ("torch-gin", "self-loops", "chain", "float64"),
    ("torch-gat", "directed", "chain", "float64"),
    ("torch-gcn", "multi-edges", "uniform", "float32"),
]


def everybody_needs_everything(world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A graph in which every rank reads every vertex, and whose vertices are where."""
    part = np.arange(NUM_VERTICES) % world_size
    heads = np.arange(world_size)  # one vertex of each rank reads all
    tails = np.repeat(np.arange(NUM_VERTICES), world_size)
    return np.stack([tails, np.tile(heads, NUM_VERTICES)]), part


def machines() -> list[int]:
    """The host of each rank, counted from 0."""
    places = [place.machine for place in places_of_ranks(context.require_control())]
    return [sorted(set(places)).index(place) for place in places]


def limited_topology(
    host_of_rank: list[int], megabytes: float, card_of_rank: list[int] | None = None
) -> dgcl.Topology:
    """What the test made: hosts whose network cards carry ``megabytes`` MB/s, each rank with its own or with one."""
    cards = card_of_rank or [0] * len(host_of_rank)
    port = Net("nic", megabytes / 1e3, "Eth")
    host = Host(CopyRates(4.0, 6.0), (port,) * (max(cards) + 1))
    return hosts_topology([host] * (max(host_of_rank) + 1), host_of_rank, cards)


def describe() -> Any:
    """Which ranks share a host, and what ``comm.describe`` says of each pair."""
    comm = dgcl.build_comm_info(torch.tensor([[0, 1], [1, 0]]), "auto")
    said = {"hosts": machines(), "channels": comm.describe().splitlines()[1:], "plan": comm.plan.method}
    comm.close()
    return said


def equivalence() -> Any:
    """Models trained as on one device."""
    world_size = dist.get_world_size()
    for architecture, case, shape, precision in RUNS:
        run = on_rank(architecture, case, world_size, shape, precision)
        assert_equal_runs(
            run, reference(architecture, case, precision), 1e-10 if precision == "float64" else 1e-4
        )
    return len(RUNS)


def traffic(megabytes: str) -> Any:
    """Seconds and bytes of planned and of direct exchanges over the limited links."""
    edges, part = everybody_needs_everything(dist.get_world_size())
    hosts, found = machines(), {}
    for method in ("direct", "auto"):
        comm = dgcl.build_comm_info(
            torch.from_numpy(edges),
            limited_topology(hosts, float(megabytes)),
            part=part,
            method=method,
            plan=dgcl.PlanOptions(row_bytes=4 * WIDTH),
        )
        rows = torch.randn(comm.num_owned, WIDTH)
        comm.fold(comm.expand(rows))
        comm.control.barrier()
        found[method] = {
            "predicted": comm.plan.predicted_seconds,
            **timed_exchanges(comm, rows, hosts, CALLS),
        }
        comm.close()
    return {"hosts": hosts, "megabytes": float(megabytes), **found}


def timed_exchanges(
    comm: dgcl.Communicator, rows: torch.Tensor, hosts: Sequence[int], calls: int
) -> dict[str, Any]:
    """Of ``calls`` exchanges that all ranks begin together: seconds of one, bytes that this rank sent to other hosts in
    all and to each rank, and what its card counted."""
    sent, counter = comm.bytes_sent["expand"].clone(), read_counter()
    comm.control.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        comm.expand(rows)
    comm.control.barrier()
    seconds = (time.perf_counter() - begin) / calls
    counted = read_counter() - counter
    comm.control.barrier()
    moved = (comm.bytes_sent["expand"] - sent).tolist()
    crossing = sum(count for peer, count in enumerate(moved) if hosts[peer] != hosts[comm.rank])
    return {"seconds": seconds, "crossing": crossing, "counted": counted, "moved": moved}


def until_it_fails(timeout: str) -> Any:
    """Calls until one fails; counts them in a file, and tells how and when that ended, and what closing took."""
    edges, part = everybody_needs_everything(dist.get_world_size())
    hosts = machines()
    comm = dgcl.build_comm_info(
        torch.from_numpy(edges), limited_topology(hosts, 20.0), part=part, timeout=float(timeout)
    )
    rows, calls = torch.randn(comm.num_owned, WIDTH), 0
    while True:
        try:
            comm.expand(rows)
        except CommError as error:
            when = time.time()
            comm.close()
            return {"hosts": hosts, **ending(error, when), "closing": time.time() - when}
        calls += 1
        count(calls)


def set_up_until_it_fails(timeout: str) -> Any:
    """The same of making communicators, one after another."""
    dgcl.init(dist.group.WORLD, timeout=float(timeout))
    edges, part = everybody_needs_everything(dist.get_world_size())
    hosts, made = machines(), 0
    topology = limited_topology(hosts, 20.0)
    while True:
        try:
            dgcl.build_comm_info(torch.from_numpy(edges), topology, part=part, timeout=float(timeout)).close()
        except CommError as error:
            return {"hosts": hosts, **ending(error, time.time()), "closing": 0.0}
        made += 1
        count(made)


def ending(error: CommError, when: float) -> dict[str, Any]:
    """How it ended here."""
    return {"kind": type(error).__name__, "text": str(error), "when": when}


def count(done: int):
    """Let the test see how far this rank has come, whole."""
    place = FOLDER / f"calls{dist.get_rank()}"
    place.with_suffix(".new").write_text(str(done))
    place.with_suffix(".new").rename(place)


CHECKS: dict[str, Callable[..., Any]] = {
    check.__name__: check for check in (describe, equivalence, traffic, until_it_fails, set_up_until_it_fails)
}
FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()


def main():
    """All checks that were asked for, in order; a word after a colon is given to a check."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dgcl.init()
    answers = {}
    for name in sys.argv[2:]:
        check, *arguments = name.split(":")
        answers[check] = CHECKS[check](*arguments)
    place = FOLDER / f"{dist.get_rank()}"
    place.with_suffix(".new").write_text(json.dumps(answers))
    place.with_suffix(".new").rename(place)


if __name__ == "__main__":
    main()
