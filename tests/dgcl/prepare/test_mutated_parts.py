"""Part files whose hash is right and whose contents are not: an error on every rank or results, never a crash.

Each trial changes one table or number of one rank's file: a wild value, a shorter or longer table, two entries
exchanged. A file that says something else than the graph it was made from may give other results.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.prepare import part_files
from dgcl.prepare.part_files import part_path, save_parts
from dgcl.prepare.share import RankInputs
from dgcl.prepare.shares import prepare_inputs
from dgcl.program.strategy import Strategy
from tests.support.samples import matrix, slow
from tests.support.small_machines import line

EDGES = torch.randint(0, 40, (2, 300), generator=torch.Generator().manual_seed(3))
PARTS = np.arange(40) * 3 // 40
WILD = (-1, 1, 7, 40, 10**6, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**62), 2**63 - 1)


def mutated(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Another value for a table."""
    kind = random.integers(4) if value.size else 1
    changed = value.copy()
    flat = changed.reshape(-1)
    if kind == 0:
        flat[random.integers(len(flat))] = random.choice(np.array(WILD, np.int64).astype(value.dtype))
    elif kind == 1:
        return np.concatenate(
            [changed, changed[-1:] if value.size else np.ones((1, *value.shape[1:]), value.dtype)]
        )
    elif kind == 2:
        return changed[:-1]
    else:
        one, two = random.integers(len(flat), size=2)
        flat[[one, two]] = flat[[two, one]]
    return changed


def write(folder: Path, whole: Path, inputs: list[RankInputs], random: np.random.Generator) -> str:
    """Copy the parts, with one rank's file mutated; returns what was changed."""
    shutil.copytree(whole, folder)
    mine = inputs[int(random.integers(len(inputs)))]
    arrays = part_files._arrays(mine)
    name = str(random.choice([*arrays, "sizes"]))
    if name in arrays:
        arrays[name] = mutated(arrays[name], random)
    else:
        number = int(random.choice(np.array(WILD, object)))
        mine = dataclasses.replace(mine, sizes=(number, number))
    signs = [part_files._sign(each.plan) for each in mine.exchanges]
    part_path(folder, mine.rank).unlink()
    part_files._write(part_path(folder, mine.rank), part_files._pieces(mine, arrays, "token", signs))
    return f"{name} of rank {mine.rank}: {arrays[name].tolist() if name in arrays else mine}"


def computes(folder: Path) -> bool:
    """Whether ranks compute with parts."""
    try:
        comm = dgcl.load_comm_info(folder, timeout=60)
    except (ValueError, dgcl.DisagreementError):
        return False
    x = torch.arange(3.0 * comm.num_owned, dtype=torch.float64).reshape(-1, 3).sin()
    for name in comm.exchanges:
        comm.fold(comm.expand(x[: comm.layouts[name].num_owned], name), name)
    comm.aggregator()(x)
    comm.close()
    return True


def play(folders: list[Path]) -> list[bool]:
    return [computes(folder) for folder in folders]


def trial(rank_pool: Any, tmp_path: Path, strategy: Strategy | None, machine: Any, trials: int, seed: int):
    inputs = prepare_inputs(EDGES, 3, machine, part=PARTS, strategy=strategy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_files.secrets, "token_hex", lambda _: "token")
        save_parts(tmp_path / "whole", inputs)
    random = np.random.default_rng(seed)
    folders = [tmp_path / str(number) for number in range(trials)]
    changes = [write(folder, tmp_path / "whole", inputs, random) for folder in folders]
    by_rank = rank_pool(3).run(play, [tmp_path / "whole", *folders])
    assert not [
        change
        for change, *ends in zip(changes, *(ends[1:] for ends in by_rank), strict=True)
        if len({*ends}) > 1
    ]
    assert by_rank[0][0]
    assert by_rank[0].count(False) > trials / 3  # else these mutations are none


KINDS = [slow(None, "uniform"), (None, line(3)), slow(EdgePlacement("cover"), "uniform")]


@pytest.mark.parametrize("strategy, machine", KINDS, ids=["head", "relays", "cover"])
def test_no_mutation_gets_through(strategy: Any, machine: Any, rank_pool: Any, tmp_path):
    trial(rank_pool, tmp_path, strategy, machine, 25, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [100, matrix(700)])
@pytest.mark.parametrize("strategy, machine", KINDS, ids=["head", "relays", "cover"])
def test_no_mutation_of_many_gets_through(strategy: Any, machine: Any, trials: int, rank_pool: Any, tmp_path):
    trial(rank_pool, tmp_path, strategy, machine, trials, seed=2)
