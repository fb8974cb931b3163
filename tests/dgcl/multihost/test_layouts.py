"""Hosts with several network cards: each carries what the plan gives it, whatever was planned for."""

import numpy as np
import pytest

from dgcl.topology.copy_rates import CopyRates
from tests.dgcl.multihost.conftest import PoolMaker
from tests.dgcl.multihost.layouts import crossing_edges, measure, small_world
from tests.support.samples import named

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
EDGES = small_world(6000)
ROW_BYTES = 4096
RATES = CopyRates(4.0, 6.0)


@pytest.mark.parametrize("method", ["direct", "auto"])
@named("ranks, cards", {"one for each": ([2, 2], [0, 1]), "one for two and one": ([3, 2], [0, 0, 1])})
def test_every_card_counts_what_its_ranks_send(
    ranks: list[int], cards: list[int], method: str, host_pool: PoolMaker
):
    found = measure(host_pool(ranks, 40.0, cards), EDGES, "by hosts", method, row_bytes=ROW_BYTES)
    assert len(found["cards"]) == sum(len(set(cards[:count])) for count in ranks)
    for place, card in found["cards"].items():
        assert card["counted"] == pytest.approx(card["sent"], rel=0.02), (place, card)


@pytest.mark.parametrize("parts", ["flat", "by hosts"])
def test_planning_sends_less_between_hosts_than_peer_to_peer(parts: str, host_pool: PoolMaker):
    pool = host_pool([2, 2], 40.0, [0, 1])
    direct, planned = (measure(pool, EDGES, parts, method, calls=1) for method in ("direct", "auto"))
    assert planned["edges"] == direct["edges"]
    assert planned["rows"] < direct["rows"]
    assert planned["predicted"] < direct["predicted"]


@pytest.mark.parametrize("ranks", [[3, 1], [1, 1, 2]], ids=str)
def test_unequal_hosts_that_are_found_out_are_planned_as_well_as_those_told(
    ranks: list[int], host_pool: PoolMaker
):
    """The ranks do not know how slow the links are, but that rows should cross them once."""
    pool = host_pool(ranks, 40.0)
    told, found = (
        measure(pool, EDGES, "by hosts", "auto", calls=1, gathered=gathered, rates=RATES)
        for gathered in (False, True)
    )
    assert found["predicted"] == pytest.approx(told["predicted"], rel=0.1)


def test_edges_between_hosts_are_counted_by_both_ends():
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    assert crossing_edges(edges, np.array([0, 1, 2, 3]), [0, 0, 1, 1]) == 2
    assert crossing_edges(edges, np.array([0, 0, 2, 2]), [0, 0, 1, 1]) == 2
    assert crossing_edges(edges, np.array([0, 1, 2, 3]), [0] * 4) == 0
