from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Relation
from tests.support.samples import named


def relation(**changes: Any) -> Relation:
    """Three ranks: 0 -> {1}: 2, 0 -> {1, 2}: 3, 2 -> {0}: 4, with changes."""
    arrays: dict[str, Any] = {
        "world_size": 3,
        "source": [0, 0, 2],
        "dests": [[2], [6], [1]],
        "count": [2, 3, 4],
    }
    return Relation(**{**arrays, **changes})


def test_a_relation_holds_what_was_said():
    r = relation()
    assert (r.num_classes, r.num_vertices, r.deliveries) == (3, 9, 2 + 6 + 4)
    assert [r.dest_ranks(c) for c in range(3)] == [[1], [1, 2], [0]]
    assert r.pair_rows().tolist() == [[0, 5, 3], [0, 0, 0], [4, 0, 0]]
    assert r.dest_matrix().tolist() == [[False, True, False], [False, True, True], [True, False, False]]
    assert (r.source.dtype, r.dests.dtype, r.count.dtype) == (np.int32, np.uint64, np.int64)


def test_arrays_cannot_be_written_through_the_relation_but_stay_the_callers():
    count = np.array([2, 3, 4])
    r = relation(count=count)
    with pytest.raises(ValueError, match="read-only"):
        r.count[0] = 1
    count[0] = 5
    assert count[0] == 5


@named(
    "changes, message",
    {
        "no ranks": ({"world_size": 0}, "world_size must be an integer from 1"),
        "empty class": ({"count": [2, 0, 4]}, r"count\[1\] is 0: must be a positive"),
        "count too short": ({"count": [2, 3]}, "count must have length 3"),
        "source out of range": ({"source": [0, 0, 3]}, r"source\[2\] is 3: must be a rank"),
        "negative source": ({"source": [-1, 0, 2]}, r"source\[0\] is -1"),
        "nobody needs it": ({"dests": [[2], [0], [1]]}, "class 1: dests is empty"),
        "own bit": ({"dests": [[2], [7], [1]]}, "class 1: dests contains its own source, rank 0"),
        "rank too large": ({"dests": [[2], [14], [1]]}, "class 1: dests names a rank >= world_size 3"),
        "order": ({"dests": [[6], [2], [1]]}, "class 1 sorts before class 0"),
        "duplicate": ({"dests": [[2], [2], [1]]}, "class 1 repeats class 0"),
        "too many words": ({"dests": [[2, 0], [6, 0], [1, 0]]}, r"1 word\(s\) per class"),
        "flat masks": ({"dests": [2, 6, 1]}, r"dests must have 2 dimension"),
        "negative mask": ({"dests": [[-2], [6], [1]]}, "outside uint64"),
        "more vertices than exist": ({"count": [1 << 61, 1 << 61, 1 << 61]}, r"more than 2\*\*62"),
    },
)
def test_what_is_no_relation_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        relation(**changes)


@named(
    "changes, message",
    {
        "float counts": ({"count": [2.0, 3.0, 4.0]}, "count must hold integers"),
        "boolean sources": ({"source": [False, False, True]}, "source must hold integers"),
        "float world size": ({"world_size": 3.0}, "world_size must be an integer"),
    },
)
def test_wrong_types_are_type_errors(changes: dict[str, Any], message: str):
    with pytest.raises(TypeError, match=message):
        relation(**changes)


def test_masks_of_many_ranks_sort_by_their_value_as_one_integer():
    r = Relation.from_classes(130, [(5, [0], 1), (5, [129], 2), (5, [64, 63], 3), (5, [64], 4)])
    assert [r.dest_ranks(c) for c in range(4)] == [[0], [64], [63, 64], [129]]
    assert r.dests.shape == (4, 3)
    with pytest.raises(ValueError, match="sorts before"):
        Relation(130, r.source[::-1], r.dests[::-1], r.count[::-1])


@st.composite
def class_lists(draw: st.DrawFn) -> tuple[int, list[tuple[int, set[int], int]]]:
    world = draw(st.sampled_from([2, 3, 8, 64, 65, 130]))
    rank = st.integers(0, world - 1)
    one = st.tuples(rank, st.sets(rank, min_size=1, max_size=5), st.integers(1, 1000)).map(
        lambda c: (c[0], c[1] - {c[0]}, c[2])
    )
    return world, draw(st.lists(one.filter(lambda c: bool(c[1])), max_size=20))


@given(class_lists())
def test_from_classes_sorts_and_merges(case: tuple[int, list[tuple[int, set[int], int]]]):
    world, classes = case
    r = Relation.from_classes(world, classes)
    want: dict[tuple[int, frozenset[int]], int] = {}
    for source, dests, count in classes:
        want[source, frozenset(dests)] = want.get((source, frozenset(dests)), 0) + count
    got = {(int(r.source[c]), frozenset(r.dest_ranks(c))): int(r.count[c]) for c in range(r.num_classes)}
    assert got == want
    assert r.deliveries == sum(len(dests) * n for (_, dests), n in want.items()) == r.pair_rows().sum()


@given(class_lists())
def test_saved_and_loaded_is_the_same(tmp_path_factory, case: tuple[int, list[Any]]):
    r = Relation.from_classes(*case)
    path = tmp_path_factory.mktemp("r") / "relation"  # no suffix: the name is taken as it is
    r.save(path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file) == {"world_size", "source", "dests", "count"}
        assert file["world_size"].shape == ()
        assert file["world_size"] == r.world_size
    again = Relation.load(path)
    assert again.world_size == r.world_size
    for name in ("source", "dests", "count"):
        np.testing.assert_array_equal(getattr(again, name), getattr(r, name))
        assert getattr(again, name).dtype == getattr(r, name).dtype


@named(
    "changes, message",
    {
        "int64 source": ({"source": np.array([0, 0, 2])}, "array 'source' must have dtype <i4"),
        "no count": ({"count": None}, "array 'count' is missing"),
        "world_size in a list": ({"world_size": np.array([3])}, r"must have 0 dimension"),
        "float world_size": ({"world_size": np.array(3.0)}, "must have dtype integer"),
        "world_size too small": ({"world_size": np.array(2)}, "must be a rank"),
        "pickled array": ({"count": np.array([1, 2, 3], object)}, "not a valid relation file"),
    },
)
def test_files_that_are_no_relation(tmp_path, changes: dict[str, Any], message: str):
    r = relation()
    arrays = {"world_size": np.array(3), "source": r.source, "dests": r.dests, "count": r.count, **changes}
    path = tmp_path / "r.npz"
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(ValueError, match=message) as caught:
        Relation.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY\x01\x00", b"{}", bytes(1000)])
def test_files_that_are_no_archive(tmp_path, content: bytes):
    path = tmp_path / "r.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an npz archive"):
        Relation.load(path)


def test_a_header_that_promises_terabytes_is_refused_before_anything_is_read(tmp_path):
    import io
    import zipfile

    from numpy.lib import format as npy

    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (1 << 42,)})
    path = tmp_path / "r.npz"
    relation().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["source.npy"] = header.getvalue() + bytes(12)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match="needs 17592186044416 bytes but the file holds 12"):
        Relation.load(path)


def test_reading_needs_no_python_parser(tmp_path, monkeypatch):
    """CPython 3.11's fails by chance where several threads parse: "AST constructor recursion depth mismatch"."""

    def parse(*args: object, **options: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    relation().save(tmp_path / "r.npz")
    monkeypatch.setattr("ast.parse", parse)
    assert Relation.load(tmp_path / "r.npz").num_classes == relation().num_classes


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Relation.load(tmp_path / "none.npz")
