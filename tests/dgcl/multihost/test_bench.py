"""``dgcl bench`` between machines: every element is right, copies stay on a machine, and rank 0 alone prints."""

import functools
import json
from typing import Any

import pytest

from dgcl.bench.measure import measure
from dgcl.bench.problems import from_pattern
from dgcl.bench.records import Case, Settings
from dgcl.topology import resolve_topology
from tests.dgcl.multihost.conftest import PoolMaker
from tests.dgcl.multihost.hosts import Hosts, missing

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("hosts")]

METHODS = ("direct", "spst", "halo", "gloo", "gloo-halo")


def bench(methods: tuple[str, ...]) -> Any:
    settings = Settings(methods, resolve_topology("uniform", 4), iterations=6, warmup=1)
    case = Case(functools.partial(from_pattern, "alltoall", 4, 7), (3,))
    return measure([case], settings, lambda record: None)


def test_rows_that_cross_a_network_are_measured_and_verified(host_pool: PoolMaker):
    found, *others = host_pool([2, 2]).run(bench, METHODS)
    assert others == [None] * 3
    assert tuple(line.method for line in found.lines) == METHODS
    for line in found.lines:
        assert (line.busiest, line.halo_rows) == (21 * 12, 84)
        for timing in (line.forward, line.backward):
            assert timing.wrong == 0
            assert sum(timing.calls) / len(timing.calls) == pytest.approx(timing.seconds)
        assert line.copy.seconds > 0


@pytest.mark.matrix
def test_under_torchrun(tmp_path):
    why = missing()
    if why is not None:
        pytest.skip(why)
    out = tmp_path / "out.json"
    with Hosts(2) as hosts:
        hosts.torchrun([1, 1], "dgcl", *f"bench -b 64 -e 4K -f 8 -n 3 -w 1 -J {out}".split())
    value = json.loads(out.read_text())
    assert [line["size"] for line in value["lines"]] == [64, 512, 4096]
    assert value["wrong"] == 0
    assert len({rank["host"] for rank in value["ranks"]}) == 2
