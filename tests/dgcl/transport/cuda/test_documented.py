"""What docs/gpu.md says of a call is what the code enqueues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dgcl.support_plans import make_world
from tests.dgcl.transport.cuda.fake_ranks import Rank, on_devices

ONE_STAGE = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
PAGE = Path(__file__).resolve().parents[4] / "docs" / "gpu.md"


@pytest.mark.parametrize("stream_waits", [False, True], ids=["kernels-wait", "streams-wait"])
def test_operations_per_call(stream_waits: bool) -> None:
    """Counted by the driver: what a call's stream is given between its begin and its end."""

    def body(rank: Rank) -> dict[str, list[str]]:
        rank.exchange._stream_waits = stream_waits  # as where processes share a device
        found = {}
        for _ in range(2):  # nothing is made in second calls
            for verb, run in {
                "expand": lambda: rank.exchange.expand(rank.owned(3)),
                "fold": lambda: rank.exchange.fold(rank.local(3)),
            }.items():
                before = len(rank.fake.enqueued)
                run()
                found[verb] = [name for stream, name in rank.fake.enqueued[before:] if stream == rank.stream]
        rank.wait()
        return found

    assert ONE_STAGE.programs[0].num_stages == 1
    enqueued = on_devices(ONE_STAGE, body, shared=False)[0]
    text = PAGE.read_text()
    rows = re.findall(r"\| (expand|fold) \| ([a-z_, ]+) \| (\d+) \|", text)
    assert {verb for verb, _, _ in rows} == {"expand", "fold"}
    beside = re.search(
        r"the same two calls are (\d+) and (\d+) operations beside the waits of the stream", text
    )
    assert beside is not None
    for (verb, names, count), more in zip(rows, beside.groups(), strict=True):
        for mine in enqueued:
            operations = [name for name in mine[verb] if name != "wait"]
            if stream_waits:
                assert len(operations) == int(more)
                assert len(mine[verb]) == int(more) + 2  # one peer, ready and done
            else:
                assert mine[verb] == names.split(", ")
                assert len(operations) == int(count) <= 5
