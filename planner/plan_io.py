"""Defines what plan files hold: arrays, the checked meta object, and the fingerprint over both.

The layout is that of docs/plan-format.md ("Arrays"): an npz, its text deflated, readable with numpy and json alone.
Called by `plan`, `planner/methods/registry`, `planner/verify/check_plan`, `dgcl/prepare/cache` and
`dgcl/prepare/part_files`. Free to change while broken arrays and meta are refused by name
(`tests/planner/test_plan_files.py`), and the fingerprint is that of the recipe in its docstring
(`tests/planner/verify/test_check.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dgcl.planner.array_types import require_range
from dgcl.planner.npz import ArraySpec
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.topology.checks import check_index, check_name, check_number
from dgcl.topology.json_form import parse_json

SCHEMA = "dgcl-plan/1"

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
}
#: All that is in a plan file.
FILE = {**ARRAYS, "meta": ArraySpec("unicode", 0)}
_UNSIGNED = frozenset({"planning_seconds", "version", "fingerprint"})
_LINKS = 1 << 12  # of a topology, whose JSON is made at a time


def plan_arrays(relation: Relation, trees: Trees) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a plan file under their names in it."""
    return {
        name: getattr(relation, name[6:]) if name.startswith("class_") else getattr(trees, name)
        for name in ARRAYS
    }


def fingerprint(arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> str:
    """Return the hex sha256 of a plan.

    The bytes hashed, in this order:

    1. for each of class_source, class_dests, class_count, tree_class, tree_count, edge_ptr, edge_src,
       edge_dst, edge_stage: the ASCII line ``"NAME DTYPE SHAPE\\n"``, where DTYPE is numpy's little-endian
       code (``<i4``, ``<u8``, ``<i8``) and SHAPE the sizes in decimal joined by commas; then the array's
       little-endian bytes in C order;
    2. the meta object without the keys planning_seconds, version and fingerprint, as ASCII JSON with sorted
       keys and no spaces: ``json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False)``.
       (Python writes a float with the fewest digits that read back as the same float.)
    """
    digest = hashlib.sha256()
    for name, spec in ARRAYS.items():
        array = np.ascontiguousarray(arrays[name], dtype=spec.dtype)
        digest.update(f"{name} {spec.dtype} {','.join(map(str, array.shape))}\n".encode("ascii"))
        digest.update(array.data.cast("B") if array.size else b"")
    for text in _object_texts({key: value for key, value in meta.items() if key not in _UNSIGNED}):
        digest.update(text)
    return digest.hexdigest()


def _object_texts(obj: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the JSON of an object as :func:`fingerprint` takes it, in pieces: a topology may have a million links."""
    yield b"{"
    for number, key in enumerate(sorted(obj)):
        yield b"," * (number > 0) + _text(key) + b":"
        value = obj[key]
        if key == "topology" and isinstance(value, dict):
            yield from _object_texts(value)
        elif key == "links" and isinstance(value, list):
            yield b"["
            for start in range(0, len(value), _LINKS):
                some = value[start : start + _LINKS]
                yield b"," * (start > 0) + (_links_text(some) or _text(some)[1:-1])
            yield b"]"
        else:
            yield _text(value)
    yield b"}"


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _links_text(links: list[Any]) -> bytes | None:
    """Return what :func:`_text` does without the brackets, several times as fast; None for links that are unusual."""
    names, texts = 0, list[str]()
    try:
        for link in links:
            route = link["route"]
            if len(link) != 3 or type(route) is not list:
                return None
            names += len(route)
            texts += (
                '"},{"dst":"',
                link["dst"],
                '","route":["',
                '","'.join(route),
                '"],"src":"',
                link["src"],
            )
        text = "".join(texts)[3:].encode("ascii") + b'"}'
    except (KeyError, TypeError, UnicodeEncodeError):
        return None
    code = np.frombuffer(text, np.uint8)
    plain = b"\\" not in text and text.count(b'"') == 10 * len(links) + 2 * names
    return text if plain and code.min() >= 32 and code.max() < 127 else None


def check_ranges(relation: Relation, trees: Trees) -> None:
    """Raise ValueError unless every class, rank and stage in ``trees`` is in range: readers of a plan index by them."""
    world = relation.world_size
    require_range("tree_class", trees.tree_class, 0, relation.num_classes, "a class")
    require_range("edge_src", trees.edge_src, 0, world, "a rank")
    require_range("edge_dst", trees.edge_dst, 0, world, "a rank")
    require_range("edge_stage", trees.edge_stage, 0, max(1, world - 1), "a stage")


def parse_meta(text: str) -> dict[str, Any]:
    """Parse and check a plan's meta object.

    Raises:
        ValueError, TypeError: Not JSON, a missing or unknown schema, or a field of a wrong type or range; names the
            field.
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
        check_index(_field(meta, key), f"meta.{key}", low, (1 << 53) - 1)
    for key in ("predicted_seconds", "lower_bound_seconds", "gap", "planning_seconds", "direct_seconds"):
        value = _field(meta, key)
        if value is not None or key != "direct_seconds":
            check_number(value, f"meta.{key}", positive=False)
    stages = _field(meta, "stage_seconds")
    if not isinstance(stages, list):
        raise ValueError(f"meta.stage_seconds must be a list (got {type(stages).__name__})")
    for k, value in enumerate(stages):
        check_number(value, f"meta.stage_seconds[{k}]", positive=False)
    for key in ("method", "version", "fingerprint"):
        check_name(_field(meta, key), f"meta.{key}")
    topology = _field(meta, "topology")
    if not isinstance(topology, dict) or not isinstance(topology.get("links"), list):
        raise ValueError("meta.topology must be a topology object that lists its links explicitly")
    return meta


def _field(meta: Mapping[str, Any], key: str) -> Any:
    if key not in meta:
        raise ValueError(f"meta.{key} is missing")
    return meta[key]


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
