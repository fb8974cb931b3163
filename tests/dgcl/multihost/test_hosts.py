"""Ranks on several hosts, under torchrun with its own rendezvous, over links of a known speed.

Bytes are counted; how fast they go is measured by a command (docs/cluster.md).
"""

import re

import pytest

from tests.dgcl.multihost.rank_main import RUNS
from tests.dgcl.multihost.support_hosts import Answers, by_host

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("alone")]


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
