"""Names calls in messages, lists what they wait for, and packs the tag that all ranks compare.

A call's *tag* is one 64-bit word: exchange, verb (expand or fold), purpose, element type and bytes of a row. Messages
name first the peers that are stopped, then those that have not begun the call, then those that wait for others
themselves.
Called by `failure_detector`, `life_cycle`, `dgcl/transport/shared_memory/tasks`, `dgcl/transport/collective/transport`,
`dgcl/transport/cuda/device_exchange` and others. Free to change while calls that differ in any of these have different
tags (`tests/dgcl/transport/test_several_exchanges.py`), and errors name the rank at fault
(`tests/dgcl/faults/test_odd_rank.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dgcl.program.rank_program import Schedule
from dgcl.transport.common.control_page import ControlPage
from dgcl.transport.common.dtypes import RowType, dtype_bytes, dtype_name
from dgcl.transport.steps import purpose_name

_MOST_WAITS = 5  # in a message
_ROW_BYTES_BITS = 37
_PURPOSE_BIT = _ROW_BYTES_BITS + 8
_VERB_BIT = _PURPOSE_BIT + 3
#: Largest number of exchanges of a communicator, windows included: a tag has 14 bits for the exchange.
MOST_EXCHANGES = (1 << 62 - _VERB_BIT) - 1


VERBS = ("expand", "fold")


def count_rows(count: int | np.integer) -> str:
    """A number of rows in words."""
    return f"{count} row" if count == 1 else f"{count} rows"


def call_label(exchange: int, verb: int, names: Sequence[str]) -> str:
    """The name of a verb of an exchange in messages; the first exchange is not named."""
    if exchange == 0:
        return VERBS[verb]
    name = names[exchange] if exchange < len(names) else str(exchange)
    return f"{VERBS[verb]} of exchange {name!r}"


class UnderWay(Protocol):
    """A call that is under way.

    Attributes:
        number, tag, label: The call, what all ranks compare, and its name in messages.
    """

    number: int
    tag: int
    label: str

    @property
    def order(self) -> int:
        """It grows with calls and their stages; who is in a stage has sent what others need in it."""
        return self.number

    @property
    def place(self) -> str:
        """The stage that it has reached, in words."""

    @property
    def waits(self) -> list[tuple[int, str]]:
        """The peers that it waits for, and what each one still has to do."""

    def lacks(self, peer: int) -> bool:
        """Whether something of a peer's is missing, which may have gone on, or be gone."""


def waits_of(schedule: Schedule, missing: Any, unready: Any) -> list[tuple[int, str]]:
    """The peers that a call waits for, and what each one still has to do; earliest stage first.

    Args:
        schedule: The call's.
        missing: ``(R,)`` which receives have not come.
        unready: ``(S,)`` which sends wait for their receivers.
    """
    sides = (
        (schedule.recv_stage, schedule.recv_peer, schedule.recv_count, missing, "{1} missing from rank {0}"),
        (
            schedule.send_stage,
            schedule.send_peer,
            schedule.send_count,
            unready,
            "rank {0} is not ready to receive {1}",
        ),
    )
    waits = [
        (int(stages[i]), int(peers[i]), words.format(peers[i], count_rows(counts[i].sum())))
        for stages, peers, counts, some, words in sides
        for i in np.flatnonzero(some)
    ]
    return [(peer, f"stage {stage}: {what}") for stage, peer, what in sorted(waits)]


def end_of_row(rank: int, peer: int, control_pages: Sequence[ControlPage], seconds: float) -> int:
    """The rank at the end of a chain of waits: ``rank`` waits for ``peer``, which may wait for another.

    A rank that has not said in the last ``seconds`` that it waits, because it is late, stopped or cut off, ends it.
    """
    seen = {rank, peer}
    while (after := control_pages[peer].waits_for(seconds)) is not None and after not in seen:
        peer = after
        seen.add(peer)
    return peer


def suspects(
    waits: list[tuple[int, str]],
    number: int,
    control_pages: Sequence[ControlPage],
    stopped: Sequence[int],
    ends: Mapping[int, int],
) -> str:
    """Describe the peers that are waited for, most suspicious first.

    First ranks that are ``stopped``, then those that have not begun call ``number``, then those that are waiting
    themselves, with the rank at the end of the row (``ends``, by peer).
    """
    begun = {peer: control_pages[peer].current_call()[0] >= number for peer, _ in waits}
    waits = sorted(waits, key=lambda wait: (wait[0] not in stopped, ends[wait[0]] != wait[0], begun[wait[0]]))
    known = [
        f"{needed} (it {'is in this call' if begun[peer] else 'has not begun this call'}"
        f"{'' if ends[peer] == peer else f', and waits for rank {ends[peer]}'})"
        for peer, needed in waits[:_MOST_WAITS]
    ]
    known += [f"and {len(waits) - _MOST_WAITS} more"] if len(waits) > _MOST_WAITS else []
    known += [f"the process of rank {rank} is stopped" for rank in stopped]
    return "; ".join(known)


def pack_tag(verb: int, row_type: RowType, exchange: int, purpose: int = 0) -> int:
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


def unpack_tag(tag: int, names: Sequence[str]) -> str:
    """Describe a tag in words; ``names`` are the names of the exchanges."""
    row_bytes, code = tag & ((1 << _ROW_BYTES_BITS) - 1), (tag >> _ROW_BYTES_BITS) & 0xFF
    width = row_bytes // dtype_bytes(code)
    what = call_label(tag >> _VERB_BIT + 1, tag >> _VERB_BIT & 1, names)
    purpose = purpose_name(tag >> _PURPOSE_BIT & 7)
    return f"{what} of rows of {row_bytes} bytes, {dtype_name(code)} (width {width}){purpose and f', for a {purpose}'}"
