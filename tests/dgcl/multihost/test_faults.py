"""Hosts that vanish, links that go down for a while or almost stand still: every rank says what happened, in time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dgcl.multihost.hosts import Hosts, missing

pytestmark = [pytest.mark.multihost, pytest.mark.slow]
MODULE = "tests.dgcl.multihost.rank_main"
RANKS = [2, 1]
TIMEOUT = 6.0  # that a rank waits for another
SOON = 6.0  # beyond that, on a busy machine


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    with Hosts(len(RANKS), 20.0) as made:
        yield made


def wait_until(what: Callable[[], bool], seconds: float, words: str) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"{words}: not after {seconds:g} s"
        time.sleep(0.05)


def calls_made(folder: Path) -> int:
    """What every rank has got to."""
    files = [folder / f"calls{rank}" for rank in range(sum(RANKS))]
    return min(int(file.read_text() or 0) if file.exists() else 0 for file in files)


def start(hosts: Hosts, folder: Path) -> None:
    hosts.start(RANKS, MODULE, str(folder), f"until_it_fails:{TIMEOUT}")

    def under_way() -> bool:
        hosts.check_running()
        return calls_made(folder) >= 3

    wait_until(under_way, 90, "three calls")


def endings(folder: Path, ranks: list[int]) -> dict[int, dict[str, Any]]:
    """How these ranks ended; they say so without the network."""
    wait_until(lambda: all((folder / str(rank)).exists() for rank in ranks), TIMEOUT + 4 * SOON, "the end")
    return {rank: json.loads((folder / str(rank)).read_text())["until_it_fails"] for rank in ranks}


def check(ending: dict[str, Any], rank: int, since: float, limit: float) -> None:
    assert ending["kind"] in ("CommTimeoutError", "PeerLostError"), ending
    assert f"rank {rank}" in ending["text"]
    assert ending["when"] - since < limit, ending
    assert ending["closing"] < 5, ending


def test_a_host_that_is_cut_off(hosts: Hosts, tmp_path: Path) -> None:
    start(hosts, tmp_path)
    since = time.time()
    hosts.cut_off(1)
    for rank, ending in endings(tmp_path, [0, 1, 2]).items():
        check(ending, rank, since, TIMEOUT + SOON)


def test_a_host_whose_processes_vanish(hosts: Hosts, tmp_path: Path) -> None:
    start(hosts, tmp_path)
    since = time.time()
    os.kill(hosts.process(1), signal.SIGKILL)
    for rank, ending in endings(tmp_path, [0, 1]).items():
        check(ending, rank, since, SOON)  # long before the deadline
        assert "rank 2 has died or its connection broke" in ending["text"]


def test_a_link_that_is_down_for_a_while_and_one_that_almost_stands_still(
    hosts: Hosts, tmp_path: Path
) -> None:
    start(hosts, tmp_path)
    hosts.cut_off(1)
    time.sleep(0.7)
    hosts.restore(1)
    before = calls_made(tmp_path)
    wait_until(lambda: calls_made(tmp_path) >= before + 3, 60, "three more calls")
    since = time.time()
    hosts.limit(1, 0.02)  # a slice of 1 MB takes most of a minute
    for rank, ending in endings(tmp_path, [0, 1, 2]).items():
        check(ending, rank, since, 2 * TIMEOUT + SOON)
