"""The cached plans of a job: that of the vertices, and that of copies where replicas are weighed or asked for.

Each is an entry of its own (:mod:`dgcl.prepare.cache`). What is *not* cached is the choice between them: it depends on
the memory that is free and on what a layer costs here and now, so it is made anew, from the stored plans.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
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
        folder: Of the cache; None: there is none, and every plan is made.
        key: What the plan of the vertices is made from.
        hops: How far copies reach; part of the key of their plan.
        first: Whether the plan that is asked for first is that of copies.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        key: dict[str, Any] | None = None,
        hops: int | None = None,
        first: bool = False,
    ) -> None:
        self._entries: dict[bool, PlanCache] = {}
        if folder is not None:
            self._entries[False] = PlanCache(folder, {**(key or {})})
            self._entries[True] = PlanCache(folder, {**(key or {}), "hops": hops})
        self._first = first
        self._loaded: dict[bool, tuple[NDArray[np.int32], Plan]] = {}
        self._read: set[bool] = set()
        self._made: dict[bool, Plan] = {}
        self._num_nodes = self._world_size = 0

    def part(self, num_nodes: int, world_size: int) -> NDArray[np.int32] | None:
        """The owners of the vertices, (N,), as stored with the plan that is asked for first; None: make them."""
        self._num_nodes, self._world_size = num_nodes, world_size
        if self._load(self._first):
            return self._loaded[self._first][0]
        return None

    def plan(
        self, part: NDArray[np.int32], relation: Relation, copied: bool, make: Callable[[], Plan]
    ) -> Plan:
        """The stored plan, if it is one of this relation and these owners of the vertices; else a new one.

        Raises:
            StaleParts: ``part`` came from an entry whose relation is another: nothing of it may be used.
        """
        if self._load(copied):
            owners, plan = self._loaded.pop(copied)
            same = (
                np.array_equal(getattr(relation, name), getattr(plan.relation, name))
                for name in ("source", "dests", "count")
            )
            if np.array_equal(owners, part) and all(same):
                _log.info("partition and plan come from the cache: %s", self._entries[copied].path)
                return plan
            self._entries[copied].refuse(ValueError("its relation is not that of the graph and its parts"))
            if owners is part:
                raise StaleParts("stored parts are those of another graph")
        self._made[copied] = plan = make()
        return plan

    def store(self, part: NDArray[np.int32]) -> bool:
        """Write what was made; whether there was anything."""
        for copied, plan in self._made.items():
            if self._entries:
                self._entries[copied].store(part, plan)
        return bool(self._entries and self._made)

    def _load(self, copied: bool) -> bool:
        """Whether there is a stored plan; it is read once."""
        if copied in self._entries and copied not in self._read:
            self._read.add(copied)
            loaded = self._entries[copied].load(self._num_nodes, self._world_size)
            if loaded is not None:
                self._loaded[copied] = loaded
        return copied in self._loaded


class StaleParts(Exception):
    """The stored owners of vertices are not those that the stored plan is for."""
