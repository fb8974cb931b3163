"""Writes and reads part files: one file per rank, so that no rank ever holds the whole graph.

``dgcl partition --out DIR/`` writes ``DIR/plan.npz`` and ``DIR/rank-00000.part``, ...; every rank of the job opens the
plan and its own file (:func:`dgcl.load_comm_info`). The plans of exchanges after the first are in ``DIR/plan-1.npz``
and so on. A change of what a file holds is a new ``SCHEMA``. The format is below the imports.
Called by `dgcl/build` and `dgcl/cli/partition`. Free to change while ranks that load train as ranks that are given,
damaged or mixed files are refused on every rank (`tests/dgcl/prepare/test_part_files.py`), and contents that are wrong
under a right hash never crash (`tests/dgcl/prepare/test_mutated_parts.py`).
"""

import hashlib
import json
import mmap
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from dgcl.graph.id_arrays import any_outside
from dgcl.grid.grid import as_grid
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.verify.check_plan import verify_plan
from dgcl.prepare.share import RankInputs, RankItems, Share, from_owners, share_of
from dgcl.program.compile import frame_of
from dgcl.ranks.control import Control
from dgcl.ranks.whole_rows import agree
from dgcl.relation.local_graph import LocalGraph, NumberedEdges
from dgcl.topology.read_file import open_file

# A part file is::
#
#     8 bytes     MAGIC
#     8 bytes     length of the header, little-endian
#     header      JSON: schema, set (the same in all files written together), exchanges (of each its name and the
#                 fingerprint of its plan), rank, world_size, sizes, choice, edges, grid, and for each array its
#                 name, shape, and place in the file
#     arrays      as they are, each from a multiple of 64 bytes on
#     32 bytes    BLAKE2b of all before
#
# Arrays are the rank's items in each exchange and its edges by local rows; the rank compiles its programs itself. They
# are memory-mapped: pages that are never accessed stay on disk. The mapping is private, so writes to an array never
# reach the file. A file is accepted only if its hash is right and no index leads out of its arrays; nothing in it is
# ever executed.
#
# All files are written in a folder of their own inside ``DIR`` and then renamed. A writer killed before the renames
# leaves the old parts unchanged. A writer killed between two renames leaves a mix, which is refused: ranks compare
# the set ids of their parts, and each rank compares the plan's fingerprint with its part's. They also compare what
# their parts say of the rows that they exchange: ids and degrees at the owner and where a row arrives.
MAGIC = b"DGCLPART"
SCHEMA = "dgcl-part/5"
PLAN = "plan.npz"
ANEW = "prepare the parts anew (dgcl partition GRAPH --ranks P --out DIR/)"
_OTHER_PLANS = "plan-*.npz"
_PART = "rank-*.part"
_UNFINISHED = ".new-"
_ALIGNMENT = 64
_DIGEST_BYTES = 32
_LONGEST_HEADER = 1 << 20
_CHUNK = 1 << 22
_ITEMS = ("num_owned", "owned", "about_owned", "wanted", "incoming", "about_incoming")


def part_path(folder: str | os.PathLike[str], rank: int) -> Path:
    """Return the path of a rank's part."""
    return Path(folder) / f"rank-{rank:05d}.part"


def is_of_parts(name: str) -> bool:
    """Return whether a file or folder of this name belongs to parts, finished or not."""
    return any(fnmatch(name, pattern) for pattern in (PLAN, _OTHER_PLANS, _PART, f"{_UNFINISHED}*"))


def plan_name(number: int) -> str:
    """Return the file name of the plan of the exchange with this number."""
    return PLAN if number == 0 else f"plan-{number}.npz"


def save_parts(folder: str | os.PathLike[str], inputs: Sequence[RankInputs]) -> None:
    """Write the parts of all ranks and their plans; create the folder if needed.

    Replaces earlier parts and removes files left by a killed writer; so only one writer may run at a time.

    Raises:
        OSError: A file cannot be written; the earlier parts are unchanged.
    """
    place = Path(folder)
    place.mkdir(exist_ok=True)
    for left in place.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left)
    token = secrets.token_hex(8)
    plans = [each.plan for each in inputs[0].exchanges]
    new = place / f"{_UNFINISHED}{token}"
    new.mkdir()
    try:
        signs = [_sign(plan) for plan in plans]
        for mine in inputs:
            _write(part_path(new, mine.rank), _pieces(mine, _arrays(mine), token, signs))
        for number, plan in enumerate(plans):
            plan.save(new / plan_name(number))
        names = sorted(entry.name for entry in new.iterdir())
        for name in names:
            os.replace(new / name, place / name)
    finally:
        shutil.rmtree(new)
    for other in [*place.glob(_PART), *place.glob(_OTHER_PLANS)]:  # of more ranks or exchanges than now
        if other.name not in names:
            other.unlink()


