"""Finds the topology that a user means by a preset's name (``dgx1``, ``host:4``) or a file's path.

``dgx1x4`` is four machines joined by their network. A name that is both is the preset (write ``./dgx1`` for a file).
Called by users (resolve_topology and preset of `dgcl.topology`), `dgcl/advisor/choice`, `dgcl/cli/topologies`,
`dgcl/ranks/machines`, `dgcl/prepare/shares` and others. Free to change while each known name and path gives its
topology, and others raise with the nearest known name (`tests/topology/test_resolve.py`).
"""

import os
import re
from collections.abc import Callable
from functools import cache, partial

from dgcl.topology import presets
from dgcl.topology.checks import check_index, check_name, nearest, shown
from dgcl.topology.host import measure_host
from dgcl.topology.json_io import load_topology
from dgcl.topology.latencies import with_latencies
from dgcl.topology.model import Topology

# Numbers of machines that are listed; others are understood, too.
_LISTED = ("dgx1x2", "summitx2")
# A host's rates are read once in a process: its communicators should agree.
_SIZED: dict[str, Callable[[int], Topology]] = {
    "host": cache(partial(measure_host, anew=False)),
    "uniform": presets.uniform,
}
_SIZED_NAME = re.compile(rf"({'|'.join(_SIZED)})(?::?([0-9]{{1,18}}))?")
_MACHINES = (*presets.NODES, *presets.ALIASES)
_SEVERAL_NAME = re.compile(rf"({'|'.join(_MACHINES)})(?:x([1-9][0-9]{{0,17}}))?")


def preset_names() -> tuple[str, ...]:
    """The names that ``preset`` knows.

    ``host`` and ``uniform`` take a size: ``host4``, ``host:4``. Machines take a number behind an x:
    ``hgx_h100x4`` are four of them. Some have other names, too: ``dgx_h100`` is ``hgx_h100``.
    """
    return (*presets.NODES, *_LISTED, *_SIZED)


def preset(name: str, num_devices: int | None = None) -> Topology:
    """The topology of a preset name.

    Args:
        name: One of :func:`preset_names`. ``host`` and ``uniform`` take their size from the name (``uniform8``,
            ``uniform:8``) or else from ``num_devices``. Other machines have the size they have.
        num_devices: Take the first so many devices; None for all.

    Raises:
        ValueError: An unknown name, a missing size, or more devices than there are.
    """
    if num_devices is not None:
        check_index(num_devices, "num_devices")
    return _fit(_preset(check_name(name, "preset"), num_devices), num_devices)


def resolve_topology(spec: Topology | str | os.PathLike[str], num_devices: int | None = None) -> Topology:
    """The topology that ``spec`` means: a Topology itself, a preset name, or the path of a JSON file.

    A name that is both is the preset (write ``./dgx1`` for a file).

    Args:
        spec: What is meant.
        num_devices: Take the first so many devices; None for all.

    Raises:
        ValueError: ``spec`` is neither a preset nor a file, the file is no topology, or the topology has fewer than
            ``num_devices`` devices.
        OSError: The file cannot be read.
        TypeError: ``spec`` is none of these.
    """
    if isinstance(spec, Topology):
        return _fit(spec, num_devices)
    if not isinstance(spec, (str, os.PathLike)):
        raise TypeError(
            f"topology must be a Topology, a preset name or the path of a JSON file (got {shown(spec)})"
        )
    if isinstance(spec, str):
        if _SIZED_NAME.fullmatch(spec) or _SEVERAL_NAME.fullmatch(spec):
            return preset(spec, num_devices)
        if not (os.path.exists(spec) or os.path.basename(spec) != spec or spec.endswith(".json")):
            raise ValueError(
                f"topology must be a preset ({', '.join(preset_names())}) or the path of a JSON file "
                f"(got {shown(spec)}){nearest(spec, (*preset_names(), *presets.ALIASES))}"
            )
    return _fit(load_topology(spec), num_devices)


def _preset(name: str, num_devices: int | None) -> Topology:
    if several := _SEVERAL_NAME.fullmatch(name):
        machine = presets.ALIASES.get(several[1], several[1])
        return with_latencies(presets.NODES[machine](int(several[2] or 1)))
    match = _SIZED_NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"preset must be one of {', '.join(preset_names())} (got {shown(name)})"
            f"{nearest(name, (*preset_names(), *presets.ALIASES))}"
        )
    family, digits = match.groups()
    size = int(digits) if digits is not None else num_devices
    if size is None:
        raise ValueError(
            f"topology {family!r} has no size of its own: write the number of devices behind it, "
            f"as in '{family}:4'"
        )
    if size == 0:
        raise ValueError(f"topology {name!r} must have at least 1 device (got 0)")
    return _SIZED[family](size)


def _fit(topology: Topology, num_devices: int | None) -> Topology:
    if num_devices is None:
        return topology
    if check_index(num_devices, "num_devices") > (size := topology.num_devices):
        several = f"'{topology.name}x{-(-num_devices // size)}' or " if topology.name in presets.NODES else ""
        raise ValueError(
            f"topology {topology.name!r} has {size} devices, too few for {num_devices}; "
            f"use at most {size} ranks or a larger topology such as {several}'uniform:{num_devices}'"
        )
    return topology.restrict(num_devices)
