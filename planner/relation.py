"""States which ranks need which rows, as classes of vertices with owner, destination set and size.

Vertices with the same owner and the same set of ranks that need their row are interchangeable: a class. So the
relation holds one row per class, however large the graph is.
Called by users, `planner/methods/registry`, `dgcl/relation/classes`, `dgcl/program/compile`, `dgcl/cli/problem` and
others. Free to change while classes are sorted by (owner, destinations as an integer) and unique, what is no relation
is refused by array and class, and one that was saved loads as it was (`tests/planner/test_relations.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dgcl.planner.array_types import (
    BoolArray,
    Int32Array,
    Int64Array,
    MaskArray,
    integer_array,
    require_length,
    require_range,
)
from dgcl.planner.npz import ArraySpec, read_npz, write_npz
from dgcl.topology.checks import check_index, shown

_MANY_CLASSES = 50_000  # above, loading compiled code pays
MAX_WORLD_SIZE = 1 << 20  # far above any job; keeps sizes formed from a file's world_size in bounds

_FILE = {
    "world_size": ArraySpec("integer", 0),
    "source": ArraySpec("<i4", 1),
    "dests": ArraySpec("<u8", 2),
    "count": ArraySpec("<i8", 1),
}


def mask_words(world_size: int) -> int:
    """Return how many 64-bit words a destination mask of `world_size` ranks takes (at least one)."""
    return max(1, -(-world_size // 64))


@dataclass(frozen=True, eq=False)
class Relation:
    """The classes of vertices that some other rank needs.

    Attributes:
        world_size: number of ranks P.
        source: (C,) int32, the owner of each class.
        dests: (C, W) uint64 with W = ceil(P / 64): rank d is bit ``d % 64`` of word ``d // 64``. The
            owner's bit is 0.
        count: (C,) int64, vertices in each class, all > 0.

    Rows are sorted by (source, dests as an integer, the last word most significant) without duplicates.

    Raises:
        ValueError, TypeError: on anything else, naming the array and the class.
    """

    world_size: int
    source: Int32Array
    dests: MaskArray
    count: Int64Array

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "world_size", check_index(self.world_size, "world_size", 1, MAX_WORLD_SIZE))
        set_(self, "source", integer_array("source", self.source, np.int32, 1))
        set_(self, "dests", integer_array("dests", self.dests, np.uint64, 2))
        set_(self, "count", integer_array("count", self.count, np.int64, 1))
        self._check()

    def _check(self) -> None:
        num = self.source.shape[0]
        require_length("dests", self.dests, num, "one row per class")
        require_length("count", self.count, num, "one per class")
        words = mask_words(self.world_size)
        if self.dests.shape[1] != words:
            raise ValueError(
                f"dests must have {words} word(s) per class for world_size {self.world_size}"
                f" (got {self.dests.shape[1]})"
            )
        require_range("source", self.source, 0, self.world_size, "a rank")
        require_range("count", self.count, 1, 1 << 62, "a positive number of vertices")
        if num == 0:
            return
        if float(self.count.sum(dtype=np.float64)) >= 2.0**62:
            raise ValueError("count adds up to more than 2**62 vertices")
        used = self.world_size - 64 * (words - 1)
        if used < 64:
            beyond = np.flatnonzero(self.dests[:, -1] >> np.uint64(used))
            if beyond.size:
                c = int(beyond[0])
                raise ValueError(f"class {c}: dests names a rank >= world_size {self.world_size}")
        empty = np.flatnonzero(~self.dests.any(axis=1))
        if empty.size:
            raise ValueError(f"class {int(empty[0])}: dests is empty; leave out vertices that nobody needs")
        own = self.dests[np.arange(num), self.source >> 6] >> (self.source & 63).astype(np.uint64)
        own_dest = np.flatnonzero(own & np.uint64(1))
        if own_dest.size:
            c = int(own_dest[0])
            raise ValueError(f"class {c}: dests contains its own source, rank {self.source[c]}")
        self._check_order()

    def _check_order(self) -> None:
        """Raise unless rows rise strictly by (source, dests as an integer)."""
        before = self.source[:-1] < self.source[1:]
        same = self.source[:-1] == self.source[1:]
        for word in reversed(range(self.dests.shape[1])):
            low, high = self.dests[:-1, word], self.dests[1:, word]
            before |= same & (low < high)
            same &= low == high
        bad = np.flatnonzero(~before)
        if bad.size:
            c = int(bad[0])
            what = "repeats class" if same[c] else "sorts before class"
            raise ValueError(
                f"class {c + 1} {what} {c}: classes must be sorted by (source, dests as an integer)"
                " without duplicates; Relation.from_classes sorts and merges"
            )

    @classmethod
    def from_classes(cls, world_size: int, classes: Iterable[tuple[int, Iterable[int], int]]) -> Relation:
        """Build a relation from (source, destination ranks, count) triples in any order; merges equal classes.

        Example:
            >>> Relation.from_classes(3, [(0, {1, 2}, 5), (1, [0], 2)]).num_classes
            2
        """
        merged: dict[tuple[int, int], int] = {}
        world_size = check_index(world_size, "world_size", 1, MAX_WORLD_SIZE)
        try:
            triples = enumerate(classes)
        except TypeError:
            raise TypeError(
                f"classes must be (source, destinations, count) triples (got {shown(classes)})"
            ) from None
        for place, each in triples:
            try:
                source, ranks, count = each
                source, count = check_index(source, "source"), check_index(count, "count")
                ranks = [check_index(rank, "a destination rank", 0, world_size - 1) for rank in ranks]
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"classes[{place}] must be (source, destinations, count), as (0, {{1, 2}}, 5) (got"
                    f" {shown(each)}): {error}"
                ) from None
            mask = 0
            for rank in ranks:
                mask |= 1 << rank
            merged[(source, mask)] = merged.get((source, mask), 0) + count
        keys = sorted(merged)
        words = mask_words(world_size)
        dests = np.frombuffer(b"".join(mask.to_bytes(8 * words, "little") for _, mask in keys), "<u8")
        source_array = np.array([source for source, _ in keys], np.int64)
        count_array = np.array([merged[key] for key in keys], np.int64)
        return cls(world_size, source_array, dests.reshape(-1, words), count_array)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return int(self.source.shape[0])

    @property
    def num_vertices(self) -> int:
        """Number of boundary vertices: those that at least one other rank needs."""
        return int(self.count.sum())

    @property
    def deliveries(self) -> int:
        """Number of (vertex, destination) pairs."""
        return int((self.count * self.num_dests()).sum())

    def num_dests(self) -> Int64Array:
        """Return the number of destinations of each class, (C,) int64."""
        num: Int64Array = np.bitwise_count(self.dests).sum(axis=1, dtype=np.int64)
        return num

    def dest_ranks(self, c: int) -> list[int]:
        """Return the destination ranks of class ``c``, ascending."""
        c = range(self.num_classes)[c]
        ranks: list[int] = np.flatnonzero(self.dest_matrix(c, c + 1)).tolist()
        return ranks

    def dest_matrix(self, start: int = 0, stop: int | None = None) -> BoolArray:
        """Return classes ``start:stop`` as a (classes, world_size) boolean matrix.

        It takes one byte per class and rank: ask for slices where C is large.
        """
        block = np.ascontiguousarray(self.dests[start:stop].astype("<u8", copy=False))
        bits = np.unpackbits(block.view(np.uint8), axis=1, bitorder="little")
        return bits[:, : self.world_size].view(np.bool_)

    def pair_rows(self) -> Int64Array:
        """Return how many rows rank s owns that rank d needs, (P, P) int64 indexed [s, d]; computed once."""
        return self._pair_rows

    @cached_property
    def _pair_rows(self) -> Int64Array:
        world = self.world_size
        if self.num_classes > _MANY_CLASSES:
            from dgcl.planner.bits import pair_rows

            need: Int64Array = pair_rows(self.source, self.dests, self.count, world)
        else:
            need = np.zeros((world, world), np.int64)
            chunk = max(1, (1 << 18) // max(64, world))  # keeps what is unpacked in a cache
            for start in range(0, self.num_classes, chunk):
                rows, dests = np.nonzero(self.dest_matrix(start, start + chunk))
                rows += start
                slot = self.source[rows].astype(np.int64) * world + dests
                np.add.at(need.reshape(-1), slot, self.count[rows])
        need.flags.writeable = False
        return need

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the relation as an npz file (docs/cli.md, "Files"): world_size, source, dests, count."""
        write_npz(
            path,
            {
                "world_size": np.array(self.world_size, np.int64),
                "source": self.source,
                "dests": self.dests,
                "count": self.count,
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Relation:
        """Read and check a relation file.

        Raises:
            ValueError: for anything that is not a relation, naming the file and the array.
            OSError: when the file cannot be opened.
        """
        arrays = read_npz(path, _FILE, what="relation")
        try:
            return cls(int(arrays["world_size"]), arrays["source"], arrays["dests"], arrays["count"])
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: not a valid relation: {error}") from None