def load_share(
    folder: str | os.PathLike[str], rank: int, world_size: int
) -> tuple[Share, tuple[str, RankInputs]]:
    """Make a rank's share from its part; and the id of the set that the part belongs to, and what it holds.

    Raises:
        ValueError: The folder or the file is missing, damaged, or for another rank or number of ranks.
        OSError: It cannot be opened.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise ValueError(f"parts must be the path of a folder (got {type(folder).__name__})")
    path = part_path(folder, rank)
    if not path.exists():
        stored = len([*path.parent.glob(_PART)])
        there = f", of {stored} parts there" if stored else ""
        raise ValueError(f"parts: {path} is missing{there}, and this job has {world_size} ranks; {ANEW}")
    try:
        with open_file(path) as file:
            memory = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        header = _checked_header(memory)
        of = header["rank"], header["world_size"]
        if of != (rank, world_size):
            raise ValueError(
                f"it is for rank {of[0]} of {of[1]}, and this is rank {rank} of {world_size}; start it on as many"
                f" ranks, or {ANEW}"
            )
        arrays = {name: _array(memory, name, *about) for name, about in header["arrays"].items()}
        inputs = _inputs(header, arrays, Path(folder))
        share = share_of(inputs)
        _check_edges(share.local, share.sizes[1])
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"parts: {path}: {error}") from error
    return share, (f"{header['set']} {header['exchanges']}", inputs)


def compare_rows(control: Control, inputs: RankInputs) -> None:
    """Compare ids and degrees of the rows that reach this rank with those in the parts of their owners. Collective.

    Raises:
        ValueError: Some rank's differ; on every rank.
    """
    problem = None
    for each in inputs.exchanges:
        frame = frame_of(each.plan, each.num_owned)
        theirs = from_owners(control, frame, np.vstack(each.owned), each.wanted_rows)
        if not np.array_equal(theirs, np.vstack(each.incoming)):
            problem = ValueError(
                f"parts: the file of rank {control.rank} has other ids or degrees for vertices of exchange"
                f" {each.name!r} than the files of their owners; {ANEW}"
            )
    agree(control, problem)


def _sign(plan: Plan) -> str:
    """Compute a plan's fingerprint from its contents, not from the one it states."""
    return fingerprint(plan_arrays(plan.relation, plan.trees), plan.meta)


def _arrays(inputs: RankInputs) -> dict[str, np.ndarray]:
    """Return the arrays of a part file."""
    local = share_of(inputs).local
    named = {name: getattr(local, name) for name in NumberedEdges._fields}
    for number, each in enumerate(inputs.exchanges):
        values = (each.num_owned, *each.owned, each.wanted_rows, *each.incoming)
        named |= {f"{number}.{name}": value for name, value in zip(_ITEMS, values, strict=True)}
    return {
        name: np.ascontiguousarray(value, _type_of(name))
        for name, value in named.items()
        if value is not None
    }


def _pieces(
    inputs: RankInputs, arrays: Mapping[str, np.ndarray], token: str, signs: Sequence[str]
) -> list[bytes | np.ndarray]:
    """Yield the pieces of a part file in order, without the hash."""
    begin, about = 0, {}
    for name, array in arrays.items():
        about[name] = [list(array.shape), begin]
        begin += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    header: dict[str, Any] = {
        "schema": SCHEMA,
        "set": token,
        "exchanges": [[each.name, sign] for each, sign in zip(inputs.exchanges, signs, strict=True)],
        "rank": inputs.rank,
        "world_size": len(inputs.exchanges[0].num_owned),
        "sizes": inputs.sizes,
        "choice": inputs.choice,
        "edges": inputs.placement,
        "grid": None if inputs.grid is None else str(inputs.grid),
        "arrays": about,
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGNMENT)
    pieces: list[bytes | np.ndarray] = [MAGIC + len(text).to_bytes(8, "little") + text]
    for array in arrays.values():
        pieces += [array, bytes(-array.nbytes % _ALIGNMENT)]
    return pieces


