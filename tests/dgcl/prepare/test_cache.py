import dataclasses
import errno
import io
import logging
import os
import re
import resource
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dgcl
from dgcl.graph import as_graph
from dgcl.planner import PlanOptions
from dgcl.prepare import cache
from dgcl.prepare import shares as preparing
from dgcl.prepare.cache import PlanCache, cache_key
from dgcl.prepare.share import Share
from dgcl.ranks.context import context
from dgcl.topology import resolve_topology
from tests.support.ranks import local_ids
from tests.support.samples import sampled
from tests.support.shares import prepare

EDGES = np.random.default_rng(6).integers(0, 50, (2, 220))
GRAPH = as_graph(EDGES)


def shares(folder: Path | None, graph: Any = GRAPH, **options: Any) -> list[Share]:
    return prepare(graph, 3, "uniform", cache=folder, **options)


def same(one: list[Share], other: list[Share]) -> bool:
    """Whether the ranks would do the same."""
    return all(
        a.plan.fingerprint == b.plan.fingerprint
        and np.array_equal(a.program.owned_ids, b.program.owned_ids)
        and np.array_equal(a.program.halo_ids, b.program.halo_ids)
        and np.array_equal(a.program.send_rows, b.program.send_rows)
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine.exchanges, theirs.exchanges, strict=True)
    )


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.fixture
def no_thinking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Partitioning or planning fails the test."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the cache was not used")

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "partition_graph", refuse)
        patch.setattr("dgcl.program.strategy.make_plan", refuse)
        yield


FRESH = shares(None)


def test_an_entry_takes_the_place_of_partition_and_plan(tmp_path, request, caplog):
    folder = tmp_path / "not" / "there yet"
    assert same(shares(folder), FRESH)
    (entry,) = entries(folder)
    assert entry.stat().st_mode & 0o777 == 0o600
    request.getfixturevalue("no_thinking")
    with caplog.at_level(logging.INFO, "dgcl"):
        assert same(shares(folder), FRESH)
    assert f"partition and plan come from the cache: {entry}" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_communicators_from_the_cache_work(tmp_path):
    def run() -> Any:
        rank = context.require_control().rank
        comm = dgcl.build_comm_info(GRAPH if rank == 0 else None, "uniform", cache=tmp_path)
        assert np.array_equal(comm.expand(comm.owned_ids), local_ids(comm))
        return comm.plan.fingerprint

    assert len({*dgcl.launch(run, 3), *dgcl.launch(run, 3)}) == 1
    assert len(entries(tmp_path)) == 1


def key(
    graph: Any = GRAPH,
    world_size: int = 3,
    topology: Any = "uniform",
    part: Any = None,
    partition: str = "auto",
    method: str = "auto",
    balance: str = "vertices",
    **options: Any,
) -> dict[str, Any]:
    machine = resolve_topology(topology, world_size)
    return cache_key(graph, world_size, machine, part, partition, method, PlanOptions(**options), balance)


MORE = as_graph(np.concatenate([EDGES, EDGES[:, :1]], axis=1))
MOVED = as_graph(np.concatenate([EDGES[:, :-1], (EDGES[:, -1:] + 1) % 50], axis=1))


