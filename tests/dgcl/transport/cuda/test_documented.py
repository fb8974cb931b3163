"""What docs/gpu.md says of a call is what the code enqueues."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dgcl.support_plans import make_world
from tests.dgcl.transport.cuda.fake_ranks import Rank, on_devices

PAGE = Path(__file__).resolve().parents[4] / "docs" / "gpu.md"


def test_operations_per_call() -> None:
    def body(rank: Rank) -> dict[str, list[str]]:
        rank.exchange.expand(rank.owned(3))
        rank.exchange.fold(rank.local(3))
        rank.wait()
        names = [kind._lists[0]._prepared._names for kind in rank.exchange._kinds.values()]
        return dict(zip(("expand", "fold"), names, strict=True))

    world = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
    enqueued = on_devices(world, body, shared=False)[0][0]
    rows = re.findall(r"\| (expand|fold) \| ([a-z, ]+) \| (\d+) \|", PAGE.read_text())
    assert {verb for verb, _, _ in rows} == {"expand", "fold"}
    for verb, names, count in rows:
        assert names.split(", ") == [re.sub(r"_.*", "", name) for name in enqueued[verb]]
        assert len(enqueued[verb]) == int(count)
