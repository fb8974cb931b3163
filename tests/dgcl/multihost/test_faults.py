"""Hosts that vanish, links that go down for a while or almost stand still: every rank says what happened, in time."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dgcl.multihost.hosts import Hosts, missing

pytestmark = [pytest.mark.multihost, pytest.mark.slow, pytest.mark.xdist_group("alone")]
MODULE = "tests.dgcl.multihost.rank_main"
RANKS = [2, 1]
SOON = 60.0  # seconds beyond a deadline, on a busy machine
#: What an error calls the place where a rank was.
STAGES = ("stage ", "over the control group", "cannot connect to each other")

#: What ranks do, and the seconds that one waits for another then; set-up has whole graphs to send.
CALLS, SET_UP = ("until_it_fails", 10.0), ("set_up_until_it_fails", 12.0)


def during(*kinds: Any) -> pytest.MarkDecorator:
    """What the ranks are doing; the other is tried with all matrices."""
    both = {"during calls": CALLS, "during set-up": SET_UP}
    return pytest.mark.parametrize(
        "what, timeout",
        [
            pytest.param(*kind, id=name, marks=() if kind in kinds else pytest.mark.matrix)
            for name, kind in both.items()
        ],
    )


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    with Hosts(len(RANKS), 20.0) as made:
        yield made


def wait_until(what: Callable[[], bool], seconds: float, words: str):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"{words}: not after {seconds:g} s"
        time.sleep(0.05)


def calls_made(folder: Path) -> int:
    """What every rank has got to."""
    files = [folder / f"calls{rank}" for rank in range(sum(RANKS))]
    return min(int(file.read_text() or 0) if file.exists() else 0 for file in files)


def start(hosts: Hosts, folder: Path, what: str, timeout: float):
    hosts.start(RANKS, MODULE, str(folder), f"{what}:{timeout}")

    def under_way() -> bool:
        hosts.check_running()
        return calls_made(folder) >= 3

    wait_until(under_way, 240, "three times")


def endings(folder: Path, ranks: list[int], timeout: float) -> dict[int, dict[str, Any]]:
    """How these ranks ended; they say so without the network."""
    wait_until(
        lambda: all((folder / str(rank)).exists() for rank in ranks), 3 * timeout + 4 * SOON, "the end"
    )
    answers = {rank: json.loads((folder / str(rank)).read_text()) for rank in ranks}
    return {rank: next(iter(answer.values())) for rank, answer in answers.items()}


def check(ending: dict[str, Any], rank: int, since: float, limit: float):
    connecting = "cannot connect to each other" in ending["text"]  # torch does not say which rank is missing
    assert ending["kind"] in ("CommTimeoutError", "PeerLostError") or connecting, ending
    assert f"rank {rank}" in ending["text"], ending
    assert connecting or any(f"rank {other}" in ending["text"] for other in range(3) if other != rank), ending
    assert any(word in ending["text"] for word in STAGES), ending
    assert ending["when"] - since < limit, ending
    assert ending["closing"] < SOON, ending


@during(SET_UP)
def test_a_host_that_is_cut_off(what: str, timeout: float, hosts: Hosts, tmp_path):
    start(hosts, tmp_path, what, timeout)
    since = time.time()
    hosts.cut_off(1)
    for rank, ending in endings(tmp_path, [0, 1, 2], timeout).items():
        check(ending, rank, since, timeout + SOON)


@during(CALLS)
def test_a_host_whose_processes_vanish(what: str, timeout: float, hosts: Hosts, tmp_path):
    start(hosts, tmp_path, what, timeout)
    since = time.time()
    os.kill(hosts.process(1), signal.SIGKILL)
    for rank, ending in endings(tmp_path, [0, 1], timeout).items():
        if what == "until_it_fails":
            check(ending, rank, since, SOON)  # long before the deadline
            assert "rank 2 has died" in ending["text"], ending
        else:  # ranks that wait in the store for where another can be reached are not told that it has died
            check(ending, rank, since, timeout + SOON)


@during(CALLS)
def test_what_goes_on_and_a_link_that_almost_stands_still(what: str, timeout: float, hosts: Hosts, tmp_path):
    """A link that is down for a while, a host that stands still for a while and a slow link are waited for."""
    start(hosts, tmp_path, what, timeout)

    def goes_on(words: str):
        before = calls_made(tmp_path)

        def gone_on() -> bool:
            ended = [path.read_text() for rank in range(3) if (path := tmp_path / str(rank)).exists()]
            assert not ended, f"after {words}: {ended}"
            return calls_made(tmp_path) >= before + 2

        wait_until(gone_on, 240, f"two more after {words}")

    hosts.cut_off(1)
    time.sleep(0.7)
    hosts.restore(1)
    goes_on("the link was down")
    hosts.pause(1, True)
    time.sleep(1.5)
    hosts.pause(1, False)
    goes_on("the host stood still")
    hosts.limit(1, 10.0)
    goes_on("the link became slow")
    since = time.time()
    hosts.limit(1, 0.02)  # a slice of 1 MB takes most of a minute
    for rank, ending in endings(tmp_path, [0, 1, 2], timeout).items():
        check(ending, rank, since, 2 * timeout + SOON)
