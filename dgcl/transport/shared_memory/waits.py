"""Describes what a call waits for, and packs the tag that all ranks of a call compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.engine import ITS_DONE, READY, read_word
from dgcl.transport.shared_memory.row_types import RowType
from dgcl.transport.shared_memory.tasks import Call, call_label
from dgcl.transport.steps import purpose_name

_MOST_WAITS: Final = 5  # in a message
_ROW_BYTES_BITS: Final = 37
_PURPOSE_BIT: Final = _ROW_BYTES_BITS + 8
_VERB_BIT: Final = _PURPOSE_BIT + 3
#: Largest number of exchanges of a communicator, windows included: a tag has 14 bits for the exchange.
MOST_EXCHANGES: Final = (1 << 62 - _VERB_BIT) - 1


def awaited(call: Call) -> list[tuple[int, str]]:
    """The peers that a call waits for, and what each one still has to do; earliest stage first."""
    task, schedule = call.task, call.task.schedule
    waits: list[tuple[int, int, str]] = []
    for i in np.flatnonzero(task.received == 0):
        rows, stage = count_rows(schedule.recv_count[i].sum()), int(schedule.recv_stage[i])
        peer = int(schedule.recv_peer[i])
        waits.append((stage, peer, f"stage {stage}: {rows} missing from rank {peer}"))
    for i in np.flatnonzero(call.unsent()):
        peer, stage = int(schedule.send_peer[i]), int(schedule.send_stage[i])
        rows = count_rows(schedule.send_count[i].sum())
        if read_word(int(task.peers[peer, READY])) < call.number:
            waits.append((stage, peer, f"stage {stage}: rank {peer} is not ready to receive {rows}"))
        elif task.remote[i]:
            waits.append((stage, peer, f"stage {stage}: {rows} to rank {peer} are not through the network"))
    return [(peer, text) for _, peer, text in sorted(waits)]


def end_of_row(rank: int, peer: int, control_pages: Sequence[ControlPage], seconds: float) -> int:
    """The rank at the end of a chain of waits: ``rank`` waits for ``peer``, which may wait for another.

    A rank that has not said in the last ``seconds`` that it waits, because it is late, stopped or cut off, ends it.
    """
    seen = {rank, peer}
    while (after := control_pages[peer].waits_for(seconds)) is not None and after not in seen:
        peer = after
        seen.add(peer)
    return peer


def progress(call: Call) -> str:
    """The stage that a call has reached, in words."""
    schedule = call.task.schedule
    undone = [*schedule.recv_stage[call.task.received == 0], *schedule.send_stage[call.unsent()]]
    return f"stage {min(undone)}" if undone else "its end"


def suspects(
    waits: list[tuple[int, str]],
    number: int,
    control_pages: Sequence[ControlPage],
    stopped: Sequence[int] = (),
    roots: Mapping[int, int] | None = None,
) -> str:
    """Describe the peers that are waited for, most suspicious first.

    First ranks that are ``stopped``, then those that have not begun call ``number``, then those that are waiting
    themselves, with the rank at the end of the row (``roots``, by peer).
    """
    roots = roots or {}
    begun = {peer: control_pages[peer].current_call()[0] >= number for peer, _ in waits}
    ends = {peer: roots.get(peer, peer) for peer, _ in waits}
    waits = sorted(waits, key=lambda wait: (wait[0] not in stopped, ends[wait[0]] != wait[0], begun[wait[0]]))
    known = [
        f"{needed} (it {'is in this call' if begun[peer] else 'has not begun this call'}"
        f"{'' if ends[peer] == peer else f', and waits for rank {ends[peer]}'})"
        for peer, needed in waits[:_MOST_WAITS]
    ]
    known += [f"and {len(waits) - _MOST_WAITS} more"] if len(waits) > _MOST_WAITS else []
    known += [f"the process of rank {rank} is stopped" for rank in stopped]
    return "; ".join(known)


def arrived_meanwhile(call: Call, peer: int, control_pages: Sequence[ControlPage], num_stages: int) -> bool:
    """Whether nothing is missing from ``peer`` any more: its rows have arrived, and it can receive."""
    task, schedule = call.task, call.task.schedule
    missing = (task.received == 0) & (schedule.recv_peer == peer)
    base = call.number * num_stages + 1
    done = read_word(int(task.peers[peer, ITS_DONE]))
    if any(done < base + int(stage) for stage in schedule.recv_stage[missing]):
        return False
    # Read before the unsent sends: a sender that has ended by then has marked all that was sent.
    stopped = call.job is not None and call.job.sender_done.is_set()
    unsent = call.unsent() & (schedule.send_peer == peer)
    if unsent.any() and read_word(int(task.peers[peer, READY])) < call.number:
        return False
    # A posted send may complete before the sender notices, but not after the sender has ended.
    went_on = control_pages[peer].current_call()[0] > call.number
    return went_on or not (stopped and (unsent & task.remote).any())


def pack_tag(verb: int, row_type: RowType, exchange: int = 0, purpose: int = 0) -> int:
    """Pack what all ranks of a call compare into one word: exchange, verb, purpose, element type and row size."""
    assert row_type.row_bytes < 1 << _ROW_BYTES_BITS
    assert exchange < MOST_EXCHANGES
    return (
        (exchange << _VERB_BIT + 1)
        | (verb << _VERB_BIT)
        | (purpose << _PURPOSE_BIT)
        | (row_type.code << _ROW_BYTES_BITS)
        | row_type.row_bytes
    )


def verb_of_tag(tag: int) -> int:
    """The verb of a tag: EXPAND or FOLD."""
    return (tag >> _VERB_BIT) & 1


def exchange_of_tag(tag: int) -> int:
    """The number of the exchange of a tag."""
    return tag >> _VERB_BIT + 1


def unpack_tag(tag: int, names: Sequence[str] = ()) -> str:
    """Describe a tag in words; ``names`` are the names of the exchanges."""
    from dgcl.transport.shared_memory.dtypes import dtype_bytes, dtype_name

    row_bytes, code = tag & ((1 << _ROW_BYTES_BITS) - 1), (tag >> _ROW_BYTES_BITS) & 0xFF
    width = row_bytes // dtype_bytes(code)
    what = call_label(exchange_of_tag(tag), verb_of_tag(tag), names)
    purpose = purpose_name(tag >> _PURPOSE_BIT & 7)
    return f"{what} of rows of {row_bytes} bytes, {dtype_name(code)} (width {width}){purpose and f', for a {purpose}'}"


def count_rows(count: int | np.integer) -> str:
    """A number of rows in words."""
    return f"{count} row" if count == 1 else f"{count} rows"
