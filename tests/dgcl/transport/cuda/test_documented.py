"""What docs/gpu.md says of a call is what the code enqueues."""

import re
from pathlib import Path

from tests.support.fake_ranks import Rank, on_devices
from tests.support.plans import make_world

ONE_STAGE = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
PAGE = Path(__file__).resolve().parents[4] / "docs" / "gpu.md"


def test_operations_per_call():
    """Counted by the driver: what a call's stream is given between its begin and its end."""

    def body(rank: Rank) -> dict[str, list[str]]:
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
    rows = re.findall(r"\| (expand|fold) \| ([a-z_, ]+) \| (\d+) \|", PAGE.read_text())
    assert {verb for verb, _, _ in rows} == {"expand", "fold"}
    for verb, names, count in rows:
        for mine in enqueued:
            assert mine[verb] == names.split(", ")
            assert len(mine[verb]) == int(count) <= 5
