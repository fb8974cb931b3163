"""Ranks on several hosts, under torchrun with its own rendezvous, over links of a known speed.

Bytes are counted; how fast they go is measured by a command (docs/cluster.md).
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.dgcl.multihost.hosts import Hosts, missing
from tests.dgcl.multihost.rank_main import RUNS

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("alone")]
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


def test_hosts_are_reached_by_the_network_alone(world: Answers):
    for rank, answer in enumerate(world):
        others = [peer for peer in range(len(world)) if peer != rank]
        for peer, line in zip(others, answer["describe"]["channels"], strict=True):
            assert line.startswith(f"  rank {peer}: "), line
            assert re.search(
                r"collective, messages of gloo: rank \d on \S+ and rank \d on \S+ share no memory", line
            ), line


def test_training_is_that_of_one_device(world: Answers):
    assert [answer["equivalence"] for answer in world] == [len(RUNS)] * len(world)


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


@pytest.mark.parametrize("method", ["direct", "auto"])
def test_interfaces_count_what_was_planned(world: Answers, method: str):
    for host, found in by_host(world, method).items():
        assert found["counted"] == pytest.approx(found["crossing"], rel=0.02), (host, found)


def test_a_row_that_crosses_once_gains_what_the_plan_predicts(world: Answers):
    direct, planned = (world[0]["traffic"][method]["predicted"] for method in ("direct", "auto"))
    assert direct / planned == pytest.approx(gain(world[0]["traffic"]["hosts"]), rel=0.02)
    busiest = {
        method: max(found["counted"] for found in by_host(world, method).values())
        for method in ("direct", "auto")
    }
    assert busiest["direct"] / busiest["auto"] == pytest.approx(direct / planned, rel=0.04)


def gain(hosts: list[int]) -> float:
    """By how many rows less cross the busiest port if each crosses once for each host, not for each rank.

    Every rank owns as many vertices, and needs all.
    """
    most_direct = most_once = 0
    for host in set(hosts):
        inside, outside = hosts.count(host), len(hosts) - hosts.count(host)
        most_direct = max(most_direct, inside * outside)  # as many out as in
        most_once = max(most_once, inside * (len(set(hosts)) - 1), outside)
    return most_direct / most_once
