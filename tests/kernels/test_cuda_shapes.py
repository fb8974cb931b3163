import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.kernels.cuda_shapes import deal_blocks, unit_of
from dgcl.kernels.cuda_tables import TASK, arrival_pointers, records


@pytest.mark.parametrize(
    "row_bytes, addresses, unit",
    [
        (256, (4096, 512), 16),
        (2408, (4096,), 8),  # 602 float32
        (4, (4096,), 4),
        (258, (4096,), 2),  # 129 bfloat16
        (13, (4096,), 1),
        (256, (4096, 520), 8),
        (256, (4100, 520), 4),
        (256, (4098,), 2),
        (256, (4097,), 1),
        (48, (16, 32, 48), 16),
    ],
)
def test_unit_is_what_all_addresses_allow(row_bytes: int, addresses: tuple[int, ...], unit: int):
    assert unit_of(row_bytes, *addresses) == unit


def test_a_unit_holds_an_element():
    with pytest.raises(
        ValueError, match=r"addresses: expected multiples of the element size, 4 bytes.*0x1002"
    ):
        unit_of(256, 0x1000, 0x1002, item_bytes=4)


@given(
    num_units=st.lists(st.integers(0, 10**7), min_size=0, max_size=40),
    max_blocks=st.integers(1, 600),
    units_per_block=st.integers(1, 4096),
)
def test_blocks_are_dealt_by_work(num_units: list[int], max_blocks: int, units_per_block: int):
    table = deal_blocks(num_units, max_blocks, units_per_block)
    busy = [task for task, units in enumerate(num_units) if units]
    assert len(table) <= max(max_blocks, len(busy))
    assert len(table) <= sum(-(-units // units_per_block) for units in num_units)
    for task, units in enumerate(num_units):
        mine = table[table["task"] == task]
        assert np.array_equal(np.sort(mine["part"]), np.arange(len(mine)))
        assert (mine["parts"] == len(mine)).all()
        assert (len(mine) > 0) == (units > 0)
    # Who has more work has as many blocks, but for rounding.
    counts = np.bincount(table["task"], minlength=len(num_units))
    for one in busy:
        for other in busy:
            if num_units[one] >= num_units[other]:
                assert counts[one] + 1 >= counts[other]


@pytest.mark.parametrize("num_peers", [2, 3, 7])
def test_blocks_of_peers_alternate(num_peers: int):
    table = deal_blocks([10**6] * num_peers, 40 * num_peers, 64)
    rounds = table["task"].reshape(-1, num_peers)
    assert (np.sort(rounds, axis=1) == np.arange(num_peers)).all()


def test_a_large_peer_leaves_room_for_a_small_one():
    table = deal_blocks([10**9, 1], 264, 1024)
    assert np.bincount(table["task"]).tolist() == [263, 1]
    assert 0 < np.flatnonzero(table["task"] == 1)[0] < 263


@pytest.mark.parametrize("max_blocks, units_per_block", [(0, 1), (1, 0)])
def test_blocks_need_room(max_blocks: int, units_per_block: int):
    with pytest.raises(ValueError, match=f"at least 1, got {max_blocks} and {units_per_block}"):
        deal_blocks([1], max_blocks, units_per_block)


def test_arrival_pointers_bound_each_row():
    rows = np.array([1, 1, 1, 4, 6, 6], np.int32)
    assert arrival_pointers(rows, 8).tolist() == [0, 0, 3, 3, 3, 4, 4, 6, 6]
    assert arrival_pointers(np.empty(0, np.int32), 2).tolist() == [0, 0, 0]


def test_records_fill_in_zeros():
    table = records(TASK, [{"count": 3, "source": -1}, {}])
    assert table["count"].tolist() == [3, 0]
    assert table["source"].tolist() == [-1, 0]
    assert table.view(np.int64).sum() == 2
