"""Plan files: their arrays, and checks of what untrusted ones hold.

The layout is that of docs/plan-format.md ("Arrays"): an npz, its text deflated, readable with numpy and json alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from dgcl.planner.arrays import require_length, require_pointers, require_range
from dgcl.planner.npz import ArraySpec
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.topology.arrays import LinkNumbers
from dgcl.topology.json_form import parse_json

SCHEMA = "dgcl-plan/2"

# Name and dtype of each array, in the order in which the fingerprint takes them.
ARRAYS = {
    "class_source": ArraySpec("<i4", 1),
    "class_dests": ArraySpec("<u8", 2),
    "class_count": ArraySpec("<i8", 1),
    "tree_class": ArraySpec("<i4", 1),
    "tree_count": ArraySpec("<i8", 1),
    "edge_ptr": ArraySpec("<i8", 1),
    "edge_src": ArraySpec("<i4", 1),
    "edge_dst": ArraySpec("<i4", 1),
    "edge_stage": ArraySpec("<i4", 1),
    "link_src": ArraySpec("<i4", 1),
    "link_dst": ArraySpec("<i4", 1),
    "link_ptr": ArraySpec("<i8", 1),
    "link_route": ArraySpec("<i4", 1),
}
#: All that is in a plan file.
FILE = {**ARRAYS, "meta": ArraySpec("unicode", 0)}


def check_ranges(
    relation: Relation, trees: Trees, links: LinkNumbers, num_devices: int, num_connections: int
) -> None:
    """Raise ValueError unless every class, rank, stage and connection is in range: readers of a plan index by them."""
    world, num_links = relation.world_size, links.src.shape[0]
    if num_devices != world:
        raise ValueError(f"meta.topology has {num_devices} devices for {world} ranks")
    require_range("tree_class", trees.tree_class, 0, relation.num_classes, "a class")
    require_range("edge_src", trees.edge_src, 0, world, "a rank")
    require_range("edge_dst", trees.edge_dst, 0, world, "a rank")
    require_range("edge_stage", trees.edge_stage, 0, max(1, world - 1), "a stage")
    require_length("link_dst", links.dst, num_links, "one per link")
    require_length("link_ptr", links.ptr, num_links + 1, "one per link, plus one")
    require_pointers("link_ptr", links.ptr, links.route.shape[0])
    require_range("link_src", links.src, 0, world, "a rank")
    require_range("link_dst", links.dst, 0, world, "a rank")
    require_range("link_route", links.route, 0, num_connections, "a connection")


def parse_meta(text: str) -> dict[str, Any]:
    """Parse and check a plan's meta object.

    Raises:
        ValueError: Not JSON, a missing or unknown schema, or a field of a wrong type or range; names the field.
    """
    try:
        meta = parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"meta is not JSON: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"meta must be a JSON object (got {type(meta).__name__})")
    if meta.get("schema") != SCHEMA:
        raise ValueError(f"meta.schema must be {SCHEMA!r} (got {meta.get('schema')!r})")
    for key, low in (("world_size", 1), ("row_bytes", 1), ("seed", 0)):
        _whole(meta, key, low)
    for key in ("predicted_seconds", "lower_bound_seconds", "gap", "planning_seconds"):
        _seconds(f"meta.{key}", _field(meta, key))
    if _field(meta, "direct_seconds") is not None:
        _seconds("meta.direct_seconds", meta["direct_seconds"])
    stages = _field(meta, "stage_seconds")
    if not isinstance(stages, list):
        raise ValueError(f"meta.stage_seconds must be a list (got {type(stages).__name__})")
    for k, value in enumerate(stages):
        _seconds(f"meta.stage_seconds[{k}]", value)
    for key in ("method", "version", "fingerprint"):
        if not isinstance(_field(meta, key), str):
            raise ValueError(f"meta.{key} must be a string (got {meta[key]!r})")
    if not isinstance(_field(meta, "topology"), dict):
        raise ValueError(f"meta.topology must be an object (got {type(meta['topology']).__name__})")
    return meta


def _field(meta: Mapping[str, Any], key: str) -> Any:
    if key not in meta:
        raise ValueError(f"meta.{key} is missing")
    return meta[key]


def _whole(meta: Mapping[str, Any], key: str, low: int) -> None:
    value = _field(meta, key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 53:
        raise ValueError(f"meta.{key} must be an integer >= {low} and < 2**53 (got {value!r})")


def _seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number (got {value!r})")
    if isinstance(value, int) and not 0 <= value < 1 << 53:
        raise ValueError(f"{name} must be >= 0 and < 2**53 (got {value!r})")
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and >= 0 (got {value!r})")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
