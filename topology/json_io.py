"""Topologies as JSON, schema ``dgcl-topology/1``: read strictly, written for people to read and compare.

Nothing is guessed. Unknown, missing and duplicate keys, wrong types and numbers that are out of range (NaN
and Infinity too) are errors that name the path of the item: ``connections[3].bandwidth must be a positive
number (got -1)``.

One key more than the schema's is let pass: ``"about"``, an object in which whoever wrote the file may say
where its figures come from (an import's notes, a calibration's measurements). A :class:`Topology` does not
hold it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dgcl.topology.checks import check_num_devices, nearest, shown
from dgcl.topology.model import Connection, Device, Link, Topology

SCHEMA = "dgcl-topology/1"

_TOPOLOGY_KEYS = ("schema", "name", "devices", "connections"), ("links", "about")
_DEVICE_KEYS = ("name",), ("machine", "socket")
_CONNECTION_KEYS = ("name", "kind", "a", "b", "bandwidth"), ("latency", "duplex")
_LINK_KEYS = ("src", "dst", "route"), ()

_MOST_DIGITS = 1000  # of an integer
_LARGEST = 512 << 20  # bytes: more than a topology of the most devices takes with all its links

_Item = TypeVar("_Item")


def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Read a topology file.

    Raises ValueError if the content is not a topology, naming the file, and the line or the item; OSError,
    naming the file, if it cannot be read.
    """
    return load_topology_and_about(path)[0]


def load_topology_and_about(path: str | os.PathLike[str]) -> tuple[Topology, dict[str, Any]]:
    """As :func:`load_topology`, with what the file tells about itself (``{}`` if it does not)."""
    path = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)  # some files never end
        if len(data) > _LARGEST:
            raise ValueError(f"{path}: is larger than {_LARGEST >> 20} MB, too large for a topology")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise type(error)(f"cannot read topology file {path!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    try:
        obj = _parse(text)
        return topology_from_json(obj), obj.get("about", {})
    except json.JSONDecodeError as error:
        if text.lstrip()[:1] == "<" or "GPU0" in text[:2000]:
            raise ValueError(
                f"{path}: is not JSON; nvidia-smi's matrix and NCCL's XML become a topology by: dgcl topo import"
            ) from None
        raise ValueError(
            f"{path}: line {error.lineno}, column {error.colno}: is not JSON ({error.msg})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_topology(
    topology: Topology, path: str | os.PathLike[str], *, about: dict[str, Any] | None = None
) -> None:
    """Write a topology file, with its links, and with what is to be told about it (JSON values).

    Raises OSError, naming the file, if it cannot be written.
    """
    path = os.fspath(path)
    obj = topology_to_json(topology) | ({"about": about} if about else {})
    try:
        Path(path).write_text(_layout(obj), encoding="utf-8")
    except OSError as error:
        raise type(error)(f"cannot write topology file {path!r}: {error.strerror or error}") from None


def topology_from_json(obj: dict[str, Any]) -> Topology:
    """The topology of a parsed JSON object. Raises ValueError with the path of what is wrong."""
    _check_object(obj, "the topology", _TOPOLOGY_KEYS)
    if obj["schema"] != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA!r} (got {shown(obj['schema'])})")
    if not isinstance(obj.get("about", {}), dict):
        raise ValueError(f"about must be an object (got {shown(obj['about'])})")
    devices = _items(obj, "devices", _DEVICE_KEYS, lambda item: Device(**item))
    connections = _items(obj, "connections", _CONNECTION_KEYS, lambda item: Connection(**item))
    links = _items(obj, "links", _LINK_KEYS, _link) if "links" in obj else None
    try:
        return Topology(obj["name"], devices, connections, links)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from None


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology: every field written out, links included."""
    return {
        "schema": SCHEMA,
        "name": topology.name,
        "devices": [
            {"name": device.name, "machine": device.machine, "socket": device.socket}
            for device in topology.devices
        ],
        "connections": [
            {
                "name": connection.name,
                "kind": connection.kind,
                "a": connection.a,
                "b": connection.b,
                "bandwidth": connection.bandwidth,
                "latency": connection.latency,
                "duplex": connection.duplex,
            }
            for connection in topology.connections
        ],
        "links": [{"src": link.src, "dst": link.dst, "route": list(link.route)} for link in topology.links],
    }


class _DuplicateKeys(dict[str, Any]):
    """An object of the file that has some key twice; which one, is said where its path is known."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        keys = [key for key, _ in pairs]
        self.twice = next(key for key in keys if keys.count(key) > 1)


def _parse(text: str) -> Any:
    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        obj = dict(pairs)
        return obj if len(obj) == len(pairs) else _DuplicateKeys(pairs)

    def make_integer(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ValueError(f"holds a number of {len(digits)} digits")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=make_object, parse_int=make_integer)
    except RecursionError:
        raise ValueError("is nested too deeply to be a topology") from None


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
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} must be an object with the keys {', '.join(required)} (got {shown(value)})"
        )
    if isinstance(value, _DuplicateKeys):
        raise ValueError(f"{where} has the key {value.twice!r} twice")
    for key in required:
        if key not in value:
            raise ValueError(f"{where} has no {key!r}; it needs {', '.join(required)}")
    for key in value:
        if key not in required and key not in optional:
            hint = nearest(str(key), (*required, *optional))
            raise ValueError(f"{where} has an unknown key {shown(key)}{hint}")


def _layout(obj: dict[str, Any]) -> str:
    """JSON text with one device, connection or link per line."""
    fields = []
    for key, value in obj.items():
        if isinstance(value, list) and value:
            lines = ",\n  ".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in value)
            fields.append(f"{json.dumps(key)}: [\n  {lines}]")
        else:
            fields.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{" + ",\n ".join(fields) + "}\n"
