"""Which ranks share memory."""

import itertools

import networkx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dgcl
from dgcl.ranks.context import context
from dgcl.ranks.machines import places_of_ranks, several_machines
from dgcl.ranks.memory_reach import _can_open, _lowest_connected, ranks_that_share_memory
from dgcl.transport.common.segments import SegmentFile
from tests.support.samples import named


def test_threads_share_memory():
    def run() -> tuple[list[int], bool]:
        control = context.require_control()
        return ranks_that_share_memory(control), several_machines(places_of_ranks(control))

    assert dgcl.launch(run, 3) == [([0, 0, 0], False)] * 3


@named("process, token", {"another's": (None, b"somebody"), "no process": (2**22 + 1, b"expected")})
def test_what_is_found_must_be_what_was_put_there(process: int | None, token: bytes):
    file = SegmentFile()
    file.grow(8).memory[:8] = np.frombuffer(b"expected", np.uint8)
    own, descriptor = file.handle
    assert _can_open((own, descriptor), b"expected")
    assert not _can_open((own if process is None else process, descriptor), token)
    file.close()


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_ranks_are_together_that_open_each_other(can_open: list[list[bool]]):
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(can_open)))
    pairs = itertools.combinations(range(len(can_open)), 2)
    graph.add_edges_from((a, b) for a, b in pairs if can_open[a][b] and can_open[b][a])
    expected = {rank: min(group) for group in networkx.connected_components(graph) for rank in group}
    assert _lowest_connected(can_open) == [expected[rank] for rank in range(len(can_open))]
