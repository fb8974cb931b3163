"""What :mod:`tests.dgcl.multihost.test_hosts` shares with other tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dgcl.multihost.hosts import Hosts, missing

MODULE = "tests.dgcl.multihost.rank_main"


# Ranks on each host, and MB/s of its link each way: little enough for two cores to keep all links busy.
WORLDS = {
    "2 hosts, 3 ranks and 1": ([3, 1], 20.0),
    "4 hosts, 2 ranks each": ([2] * 4, 10.0),
}
Answers = list[dict[str, Any]]


def answers_in(folder: Path, num_ranks: int) -> Answers:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(num_ranks)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(world, id=name, marks=() if k == 0 else pytest.mark.matrix)
        for k, (name, world) in enumerate(WORLDS.items())
    ],
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the ranks of a world answer to all checks; they are started once."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("answers")
    ranks, megabytes = request.param
    with Hosts(len(ranks), megabytes) as hosts:
        hosts.torchrun(ranks, MODULE, str(folder), "describe", "equivalence", f"traffic:{megabytes}")
    return answers_in(folder, sum(ranks))


def by_host(world: Answers, method: str) -> dict[int, dict[str, float]]:
    """Of each host: bytes that its ranks sent to others, and what its interface counted."""
    hosts = world[0]["traffic"]["hosts"]
    found = {}
    for host in set(hosts):
        mine = [answer["traffic"][method] for answer, its in zip(world, hosts, strict=True) if its == host]
        found[host] = {
            "crossing": sum(one["crossing"] for one in mine),
            "counted": max(one["counted"] for one in mine),
        }
    return found
