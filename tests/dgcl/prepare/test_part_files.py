"""Parts in files: what ranks load is what they would have been given, and damaged files are refused."""

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import plan_arrays
from dgcl.prepare.part_files import PLAN, load_share, part_path, save_parts
from dgcl.prepare.shares import prepare_inputs
from tests.support.samples import named
from tests.support.small_machines import line

EDGES = torch.randint(0, 50, (2, 400), generator=torch.Generator().manual_seed(3))
PARTS = np.arange(50) * 3 // 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_parts(tmp_path / "parts", prepare_inputs(EDGES, 3, "uniform", part=PARTS))
    return tmp_path / "parts"


def train(folder: Path | None, features: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, an exchange of dispatched features, and sums over edges, from files or from rank 0."""
    comm = (
        dgcl.build_comm_info(EDGES, "uniform", part=PARTS) if folder is None else dgcl.load_comm_info(folder)
    )
    rows = dgcl.dispatch_features(features)
    held = dgcl.graph_allgather(rows)
    return torch.cat([comm.owned_ids, comm.halo_ids]), held, comm.local_graph("csr").sum(held)


def test_ranks_that_load_train_as_ranks_that_are_given(folder: Path, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(150, dtype=np.float32).reshape(50, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    given, loaded = dgcl.launch(train, 3, None, mapped), dgcl.launch(train, 3, folder, mapped)
    for before, after in zip(given, loaded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_file_is_mapped_and_never_written(folder: Path):
    before = part_path(folder, 1).read_bytes()
    share, _ = load_share(folder, 1, 3)
    base = share.local.indices
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert len(base) == len(before)  # the whole file, in one mapping
    share.local.indices[:] = 0
    assert part_path(folder, 1).read_bytes() == before


@pytest.mark.parametrize("place", [0, 9, 40, 2000, -40, -1])
def test_a_changed_byte_is_noticed(folder: Path, place: int):
    content = bytearray(part_path(folder, 0).read_bytes())
    content[place] ^= 1
    part_path(folder, 0).write_bytes(content)
    with pytest.raises(ValueError, match=r"rank-00000.part: it is (no part file|damaged)"):
        load_share(folder, 0, 3)


@pytest.mark.parametrize("length", [0, 5, 100, 1000])
def test_a_truncated_file_is_refused(folder: Path, length: int):
    part_path(folder, 0).write_bytes(part_path(folder, 0).read_bytes()[:length])
    with pytest.raises(ValueError, match=r"parts: .*rank-00000.part"):
        load_share(folder, 0, 3)


def outcome(folder: Path) -> str:
    try:
        dgcl.load_comm_info(folder)
    except ValueError as error:
        return str(error)
    return "connected"


def spoil_missing(folder: Path, rank: int = 2):
    part_path(folder, rank).unlink()


def spoil_rank(folder: Path):
    part_path(folder, 1).write_bytes(part_path(folder, 0).read_bytes())


def spoil_set(folder: Path):
    first = part_path(folder, 0).read_bytes()
    save_parts(folder, prepare_inputs(EDGES, 3, "uniform", part=PARTS))
    part_path(folder, 0).write_bytes(first)


def spoil_rename(folder: Path):
    """As if the writer of other parts had been killed before its last rename: their plan is not there yet."""
    plan = (folder / PLAN).read_bytes()
    save_parts(folder, prepare_inputs(EDGES, 3, "uniform", part=PARTS[::-1].copy()))
    (folder / PLAN).write_bytes(plan)


def spoil_kind(folder: Path):
    spoil_missing(folder)
    os.mkfifo(part_path(folder, 2))  # nobody writes to it: opening it would wait


def spoil_plan(folder: Path):
    (folder / PLAN).write_bytes(b"PK")


@named(
    "spoil, words",
    {
        "missing": (spoil_missing, "rank-00002.part is missing, of 2 parts there, and this job has 3 ranks"),
        "in the middle": (
            lambda folder: spoil_missing(folder, 1),
            "rank-00001.part is missing",
        ),
        "another rank's": (spoil_rank, "it is for rank 0 of 3, and this is rank 1 of 3"),
        "another set's": (spoil_set, "rank 0 and rank 1 were not written together"),
        "another set's plan": (
            spoil_rename,
            "plan.npz beside it is another plan than the one that it was made for",
        ),
        "no plan": (spoil_plan, "plan.npz"),
        "a pipe": (spoil_kind, "rank-00002.part cannot be read: it is not a regular file"),
    },
)
def test_every_rank_hears_what_is_wrong(folder: Path, spoil: Any, words: str):
    before = set(threading.enumerate())
    spoil(folder)
    said = dgcl.launch(outcome, 3, folder)
    assert all(words in text for text in said), said
    assert not {each.name for each in threading.enumerate() if each not in before}


@pytest.mark.parametrize("side", ["owned", "incoming"])
@pytest.mark.parametrize("exchange", [0, 1], ids=["rows", "sums"])
def test_what_a_part_says_of_rows_is_what_their_owners_say(tmp_path, exchange: int, side: str):
    inputs = prepare_inputs(EDGES, 3, line(3), part=PARTS, strategy=EdgePlacement("cover"))
    items = inputs[1].exchanges[exchange]
    for about in getattr(items, side)[1]:  # in-degrees, out-degrees, ids
        about[items.wanted_rows[0] if side == "owned" else 0] += 50
        save_parts(tmp_path, inputs)
        assert all("other ids or degrees" in text for text in dgcl.launch(outcome, 3, tmp_path))
        about[items.wanted_rows[0] if side == "owned" else 0] -= 50


def test_each_plan_in_a_folder_is_compared_with_what_parts_were_made_for(tmp_path):
    save_parts(tmp_path, prepare_inputs(EDGES, 3, "uniform", part=PARTS, strategy=EdgePlacement("cover")))
    (tmp_path / "plan-1.npz").write_bytes((tmp_path / PLAN).read_bytes())
    said = dgcl.launch(outcome, 3, tmp_path)
    assert all(
        "plan-1.npz beside it is another plan than the one that it was made for" in text for text in said
    ), said


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("renames", [0, 1, 3])
def test_a_writer_that_is_stopped(folder: Path, renames: int, monkeypatch):
    """Before the first rename nothing has changed; later a mix is refused; the next writer puts all right."""
    before, done = contents(folder), 0

    def replace(source: Path, target: Path):
        nonlocal done
        if done == renames:
            raise OSError("the disk is full")
        done += 1
        Path(source).rename(target)

    other = prepare_inputs(EDGES, 3, "uniform", part=PARTS[::-1].copy())
    with monkeypatch.context() as patched:
        patched.setattr("dgcl.prepare.part_files.os.replace", replace)
        with pytest.raises(OSError, match="the disk is full"):
            save_parts(folder, other)
    after = contents(folder)
    assert after.keys() == before.keys()
    assert sum(after[name] != before[name] for name in before) == renames
    said = dgcl.launch(outcome, 3, folder)
    assert all((text == "connected") == (renames == 0) for text in said), said
    save_parts(folder, other)
    assert dgcl.launch(outcome, 3, folder) == ["connected"] * 3


def test_what_a_killed_writer_left_and_parts_of_more_ranks_or_exchanges_are_removed(folder: Path):
    (folder / ".new-0123").mkdir()
    (folder / ".new-0123" / "rank-00000.part").write_bytes(b"half of it")
    save_parts(folder, prepare_inputs(EDGES, 3, "uniform", part=PARTS, strategy=EdgePlacement("cover")))
    assert "plan-1.npz" in contents(folder)
    save_parts(folder, prepare_inputs(EDGES, 2, "uniform", part=PARTS // 2))
    assert sorted(contents(folder)) == [PLAN, "rank-00000.part", "rank-00001.part"]


@pytest.mark.parametrize("world_size", [2, 5])
def test_another_number_of_ranks(folder: Path, world_size: int):
    """Every rank names both numbers and the ways out, whether it has a file or not."""
    for text in dgcl.launch(outcome, world_size, folder):
        assert re.search(
            rf"of 3, and this is rank \d of {world_size}; start|of 3 parts there, .* {world_size} ranks", text
        )
        assert "prepare the parts anew" in text


@pytest.mark.parametrize("name", ["nowhere", "parts/plan.npz"])
def test_a_folder_that_is_not_there(folder: Path, name: str):
    for text in dgcl.launch(outcome, 3, folder.parent / name):
        assert re.search(rf"{name}/rank-0000\d.part is missing, and this job has 3 ranks; prepare", text)


def test_parts_of_the_version_before_name_the_command_that_makes_them_again():
    stored = Path(__file__).parent / "version_0_1_0" / "parts"
    for text in dgcl.launch(outcome, 2, stored):
        assert "prepare the parts anew (dgcl partition GRAPH --ranks P --out DIR/)" in text


def prepare_six(**options):
    """What the version before prepared: six vertices on two ranks."""
    edges, part = np.array([[0, 1, 2, 3, 4, 5, 0, 3], [1, 2, 3, 4, 5, 0, 3, 0]]), np.array([0, 0, 0, 1, 1, 1])
    return prepare_inputs(edges, 2, "uniform", part=part, **options)


def test_plans_of_the_version_before_load():
    plan = Plan.load(Path(__file__).parent / "version_0_1_0" / "parts" / PLAN)
    assert plan.fingerprint == "7e47d1c8be2a7e90d9bffcdaa4ae077d5751fed655ef543621ee3804e238cadb"
    now = prepare_six()[0].exchanges[0].plan
    stored, made = (plan_arrays(each.relation, each.trees) for each in (plan, now))
    assert stored.keys() == made.keys()
    for name, array in stored.items():
        np.testing.assert_array_equal(array, made[name])


def test_a_cache_of_the_version_before_is_left_alone(tmp_path, caplog):
    """Its entries have other names, as the sources that made them count: what is asked for is made again."""
    stored = Path(__file__).parent / "version_0_1_0" / "cache"
    shutil.copytree(stored, tmp_path / "cache")
    prepare_six(cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
