"""Dropout that depends on the vertex, not on the rank: the same for any number of ranks.

A random generator per rank would drop other elements with every partition. Here whether an element is dropped is a pure
function of (seed, call, global id of the vertex, column), so one device and any number of ranks drop the same elements,
a halo row is dropped as its owner drops it, and no state needs to be kept for the backward.
Called by users, `attention`, `stack`, `dgcl/offload/layer`, `dgcl/rows/drawing` and others. Free to change while masks
are the same bits as now (a known mask is computed by hand), and checkpointed forwards drop the same again
(`tests/dgcl/nn/test_vertex_dropout.py`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.graph.typed import within
from dgcl.nn.layer_arguments import current, require_integers
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.torch_private import current_graph_task
from dgcl.topology.checks import check_flag, check_index

# SplitMix64's odd constants as signed 64-bit integers: torch's int64 products wrap, as the generator wants.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64

BLOCK = 1 << 15
"""64-bit words hashed at a time on a CPU: the dozen passes of the hash then run in its cache, each too small
for torch to share out among threads, which would then meet after every pass."""


#: What :func:`_once` keeps, by communicators and chunks.
_on_devices: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


# The function is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) in two levels: seed and call pick a stream,
# whose id-th number is the key of a row, which picks the stream of the row's columns. 64 bits give two columns
# their 32 bits each.


class _Scope(threading.local):
    rows: Any = None


_scope = _Scope()


@contextmanager
def rows_of_call(rows: Any) -> Iterator[None]:
    """Let dropout of this thread work on other rows than a communicator's: those of one chunk, for example.

    They number their calls themselves, so they may be computed again in a backward.

    Args:
        rows: With ``rank``, ``num_owned``, ``num_halo``, ``owned_ids``, ``halo_ids`` and ``next_dropout_call()``, as a
            communicator has them.
    """
    before, _scope.rows = _scope.rows, rows
    try:
        yield
    finally:
        _scope.rows = before


class Dropout(torch.nn.Module):
    """:func:`dropout` as a module, in place of ``torch.nn.Dropout``.

    Has no state of its own: the communicator counts the calls, so several modules, or one that is applied
    several times, drop independently, and the names in a checkpoint are those of one device. To go on with the
    masks of an interrupted run save ``comm.state_dict()`` beside it.

    Args:
        p: the probability of an element to be dropped.
        seed: any integer, the same on every rank.
        comm: the communicator; default the current one at each call.
    """

    dgcl_base = torch.nn.Dropout  # what it is on one device

    def __init__(self, p: float = 0.5, *, seed: int = 0, comm: Communicator | None = None) -> None:
        super().__init__()
        self.p = check_probability(p)
        require_integers(seed=seed)
        self.seed = seed
        self._comm = None if comm is None else current(comm)

    def forward(self, x: Tensor, *, call: int | None = None, ids: Tensor | None = None) -> Tensor:
        """Drop elements in training; in evaluation return ``x``."""
        return dropout(x, self.p, self.training, seed=self.seed, call=call, ids=ids, comm=self._comm)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"p={self.p}, seed={self.seed}"


def dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    seed: int = 0,
    call: int | None = None,
    ids: Tensor | None = None,
    comm: Communicator | None = None,
) -> Tensor:
    """Zero each element with probability ``p`` and scale the others by 1 / (1 - p).

    The same elements for any number of ranks.

    Args:
        x: (num_owned, *F) owned rows, or (num_owned + num_halo, *F) rows as ``dgcl.graph_allgather`` returns
            them.
        p: the probability, exact to 2**-32.
        training: if false, ``x`` is returned.
        seed: any integer, the same on every rank.
        call: the number of this call; each gives an independent mask. Default: the next number of the
            communicator, which counts from 0, so ranks that run the same program agree. Activation checkpointing,
            which computes a forward twice, drops the same both times; where ranks are threads give the number.
        ids: (rows,) int64, by which the rows of ``x`` are known, whatever they are of: for attention or edge weights
            ``edge_ids`` of the rank's graph, places in the order of the given edges.
        comm: the communicator; default the current one.

    Raises:
        ValueError: ``p`` is no probability, or ``x`` has another number of rows.
        RuntimeError: a forward that is recomputed inside a backward has no ``call``, and none can be found.
    """
    check_probability(p)
    require_tensors(x=x)
    require_integers(seed=seed)
    if call is not None:
        check_index(call, "call", -(2**63), 2**63 - 1)
    if not check_flag(training, "training") or p == 0.0:
        return x
    if x.dim() == 0 or x.layout != torch.strided:
        raise ValueError(f"x must be dense rows (got shape {tuple(x.shape)}, {x.layout})")
    scope = None if torch.compiler.is_compiling() else _scope.rows
    comm = current(comm) if scope is None else None
    rows: Any = scope or comm
    if ids is not None:
        require_tensors(ids=ids)
        if ids.dtype != torch.int64 or ids.layout != torch.strided or ids.shape != x.shape[:1]:
            raise ValueError(
                f"ids must be ({len(x)},) int64, one for each row of x (got {tuple(ids.shape)} {ids.dtype})"
            )
    else:
        ids = _once(rows, (len(x), x.device), lambda: _row_ids(x, rows))
    if call is None:
        call = rows.next_dropout_call() if comm is None else next_call(comm)
    kept = keep_mask(ids, x.shape[1:].numel(), p, seed=seed, call=call).view(x.shape)
    return torch.where(kept, x * scale_of(p), 0.0)


def scale_of(p: float) -> float:
    """What elements that are kept are multiplied with; none are with ``p`` 1."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def next_call(comm: Communicator) -> int:
    """The number of a call of dropout that none is given for; a call that is computed again has the number that it had.

    Activation checkpointing restores torch's generator before it computes again, so a call knows itself by what it
    draws. Ranks that are threads share that generator.

    Raises:
        RuntimeError: A forward is recomputed inside a backward, and the call is not known.
    """
    if torch.compiler.is_compiling():
        return comm.next_dropout_call()
    alone, calls = comm.control.threads_of_ranks == 1, _calls.setdefault(comm, {})
    drawn = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if alone else 0
    if current_graph_task() == -1:  # not in a backward
        call = calls[drawn] = comm.next_dropout_call()
        if len(calls) > _RECENT:
            del calls[next(iter(calls))]
        return call
    if alone and drawn in calls:
        return calls[drawn]
    raise RuntimeError(
        "dropout is being recomputed inside a backward (activation checkpointing) and would drop other elements than"
        " the forward did; use checkpoint(..., preserve_rng_state=True), its default, and ranks that are processes, or"
        " pass call=, the number of the step for example"
    )