@pytest.mark.parametrize(
    "other",
    [
        {"graph": MORE},
        {"graph": MOVED},
        {"graph": as_graph(EDGES, num_nodes=60)},
        {"world_size": 4},
        {"topology": "dgx1"},
        {"part": np.arange(50, dtype=np.int32) % 3},
        {"part": np.arange(50, dtype=np.int32) % 2},
        {"partition": "range"},
        {"balance": "edges"},
        {"method": "direct"},
        {"seed": 1},
        {"row_bytes": 4},
        {"time_limit": 9.0},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_changes_the_plan_changes_the_key(other: dict[str, Any], tmp_path):
    assert PlanCache(tmp_path, key(**other)).path != PlanCache(tmp_path, key()).path


def test_versions_and_sources_change_the_key(tmp_path, monkeypatch):
    before = PlanCache(tmp_path, key()).path
    monkeypatch.setattr(dgcl, "__version__", "0.0.0")
    after = PlanCache(tmp_path, key()).path
    monkeypatch.setattr(cache, "_hash_sources", lambda: "edited")
    assert len({before, after, PlanCache(tmp_path, key()).path}) == 3


def test_the_key_does_not_depend_on_how_the_graph_was_given():
    """Neither on the order of edges between vertices, nor on their type."""
    order = np.argsort(EDGES[1], kind="stable")
    assert key(as_graph(EDGES[:, order].astype(np.int32))) == key()


def rewrite(path: Path, **changes: Callable[[Any], Any]):
    """Change arrays of an entry and sign it anew: damage that no checksum shows."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    arrays["digest"] = np.array(cache._digest(arrays))
    np.savez(path, **arrays)


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path):
    """One bit of the parts, with the archive's checksum set right again."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["part"] = arrays["part"] ^ (np.arange(len(arrays["part"])) == 7).astype(np.int32)
    np.savez(path, **arrays)


def foreign(path: Path):
    """The entry of another seed under this one's name."""
    shares(path.parent / "other", options=PlanOptions(seed=5))
    os.replace(entries(path.parent / "other")[0], path)
    (path.parent / "other").rmdir()


def link(path: Path):
    path.rename(path.parent.parent / "elsewhere.npz")
    path.symlink_to(path.parent.parent / "elsewhere.npz")


def pipe(path: Path):
    path.unlink()
    os.mkfifo(path)


def pickled(path: Path):
    np.savez(path, part=np.array([print], dtype=object))


def claims_too_much(path: Path):
    """A header that speaks of a terabyte."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i4", "fortran_order": False, "shape": (1 << 38,)}
    )
    members["part.npy"] = header.getvalue()
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)


def squeezed(path: Path):
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as new:
        for name, data in members.items():
            new.writestr(name, data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "not an npz archive"),
    "cut short": (cut, "not an npz archive"),
    "text": (lambda path: path.write_text("hello"), "not an npz archive"),
    "a flipped bit": (flip, "its hash is wrong"),
    "of another seed": (foreign, "made from something else"),
    "a link": (link, "a link, not a plain file"),
    "a pipe": (pipe, "not a regular file"),
    "a pickle": (pickled, "missing"),
    "a header that lies": (claims_too_much, "needs 1099511627776 bytes but the file holds"),
    "an odd compression": (squeezed, "not by deflate"),
    "another array": (lambda path: np.savez(path, **dict(np.load(path)), more=np.zeros(3)), "unknown entry"),
    "a part out of range": (
        lambda path: rewrite(path, part=lambda part: part + 9),
        "must be a part 0..2",
    ),
    "too few parts": (lambda path: rewrite(path, part=lambda part: part[:-1]), "one entry per vertex"),
    "parts of another graph": (
        lambda path: rewrite(path, part=lambda part: (part + 1) % 3),
        "its relation is not that of the graph",
    ),
    "a tree that leads nowhere": (
        lambda path: rewrite(path, edge_dst=lambda ranks: ranks + 100),
        r"edge_dst\[0\] is 10\d: must be a rank",
    ),
    "a tree that delivers nothing": (
        lambda path: rewrite(path, edge_dst=lambda ranks: (ranks + 1) % 3),
        r"tree \d of class \d",
    ),
    "a cost that is made up": (
        lambda path: rewrite(
            path,
            meta=lambda text: np.array(str(text).replace('"predicted_seconds":', '"predicted_seconds":1')),
        ),
        "predicted_seconds",
    ),
    "no JSON": (lambda path: rewrite(path, meta=lambda text: np.array("{")), "meta is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_bad_entry_is_named_and_made_anew(name: str, tmp_path, caplog):
    harm, why = DAMAGE[name]
    folder = tmp_path / "cache"
    shares(folder)
    (entry,) = entries(folder)
    harm(entry)
    caplog.clear()
    assert same(shares(folder), FRESH)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"cache entry {entry} is not used and is made anew: " in record.getMessage()
    assert re.search(why, record.getMessage()), record.getMessage()
    caplog.clear()
    assert same(shares(folder), FRESH)
    assert not caplog.records, "it was not made anew"
    assert not entry.is_symlink()
    assert [path for path in entries(folder) if path != entry] == []


@pytest.mark.parametrize("seed", sampled(range(3), keep=lambda seed: seed == 0))
def test_no_flipped_byte_is_believed(seed: int, tmp_path, caplog):
    """Wherever it is: it is found, or it is in what says nothing (names of files, dates, padding)."""
    shares(tmp_path)
    (entry,) = entries(tmp_path)
    good, generator = entry.read_bytes(), np.random.default_rng(seed)
    part, plan = PlanCache(tmp_path, key()).load(50, 3) or (None, None)
    assert plan is not None
    found = 0
    for place in generator.integers(0, len(good), 60).tolist():
        entry.write_bytes(
            good[:place] + bytes([good[place] ^ 1 << generator.integers(8)]) + good[place + 1 :]
        )
        loaded = PlanCache(tmp_path, key()).load(50, 3)
        if loaded is None:
            found += 1
        else:
            assert np.array_equal(loaded[0], part)
            assert loaded[1].fingerprint == plan.fingerprint
    assert found > 30
    assert len(caplog.records) == found


def no_space(descriptor: int):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", no_space)
    assert same(shares(tmp_path), FRESH)
    (record,) = caplog.records
    assert "cannot be written ([Errno 28] No space left on device); this job goes on" in record.getMessage()
    assert entries(tmp_path) == []


def test_a_disk_that_fills_up_while_an_entry_is_written_is_one_warning(tmp_path, monkeypatch, caplog):
    """The kernel itself refuses, in the middle of the file."""
    write = PlanCache._write

    def write_on_a_small_disk(entry: PlanCache, arrays: dict[str, Any]):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
        try:
            write(entry, arrays)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with monkeypatch.context() as patch:
        patch.setattr(PlanCache, "_write", write_on_a_small_disk)
        assert same(shares(tmp_path), FRESH)
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()
    assert entries(tmp_path) == []
    assert same(shares(tmp_path), FRESH)
    assert len(entries(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_one_warning(caplog):
    assert same(shares(Path("/proc/self/dgcl cache")), FRESH)
    (record,) = caplog.records
    assert "cache entry /proc/self/dgcl cache/" in record.getMessage()
    assert "cannot be written" in record.getMessage()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cache must be a folder.*file, which is a file"):
        shares(tmp_path / "file")


@pytest.mark.slow
def test_jobs_that_share_a_folder_see_whole_entries(tmp_path, caplog):
    shares(tmp_path)
    part, plan = PlanCache(tmp_path, key()).load(50, 3) or (None, None)
    assert part is not None
    assert plan is not None
    stop = threading.Event()

    def write():
        while not stop.is_set():
            PlanCache(tmp_path, key()).store(part, plan)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(30):
            assert PlanCache(tmp_path, key()).load(50, 3) is not None
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not caplog.records
    assert len(entries(tmp_path)) == 1


def test_what_killed_writers_left_is_swept_away_in_time(tmp_path):
    old, young, other = tmp_path / ".dgcl-a.part", tmp_path / ".dgcl-b.part", tmp_path / "mine.part"
    for path in (old, young, other):
        path.touch()
    os.utime(old, (time.time() - 2e5,) * 2)
    os.utime(other, (time.time() - 2e5,) * 2)
    shares(tmp_path)
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def test_options_are_part_of_the_key_by_name():
    """An option that a planner will learn one day must change the key without anybody's remembering it."""
    assert set(key()["options"]) == {field.name for field in dataclasses.fields(PlanOptions)}


@pytest.mark.parametrize("folder", ["graph", "partition", "planner", "program", "relation", "topology"])
def test_an_edited_folder_changes_the_key(folder: str, tmp_path, monkeypatch):
    """Whatever decides what an entry holds: its sources in a package that is a copy of ours."""
    for name in ("graph", "partition", "planner", "program", "relation", "topology"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text("first = 1\n")
    (tmp_path / "prepare").mkdir()
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "prepare" / "cache.py"))
    before = cache._hash_sources()
    (tmp_path / folder / "module.py").write_text("second = 2\n")
    assert cache._hash_sources() != before


def test_a_folder_in_place_of_an_entry(tmp_path, caplog):
    shares(tmp_path)
    (entry,) = entries(tmp_path)
    entry.unlink()
    entry.mkdir()
    shares(tmp_path)
    assert "is not used and is made anew: " in caplog.text
