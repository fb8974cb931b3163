"""``--place``: chooses which part runs on which device before planning, and prints the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgcl.cli.output import seconds, step

if TYPE_CHECKING:
    from dgcl.planner import PlanOptions, Relation
    from dgcl.planner.placement import Placement
    from dgcl.topology import Topology


def find_placement(relation: Relation, topology: Topology, options: PlanOptions | None = None) -> Placement:
    """Search for a better device for each part."""
    from dgcl.planner.placement import place

    with step(f"placing {relation.world_size} parts on {topology.name}"):
        return place(relation, topology, options)


def placement_facts(placement: Placement) -> dict[str, Any]:
    """The placement as JSON values; seconds are null where rows cannot get where they must."""
    before, after = (
        value if value < float("inf") else None
        for value in (placement.seconds_before, placement.seconds_after)
    )
    return {
        "device_of_part": placement.device_of_part.tolist(),
        "seconds_before": before,
        "seconds_after": after,
    }


def placement_line(placement: Placement) -> str:
    """One line: what moved, and what that gained."""
    if not placement.moves:
        return "every part stays where it is: no placement found is faster"
    before = "impossible" if placement.seconds_before == float("inf") else seconds(placement.seconds_before)
    order = " ".join(map(str, placement.device_of_part.tolist()))
    gain = placement.seconds_before / placement.seconds_after
    times = "" if gain == float("inf") else f", {gain:.3f} x faster"
    return f"part p goes on device [{order}][p]: {before} before, {seconds(placement.seconds_after)} after{times}"