_RECENT = 4096
_calls: WeakKeyDictionary[Communicator, dict[int, int]] = WeakKeyDictionary()


def keep_mask(ids: Tensor, num_columns: int, p: float, *, seed: int, call: int) -> Tensor:
    """Which elements are kept: (rows, num_columns) bool, each True with probability 1 - p.

    Args:
        ids: (rows,) int64 global vertex ids.
        num_columns: elements in each row.
        p: the probability of False, exact to 2**-32.
        seed: any integer.
        call: any integer of 64 bits.
    """
    words_per_row = -(-num_columns // 2)
    keys = _row_keys(ids, seed, call).unsqueeze(1)
    columns = torch.arange(words_per_row, device=ids.device) * GOLDEN
    threshold = round(p * 2**32)
    kept = torch.empty(len(ids), words_per_row, 2, dtype=torch.bool, device=ids.device)
    in_blocks = ids.device.type == "cpu" and not torch.compiler.is_compiling()  # a compiler fuses the passes
    rows_per_block = max(1, BLOCK // max(1, words_per_row)) if in_blocks else max(1, len(ids))
    for start in range(0, len(ids), rows_per_block):
        block = slice(start, start + rows_per_block)
        words = _mix(keys[block] + columns)
        kept[block, :, 0] = _shift_right(words, 32) >= threshold
        kept[block, :, 1] = words.bitwise_and_(0xFFFFFFFF) >= threshold
    return kept.flatten(1)[:, :num_columns]


def _row_keys(ids: Tensor, seed: int, call: int) -> Tensor:
    """(rows,) int64: a key for each row, one stream of keys for each (seed, call)."""
    signed = (seed + 2**63) % 2**64 - 2**63  # as torch's int64 holds it
    stream = _mix(torch.full((1,), signed, dtype=torch.int64, device=ids.device))
    stream = _mix(stream + torch.full((1,), call, dtype=torch.int64, device=ids.device) * GOLDEN)
    return _mix(stream + ids * GOLDEN)


def _mix(words: Tensor) -> Tensor:
    """SplitMix64's output function: a bijection of 64-bit words in which every bit depends on every bit."""
    words = _shift_right(words, 30).bitwise_xor_(words).mul_(MIX_1)
    words = _shift_right(words, 27).bitwise_xor_(words).mul_(MIX_2)
    return _shift_right(words, 31).bitwise_xor_(words)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """A shift that brings in zeros; torch's brings in the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def check_probability(p: float) -> float:
    """A number from 0 to 1."""
    if isinstance(p, bool) or not isinstance(p, Real) or not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be a probability in [0, 1] (got {p!r})")
    return p


def _once(rows: Any, key: Any, make: Callable[[], Any]) -> Any:
    """What is made of ids, kept where they are on a device: a host that copies them there waits for it."""
    if key[-1].type == "cpu" or torch.compiler.is_compiling():
        return make()
    kept = _on_devices.setdefault(rows, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


def _row_ids(x: Tensor, comm: Any) -> Tensor:
    """The global id of each row of ``x``."""
    if len(x) == comm.num_owned:
        ids = comm.owned_ids
    elif getattr(comm, "edges", "") == "grid":  # a communicator's; what a chunk is read from has none
        raise ValueError(
            f"x must have {comm.num_owned} rows (owned) on rank {comm.rank} (got {len(x)}): on a grid whole rows are"
            " dropped, whose columns are known; drop before comm.slices, or after comm.rows"
        )
    elif len(x) == comm.num_owned + comm.num_halo:
        ids = torch.cat([comm.owned_ids, comm.halo_ids])
    elif fitting := [
        own + first
        for first, number in getattr(comm, "node_types", {}).values()
        if len(own := within(comm.owned_ids, first, number)) == len(x)
    ]:  # rows of one type; of several that have as many here, the first
        ids = fitting[0]
    else:
        raise ValueError(
            f"x must have {comm.num_owned} rows (owned) or {comm.num_owned + comm.num_halo} (owned and halo)"
            f" on rank {comm.rank} (got {len(x)})"
        )
    return ids.to(x.device)
