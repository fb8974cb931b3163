"""CPU ranks: what the model says of loads, and that the measurement is one."""

import logging

import pytest

from dgcl.topology import Topology, measure_host
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from tests.support.samples import named


def seconds(topology: Topology, gigabytes: dict[tuple[int, int], float]) -> float:
    """The time of one stage by the cost model: the most loaded connection-direction."""
    arrays = topology.arrays()
    loads = [0.0] * arrays.num_directions
    for (src, dst), amount in gigabytes.items():
        link = arrays.link_of[src, dst]
        for step in arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]:
            loads[step] += amount
    return float((loads / arrays.bandwidth).max())


HOST = host_topology(4, CopyRates(one=8.0, all=20.0))


@named(
    "gigabytes, expected",
    {
        "one sender is bounded by its core": ({(0, 1): 8}, 1.0),
        "whoever receives": ({(0, 1): 4, (0, 2): 4}, 1.0),
        "two cores together are still below the memory": ({(0, 1): 8, (1, 0): 8}, 1.0),
        "all ranks are bounded by the memory": ({(0, 1): 5, (1, 2): 5, (2, 3): 5, (3, 0): 5}, 1.0),
        "many senders may write to one rank": ({(0, 3): 8, (1, 3): 8, (2, 3): 8}, 1.2),
    },
)
def test_what_bounds_a_stage(gigabytes: dict[tuple[int, int], float], expected: float):
    assert seconds(HOST, gigabytes) == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_pair_has_a_link_over_the_memory(ranks: int):
    topology = host_topology(ranks, CopyRates(1.0, 2.0))
    assert len(topology.links) == ranks * (ranks - 1)
    assert all(link.route[1] == "memory" for link in topology.links)
    assert topology.restrict(1).links == ()


def test_one_rank_sends_nothing_and_measures_nothing(caplog):
    with caplog.at_level(logging.INFO, logger="dgcl"):
        topology = measure_host(1)
    assert topology.connections == ()
    assert caplog.text == ""


@pytest.mark.parametrize("ranks", [0, -1])
def test_refusals(ranks: int):
    with pytest.raises(ValueError, match="num_ranks must be"):
        measure_host(ranks)
