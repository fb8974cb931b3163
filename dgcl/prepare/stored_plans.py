"""Finds the plans of one job in a cache folder, and stores there those that had to be made.

A strategy may ask for several plans of a job, distinguished by what they depend on beside the job itself; each is an
entry of its own (:mod:`dgcl.prepare.cache`). What is *not* stored is a strategy's choice between them: it depends on
the memory that is free and on what a layer costs here and now, so it is made anew, from the stored plans.
Called by `shares`. Free to change while a second job finds every plan of the first
(`tests/dgcl/prepare/test_placements.py`), and a plan of another graph's relation is refused
(`tests/dgcl/prepare/test_cache.py`).
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.prepare.cache import PlanCache

_log = logging.getLogger("dgcl")


class StoredPlans:
    """Plans that are read where they are stored, and otherwise made and kept for :meth:`store`.

    Args:
        folder: Of the cache.
        key: What the plans are made from.
        num_nodes, world_size: Vertices and ranks.
    """

    def __init__(
        self, folder: str | os.PathLike[str], key: dict[str, Any], num_nodes: int, world_size: int
    ) -> None:
        self._folder, self._key, self._sizes = folder, key, (num_nodes, world_size)
        self._entries: dict[str, PlanCache] = {}
        self._loaded: dict[str, tuple[NDArray[np.int32], Plan]] = {}
        self._made: dict[str, Plan] = {}

    def part(self, depends_on: Mapping[str, Any]) -> NDArray[np.int32] | None:
        """The owners of the vertices, (N,), as stored with a plan; None: make them."""
        name = self._load(depends_on)
        return self._loaded[name][0] if name in self._loaded else None

    def plan(
        self,
        part: NDArray[np.int32],
        relation: Relation,
        make: Callable[[], Plan],
        depends_on: Mapping[str, Any],
    ) -> Plan:
        """The stored plan, if it is one of this relation and these owners of the vertices; else a new one.

        Raises:
            StaleParts: ``part`` came from an entry whose relation is another: nothing of it may be used.
        """
        name = self._load(depends_on)
        if name in self._loaded:
            owners, plan = self._loaded.pop(name)
            same = (
                np.array_equal(getattr(relation, field), getattr(plan.relation, field))
                for field in ("source", "dests", "count")
            )
            if np.array_equal(owners, part) and all(same):
                _log.info("partition and plan come from the cache: %s", self._entries[name].path)
                return plan
            self._entries[name].refuse(ValueError("its relation is not that of the graph and its parts"))
            if owners is part:
                raise StaleParts("stored parts are those of another graph")
        self._made[name] = plan = make()
        return plan

    def store(self, part: NDArray[np.int32]) -> bool:
        """Write what was made; whether there was anything."""
        for name, plan in self._made.items():
            self._entries[name].store(part, plan)
        return bool(self._made)

    def _load(self, depends_on: Mapping[str, Any]) -> str:
        """The name of an entry; what it holds is read once."""
        name = json.dumps(depends_on, sort_keys=True)
        if name not in self._entries:
            self._entries[name] = PlanCache(self._folder, {**self._key, **depends_on})
            loaded = self._entries[name].load(*self._sizes)
            if loaded is not None:
                self._loaded[name] = loaded
        return name


class StaleParts(Exception):
    """The stored owners of vertices are not those that the stored plan is for."""
