"""Part files whose hash is right and whose contents are not: an error or the same result, never a crash.

Each trial changes one table or number of one rank's file: a wild value, a shorter or longer table, another type, two
entries exchanged. What cannot be told from another graph (a source or a degree that is in range) is no mutation of
these; all else must be refused by every rank, or make no difference.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.prepare import part_files
from dgcl.prepare.part_files import part_path, save_shares
from dgcl.prepare.share import Share
from dgcl.prepare.shares import prepare
from dgcl.program.strategy import Strategy
from dgcl.workers.strategy import EdgePlacement
from tests.planner.machines import line
from tests.samples import matrix

EDGES = torch.randint(0, 40, (2, 300), generator=torch.Generator().manual_seed(3))
PARTS = np.arange(40) * 3 // 40
WILD = (-1, 1, 7, 40, 10**6, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**62), 2**63 - 1)
#: Tables in which a value within range is another graph, or none of our business.
FREE = (
    "indices",
    "edge_order",
    "edge_first",
    "in_degrees",
    "out_degrees",
    "partial_in_degrees",
    "num_replicas",
)


def records(share: Share) -> dict[str, Any]:
    found: dict[str, Any] = {"local": share.local}
    for number, exchange in enumerate(share.exchanges):
        program = exchange.program
        found |= {f"{number}": program, f"{number}.expand": program.expand, f"{number}.fold": program.fold}
    return found


def with_record(share: Share, where: str, record: Any) -> Share:
    if where == "local":
        return dataclasses.replace(share, local=record)
    number, _, verb = where.partition(".")
    exchanges = list(share.exchanges)
    exchange = exchanges[int(number)]
    program = record if not verb else dataclasses.replace(exchange.program, **{verb: record})
    exchanges[int(number)] = dataclasses.replace(exchange, program=program)
    return dataclasses.replace(share, exchanges=tuple(exchanges))


def mutated(value: Any, name: str, random: np.random.Generator) -> Any:
    """Another value for a field."""
    if not isinstance(value, np.ndarray):
        return int(random.choice(np.array(WILD, object)))
    wild = np.array(WILD, np.int64).astype(value.dtype)
    if name in FREE:
        wild = wild[(wild < 0) | (wild > 1000)]
    kind = random.integers(5) if value.size else 1
    changed = value.copy()
    flat = changed.reshape(-1)
    if kind == 0:
        flat[random.integers(len(flat))] = random.choice(wild)
    elif kind == 1:
        return np.concatenate(
            [changed, changed[-1:] if len(changed) else np.zeros((1, *value.shape[1:]), value.dtype)]
        )
    elif kind == 2:
        return changed[:-1]
    elif kind == 3:
        return changed.astype(np.int32 if value.dtype == np.int64 else np.int64)
    elif name not in FREE:
        one, two = random.integers(len(flat), size=2)
        flat[[one, two]] = flat[[two, one]]
    return changed


def write(folder: Path, whole: Path, shares: list[Share], random: np.random.Generator) -> str:
    """Copy the parts, with one rank's file mutated; returns what was changed."""
    shutil.copytree(whole, folder)
    rank = int(random.integers(len(shares)))
    found = records(shares[rank])
    where = random.choice(list(found))
    names = [f.name for f in dataclasses.fields(found[where]) if f.name not in ("expand", "fold")]
    names = [name for name in names if getattr(found[where], name) is not None]
    name = str(random.choice(names))
    value = mutated(getattr(found[where], name), name, random)
    changed = with_record(shares[rank], where, dataclasses.replace(found[where], **{name: value}))
    signs = [part_files._sign(exchange.plan) for exchange in changed.exchanges]
    pieces = part_files._pieces(changed, "token", signs)
    part_path(folder, rank).unlink()
    part_files._write(part_path(folder, rank), pieces)
    return f"{where} {name} of rank {rank}: {value if not isinstance(value, np.ndarray) else value.tolist()}"


def results(folder: Path) -> list[torch.Tensor] | str:
    """What ranks compute with parts, or why they do not."""
    try:
        comm = dgcl.load_comm_info(folder, timeout=60)
    except ValueError as error:
        return str(error)
    except dgcl.CommError as error:
        return f"parts: {error}" if "ranks run different plans" in str(error) else str(error)
    x = torch.arange(120.0, dtype=torch.float64).reshape(40, 3).sin()[comm.owned_ids]
    held = [comm.expand(x, name) for name in comm.exchanges]
    folded = [comm.fold(rows, name) for name, rows in zip(comm.exchanges, held, strict=True)]
    done = [comm.owned_ids, comm.halo_ids, *held, *folded, comm.aggregator()(x)]
    comm.close()
    return done


def play(whole: Path, folders: list[Path]) -> list[str]:
    """What each folder came to on this rank."""
    good = results(whole)
    assert not isinstance(good, str), good
    told = []
    for folder in folders:
        found = results(folder)
        if isinstance(found, str):
            told.append("refused" if "parts: " in found else found)
        else:
            same = all(torch.equal(a, b) for a, b in zip(good, found, strict=True))
            told.append("same" if same else "different")
    return told


def trial(
    rank_pool: Any, tmp_path: Path, strategy: Strategy | None, machine: Any, trials: int, seed: int
) -> None:
    shares = prepare(EDGES, 3, machine, part=PARTS, strategy=strategy)
    token = part_files.secrets.token_hex
    part_files.secrets.token_hex = lambda _: "token"
    try:
        save_shares(tmp_path / "whole", shares)
    finally:
        part_files.secrets.token_hex = token
    random = np.random.default_rng(seed)
    folders = [tmp_path / str(number) for number in range(trials)]
    changes = [write(folder, tmp_path / "whole", shares, random) for folder in folders]
    told = rank_pool(3).run(play, tmp_path / "whole", folders)
    by_trial = [set(outcomes) for outcomes in zip(*told, strict=True)]
    bad = [(changes[k], found) for k, found in enumerate(by_trial) if found not in ({"refused"}, {"same"})]
    assert not bad
    assert by_trial.count({"refused"}) > trials / 2  # else these mutations are none


KINDS = [(None, "uniform"), (None, line(3)), (EdgePlacement("cover"), "uniform")]


@pytest.mark.parametrize("strategy, machine", KINDS, ids=["head", "relays", "cover"])
def test_no_mutation_gets_through(strategy: Any, machine: Any, rank_pool: Any, tmp_path):
    trial(rank_pool, tmp_path, strategy, machine, 25, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [200, matrix(700)])
@pytest.mark.parametrize("strategy, machine", KINDS, ids=["head", "relays", "cover"])
def test_no_mutation_of_many_gets_through(strategy: Any, machine: Any, trials: int, rank_pool: Any, tmp_path):
    trial(rank_pool, tmp_path, strategy, machine, trials, seed=2)
