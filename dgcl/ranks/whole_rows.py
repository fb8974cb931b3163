"""Hands out rows of the whole graph to their owners and collects them; agrees on problems and settings of ranks.

All goes through the control plane. ``agree`` raises on every rank if one has a problem; ``require_same`` raises where
ranks have different settings. Rows may be given on rank 0 alone, or on all ranks if they are equal (a checksum tells).

Called by `dgcl/communicator`, `dgcl/build`, `dgcl/offload/offload`, `dgcl/prepare/part_files`,
`dgcl/distributed/dispatch` and others. Free to change while owners get their rows, collected rows are in global order,
and a mistake of one rank is an error on all (`tests/dgcl/test_communicator.py`).
"""

import os
import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from numbers import Number
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.ranks.control import Control


def dispatch_rows(
    control: Control, values: Any, expected: int, ids: np.ndarray, name: str, what: str, num_edges: int = 0
) -> Tensor:
    """This rank's rows of ``values``, which rank 0 has, or every rank.

    Args:
        control: The control plane; the call is collective.
        values: ``(expected, *F)`` tensor or array, or None.
        expected: How many rows it must have.
        ids: The rows that this rank wants.
        name, what: The argument and what a row stands for, for messages.
        num_edges: So many rows, where rows of vertices are expected, are those of edges, says the message.

    Raises:
        ValueError: Something is wrong on some rank; every rank raises.
    """
    rows, problem = _as_rows(values, name)
    if problem is None and rows is not None and len(rows) != expected:
        problem = (
            f"{name} must have one row for each of the {expected} {what} (got shape {tuple(rows.shape)})"
        )
        if len(rows) == num_edges:
            problem += "; these are the rows of edges: hand them out with comm.dispatch_edges"
        elif len(rows) == len(ids):
            problem += (
                "; these are the rows of this rank already: use them as they are, or give all, on rank 0"
            )
        elif what == "vertices" and len(rows) > expected:  # an edge_index does not count them
            problem += (
                "; if the last vertices have no edges, build the communicator from"
                f" dgcl.graph.as_graph(edge_index, num_nodes={len(rows)})"
            )
    reports = control.exchange(
        (
            problem,
            None
            if rows is None or problem is not None
            else ((tuple(rows.shape), rows.dtype), _checksum(rows)),
        )
    )
    for rank, (text, _) in enumerate(reports):
        if text is not None:
            raise ValueError(f"{text}, on rank {rank}")
    kinds, sums = zip(*(((None, 0) if values is None else values) for _, values in reports), strict=True)
    if kinds[0] is None:
        raise ValueError(f"{name} must be given on rank 0 (got None there)")
    if all(kind is not None for kind in kinds):
        require_same(**{f"shape and dtype of {name}": kinds})
        if any(checksum != sums[0] for checksum in sums):
            odd = next(rank for rank, checksum in enumerate(sums) if checksum != sums[0])
            raise ValueError(
                f"{name} must be the same on every rank where each gives them (those of rank {odd} differ from rank"
                f" 0's); give them on rank 0 alone and None elsewhere, or make them with the same seed"
            )
        assert rows is not None
        return _take(rows, ids)
    ids_of_ranks = control.gather(ids)
    pieces = None
    if ids_of_ranks is not None:
        assert rows is not None
        pieces = [_take(rows, some) for some in ids_of_ranks]
    return control.scatter(pieces)


def agree(
    control: Control, problem: Exception | None, report: Any = None, *, each: bool = False
) -> list[Any]:
    """Raise on every rank if one has a problem, on the others a ValueError with its text. Collective.

    Returns:
        The reports of all ranks; with ``each`` a rank has one for every rank.
    """
    text = None if problem is None else str(problem) or type(problem).__name__
    if each:
        pairs = {id(one): (text, one) for one in report}  # what goes to all is pickled once
        said = control.all_to_all([pairs[id(one)] for one in report])
    else:
        said = control.exchange((text, report))
    if problem is not None:
        raise problem
    for rank, (text, _) in enumerate(said):
        if text is not None:
            raise ValueError(f"{text}, on rank {rank}")
    return [each for _, each in said]