def _type_of(name: str) -> type:
    return np.int32 if name == "indices" else np.int64


def _write(path: Path, pieces: Sequence[bytes | np.ndarray]) -> None:
    """Write a file, followed by its hash."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with open(path, "xb") as file:
        for piece in pieces:
            data = piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8).data
            digest.update(data)
            file.write(data)
        file.write(digest.digest())


def _checked_header(memory: np.ndarray) -> dict[str, Any]:
    """Return a file's header after checking its hash."""
    start, content = len(MAGIC) + 8, memory[:-_DIGEST_BYTES]
    if len(content) < start or memory[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError("it is no part file")
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for begin in range(0, len(content), _CHUNK):
        digest.update(content[begin : begin + _CHUNK].data)
    if digest.digest() != memory[-_DIGEST_BYTES:].tobytes():
        raise ValueError(f"it is damaged (its hash is wrong); {ANEW}")
    length = int.from_bytes(memory[len(MAGIC) : start].tobytes(), "little")
    if not 0 < length <= min(_LONGEST_HEADER, len(content)):
        raise ValueError(f"its header cannot be {length} bytes long")
    header = json.loads(memory[start : start + length].tobytes())
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ValueError(f"it is not of schema {SCHEMA}, that of this version of dgcl; {ANEW}")
    header["arrays"] = {
        name: (shape, start + length + begin) for name, (shape, begin) in header["arrays"].items()
    }
    return header


def _array(memory: np.ndarray, name: str, shape: Sequence[int], begin: int) -> np.ndarray:
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"it holds an array of shape {shape}")
    kind = np.dtype(_type_of(name))
    end = begin + int(np.prod(shape, dtype=object)) * kind.itemsize
    if begin < 0 or end > len(memory) - _DIGEST_BYTES:
        raise ValueError("it ends within an array")
    return memory[begin:end].view(kind).reshape(shape)


def _inputs(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], folder: Path) -> RankInputs:
    world_size, exchanges = header["world_size"], []
    for number, (name, sign) in enumerate(header["exchanges"]):
        num_owned, owned, about, wanted_rows, incoming, brought = (
            arrays[f"{number}.{each}"] for each in _ITEMS
        )
        if (about.shape, brought.shape) != ((3, len(owned)), (3, len(incoming))) or wanted_rows.min(
            initial=0
        ) < 0:
            raise ValueError(f"its items in exchange {name!r} cannot be")
        plan = _plan(folder / plan_name(number), sign, world_size)
        exchanges.append(RankItems(name, plan, num_owned, (owned, about), wanted_rows, (incoming, brought)))
    return RankInputs(
        header["rank"],
        tuple(exchanges),
        NumberedEdges(arrays["indptr"], arrays["indices"], arrays["edge_first"], arrays.get("edge_order")),
        tuple(header["sizes"]),
        choice=header["choice"],
        placement=header["edges"],
        grid=None if header["grid"] is None else as_grid(header["grid"], world_size),
    )


def _check_edges(local: LocalGraph, num_edges: int) -> None:
    """Raise unless compiled code may index by a local graph's edges."""
    indptr, num_rows = local.indptr, local.num_owned + len(local.partial_ids)
    if (
        len(indptr) != num_rows + 1
        or indptr[0]
        or indptr[-1] != local.num_edges
        or (np.diff(indptr) < 0).any()
    ):
        raise ValueError("indptr does not divide its edges")
    for name, length, end in (
        ("indices", local.num_edges, local.num_local),
        ("edge_first", num_rows, num_edges + 1),
        ("edge_order", local.num_edges, num_edges),
    ):
        values = getattr(local, name)
        if values is not None and (values.shape != (length,) or any_outside(values, end)):
            raise ValueError(f"{name} must be {length} numbers in [0, {end})")


def _plan(path: Path, sign: str, world_size: int) -> Plan:
    """Load the plan in a file, if it is the one with this fingerprint."""
    plan = Plan.load(path)
    if plan.world_size != world_size:
        raise ValueError(f"{path.name} is for {plan.world_size} ranks, and this for {world_size}")
    if _sign(plan) != sign:
        raise ValueError(f"{path.name} beside it is another plan than the one that it was made for; {ANEW}")
    verify_plan(plan)
    return plan
