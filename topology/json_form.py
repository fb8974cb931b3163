"""Converts topologies to and from JSON objects of schema ``dgcl-topology/1``, and parses JSON strictly.

Nothing is guessed: unknown, missing and duplicate keys, wrong types and numbers out of range (NaN and infinity too) are
errors with the path of the item: ``connections[3].bandwidth of 'w' must be a positive number (got -1)``. One key more
than the schema's is accepted and ignored: ``"about"``, an object (:mod:`dgcl.topology.json_io`).
Called by `model`, `json_io` and `planner/plan_io`. Free to change while every topology survives a round trip, and any
wrong value is refused in one line with its path (`tests/topology/test_json_io.py`), in time that grows with the text's
length only (`tests/topology/importers/test_long_inputs.py`).
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from dgcl.topology.checks import check_num_devices, nearest, shown
from dgcl.topology.parts import Connection, Device, Link

SCHEMA = "dgcl-topology/1"

_TOPOLOGY_KEYS = ("schema", "name", "devices", "connections"), ("links", "about")
_DEVICE_KEYS = ("name",), ("machine", "socket", "model")
_CONNECTION_KEYS = ("name", "kind", "a", "b", "bandwidth"), ("latency", "duplex")
_LINK_KEYS = ("src", "dst", "route"), ()

_Item = TypeVar("_Item")


#: Name, devices, connections, and links, None where they are to be derived.
Description: TypeAlias = tuple[Any, tuple[Device, ...], tuple[Connection, ...], tuple[Link, ...] | None]


def description_from_json(obj: dict[str, Any]) -> Description:
    """Return what a parsed JSON object describes; names and links are not yet checked against each other.

    Raises:
        ValueError: Not of the schema; names the path of what is wrong.
    """
    _check_object(obj, "the topology", _TOPOLOGY_KEYS)
    if obj["schema"] != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA!r} (got {shown(obj['schema'])})")
    if not isinstance(obj.get("about", {}), dict):
        raise ValueError(f"about must be an object (got {shown(obj['about'])})")
    devices = _items(obj, "devices", _DEVICE_KEYS, lambda item: Device(**item))
    connections = _items(obj, "connections", _CONNECTION_KEYS, lambda item: Connection(**item))
    links = _items(obj, "links", _LINK_KEYS, _link) if "links" in obj else None
    return obj["name"], devices, connections, links


def description_to_json(
    name: str, devices: Sequence[Device], connections: Sequence[Connection], links: Sequence[Link]
) -> dict[str, Any]:
    """Return the JSON object of a topology, every field written out."""
    return {
        "schema": SCHEMA,
        "name": name,
        "devices": [{key: value for key, value in vars(device).items() if value != ""} for device in devices],
        "connections": [dict(vars(connection)) for connection in connections],
        "links": [{"src": link.src, "dst": link.dst, "route": list(link.route)} for link in links],
    }


def parse_json(text: str, **options: Any) -> Any:
    """Return the value of a JSON text; options are those of :func:`json.loads`.

    Raises:
        json.JSONDecodeError: Not JSON.
        ValueError: An object with a key twice, nested too deeply, or an integer of too many digits.
    """

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"an object has the key {shown(twice)} twice")
        return entries

    try:
        return json.loads(text, object_pairs_hook=make_object, **options)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _items(
    obj: dict[str, Any],
    field: str,
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    make: Callable[[dict[str, Any]], _Item],
) -> tuple[_Item, ...]:
    if not isinstance(obj[field], list):
        raise ValueError(f"{field} must be a list (got {shown(obj[field])})")
    if field == "devices":
        check_num_devices(len(obj[field]), "it")
    items = []
    for index, item in enumerate(obj[field]):
        where = f"{field}[{index}]"
        _check_object(item, where, keys)
        try:
            items.append(make(item))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}.{error}") from None
    return tuple(items)


def _link(item: dict[str, Any]) -> Link:
    if not isinstance(item["route"], list):
        raise ValueError(f"route must be a list of connection names (got {shown(item['route'])})")
    return Link(**item)


def _check_object(value: object, where: str, keys: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """A JSON object with all required keys, and none but the required and optional ones."""
    required, optional = keys
    if isinstance(value, dict) and tuple(value) == required:
        return  # the usual case of a million links
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} must be an object with the keys {', '.join(required)} (got {shown(value)})"
        )
    for key in required:
        if key not in value:
            raise ValueError(f"{where} has no {key!r}; it needs {', '.join(required)}")
    for key in value:
        if key not in required and key not in optional:
            hint = nearest(str(key), (*required, *optional))
            raise ValueError(f"{where} has an unknown key {shown(key)}{hint}")