def require_same(**settings: Sequence[Any]) -> None:
    """Raise where a rank has another setting than rank 0; of each setting those of all ranks.

    Raises:
        ValueError: Naming the first that differs.
    """
    for name, values in settings.items():
        if other := next((rank for rank, value in enumerate(values) if value != values[0]), 0):
            raise ValueError(
                f"{name} must be the same on every rank (got {values[0]!r} on rank 0 and {values[other]!r} on rank"
                f" {other})"
            )


def collect_rows(
    control: Control,
    rows: Tensor,
    ids: np.ndarray,
    num_rows: int,
    dst: int | None,
    file: str | PathLike[str] | None,
) -> Tensor | None:
    """Every rank's rows as one ``(num_rows, *F)`` tensor. Collective.

    Args:
        control: The control plane.
        rows, ids: This rank's rows, and their places in the result.
        num_rows: Of the result.
        dst: The rank that gets it; None: every rank.
        file: Where rank ``dst`` (rank 0 for None) writes it as ``.npy``; then nobody gets it.

    Raises:
        ValueError: Ranks disagree on the shape, the dtype or ``dst``, or the file cannot be written; every rank raises.
    """
    reports = control.exchange(((tuple(rows.shape[1:]), rows.dtype), dst))
    kinds, receivers = [kind for kind, _ in reports], [rank for _, rank in reports]
    require_same(dst=receivers, **{"trailing shape and dtype of rows": kinds})
    # A copy: rank `dst` may be a thread that still reads when this rank has returned and writes to its rows.
    mine = (ids, rows.detach().to("cpu", copy=True).contiguous())
    pieces = control.exchange(mine) if dst is None and file is None else control.gather(mine, dst or 0)
    result = None
    if pieces is not None:
        result = rows.new_empty((num_rows, *rows.shape[1:]), device="cpu")
        for some, piece in pieces:
            result[torch.from_numpy(some)] = piece
    if file is None:
        return result
    problem = None
    if result is not None:
        try:
            _save(result, Path(file))
        except (OSError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            problem = f"file: cannot write {os.fspath(file)}: {why}"
    for text in control.exchange(problem):
        if text is not None:
            raise ValueError(text)
    return None


def _as_rows(values: Any, name: str) -> tuple[Tensor | np.ndarray | None, str | None]:
    """The argument as a CPU tensor, or an array whose type torch has; or what is wrong with it."""
    if values is None:
        return None, None
    rows: Tensor | np.ndarray
    if isinstance(values, Tensor):
        if values.is_meta:
            return None, f"{name} must have values (got a tensor on the device meta)"
        if values.layout != torch.strided:
            return None, f"{name} must be dense (got {values.layout}; call .to_dense())"
        rows = values.detach().cpu()
    elif not hasattr(values, "__array__") and not isinstance(values, (Sequence, memoryview, Number)):
        return None, f"{name} must be a tensor or an array, such as data.x (got {type(values).__name__})"
    else:
        try:
            rows = np.asarray(values)  # not as a tensor: arrays may be read-only, or mapped files
            torch.from_numpy(np.empty(0, rows.dtype))
        except (TypeError, ValueError) as error:
            return None, f"{name} cannot be made a tensor: {error}"
    if rows.ndim == 0:
        return None, f"{name} must have rows (got a scalar)"
    return rows, None


def _checksum(rows: Tensor | np.ndarray) -> int:
    """Of at most 64 rows, evenly spread: enough to tell random rows apart, whatever their number."""
    some = _take(rows, np.unique(np.linspace(0, max(len(rows) - 1, 0), 64).astype(np.int64))[: len(rows)])
    return zlib.crc32(some.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _take(rows: Tensor | np.ndarray, ids: np.ndarray) -> Tensor:
    """A copy of rows ``ids``."""
    return rows[torch.from_numpy(ids)] if isinstance(rows, Tensor) else torch.from_numpy(rows[ids])


def _save(tensor: Tensor, path: Path) -> None:
    """Write ``path`` whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as stream:
            np.save(stream, tensor.numpy(), allow_pickle=False)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
