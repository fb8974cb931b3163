"""What connections twice and half as fast would bring, and plans side by side; worked out by hand."""

import pytest

from dgcl.planner import PlanOptions, Relation, make_plan
from dgcl.planner.reading.plan_table import side_by_side
from dgcl.planner.reading.sensitivity import sensitivity
from dgcl.topology import Connection, Device, Topology


def test_by_hand():
    """Rank 0 sends 8 GB to 1 by a wire of 4 GB/s, and 6 GB to 2 over two wires of 6 and 2 GB/s."""
    wires = [
        ("fast", "NV", "g0", "g1", 4.0),
        ("up", "PCIe", "g0", "s", 6.0),
        ("down", "PCIe", "g2", "s", 2.0),
    ]
    machine = Topology(
        "three", tuple(Device(f"g{r}") for r in range(3)), tuple(Connection(*wire) for wire in wires)
    )
    options = PlanOptions(row_bytes=10**9)
    plan = make_plan(Relation.from_classes(3, [(0, {1}, 8), (0, {2}, 6)]), machine, "direct", options)
    rows = sensitivity(plan, PlanOptions()).rows
    assert [row[:3] for row in rows] == [
        ("NV", 1, "made anew"),
        ("PCIe", 2, "made anew"),
        *((name, 1, "the same") for name in ("down", "fast", "up")),
    ]
    # Half as fast, the bound, twice as fast, the bound: all of it must cross the wire that is slowest then.
    seconds = [(4, 4, 3, 3), (6, 6, 2, 2), (6, 6, 2, 2), (4, 4, 3, 3), (3, 3, 3, 3)]
    assert [value for row in rows for value in row[3:]] == pytest.approx(
        [value for row in seconds for value in row]
    )
    limit = plan.meta["limited_by"]
    assert side_by_side([[plan, plan]]).rows == [("three", 3, "direct", 6.0, 6.0, 2, 28 * 10**9, limit)]
