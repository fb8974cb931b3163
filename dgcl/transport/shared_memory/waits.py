"""Describes what a call waits for, and packs the tag that all ranks of a call compare."""

from collections.abc import Mapping, Sequence

from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.row_types import RowType
from dgcl.transport.shared_memory.tasks import call_label
from dgcl.transport.steps import purpose_name

_MOST_WAITS = 5  # in a message
_ROW_BYTES_BITS = 37
_PURPOSE_BIT = _ROW_BYTES_BITS + 8
_VERB_BIT = _PURPOSE_BIT + 3
#: Largest number of exchanges of a communicator, windows included: a tag has 14 bits for the exchange.
MOST_EXCHANGES = (1 << 62 - _VERB_BIT) - 1


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
    roots: Mapping[int, int] | None,
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


def verb_of_tag(tag: int) -> int:
    """The verb of a tag: EXPAND or FOLD."""
    return (tag >> _VERB_BIT) & 1


def exchange_of_tag(tag: int) -> int:
    """The number of the exchange of a tag."""
    return tag >> _VERB_BIT + 1


def unpack_tag(tag: int, names: Sequence[str]) -> str:
    """Describe a tag in words; ``names`` are the names of the exchanges."""
    from dgcl.transport.shared_memory.dtypes import dtype_bytes, dtype_name

    row_bytes, code = tag & ((1 << _ROW_BYTES_BITS) - 1), (tag >> _ROW_BYTES_BITS) & 0xFF
    width = row_bytes // dtype_bytes(code)
    what = call_label(exchange_of_tag(tag), verb_of_tag(tag), names)
    purpose = purpose_name(tag >> _PURPOSE_BIT & 7)
    return f"{what} of rows of {row_bytes} bytes, {dtype_name(code)} (width {width}){purpose and f', for a {purpose}'}"
