"""Ranks on several hosts, under torchrun with its own rendezvous, over links of a known speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dgcl.multihost.hosts import Hosts, missing
from tests.dgcl.multihost.rank_main import MEGABYTES, RUNS

pytestmark = [pytest.mark.multihost, pytest.mark.slow]
MODULE = "tests.dgcl.multihost.rank_main"
WORLDS = {"2 hosts, 2 ranks each": [2, 2], "2 hosts, 3 ranks and 1": [3, 1], "4 hosts, 2 ranks each": [2] * 4}

Answers = list[dict[str, Any]]


def answers_in(folder: Path, num_ranks: int) -> Answers:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(num_ranks)]


@pytest.fixture(scope="module", params=WORLDS.values(), ids=WORLDS.keys())
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the ranks of a world answer to all checks; they are started once."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("answers")
    with Hosts(len(request.param), MEGABYTES) as hosts:
        hosts.torchrun(request.param, MODULE, str(folder), "describe", "equivalence", "traffic")
    return answers_in(folder, sum(request.param))


def test_hosts_are_reached_by_the_network_alone(world: Answers) -> None:
    for rank, answer in enumerate(world):
        hosts = answer["describe"]["hosts"]
        others = [peer for peer in range(len(world)) if peer != rank]
        for peer, line in zip(others, answer["describe"]["channels"], strict=True):
            assert line.startswith(f"  rank {peer}: "), line
            assert ("network: " in line) == (hosts[peer] != hosts[rank]), line
            assert ("shared memory: " in line) == (hosts[peer] == hosts[rank]), line


def test_training_is_that_of_one_device(world: Answers) -> None:
    assert [answer["equivalence"] for answer in world] == [len(RUNS)] * len(world)


def by_host(world: Answers, method: str) -> dict[int, dict[str, float]]:
    """Of each host: bytes that its ranks sent to others, what its interface counted, and the seconds."""
    hosts = world[0]["traffic"]["hosts"]
    found = {}
    for host in set(hosts):
        mine = [answer["traffic"][method] for answer, its in zip(world, hosts, strict=True) if its == host]
        found[host] = {
            "crossing": sum(one["crossing"] for one in mine),
            "counted": max(one["counted"] for one in mine),
            "rate": sum(one["crossing"] for one in mine) / mine[0]["calls"] / 1e6 / mine[0]["seconds"],
        }
    return found


@pytest.mark.parametrize("method", ["direct", "auto"])
def test_interfaces_count_what_was_planned(world: Answers, method: str) -> None:
    for host, found in by_host(world, method).items():
        assert found["counted"] == pytest.approx(found["crossing"], rel=0.02), (host, found)


@pytest.mark.parametrize("method", ["direct", "auto"])
def test_the_busiest_link_is_used_at_85_percent(world: Answers, method: str) -> None:
    assert max(found["rate"] for found in by_host(world, method).values()) >= 0.85 * MEGABYTES


def test_a_row_that_crosses_once_gains_what_the_plan_predicts(world: Answers) -> None:
    direct, planned = (world[0]["traffic"][method] for method in ("direct", "auto"))
    predicted = direct["predicted"] / planned["predicted"]
    assert predicted > 1.4
    assert direct["seconds"] / planned["seconds"] == pytest.approx(predicted, rel=0.15)
