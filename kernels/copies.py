"""Copies rows: with prefetching where rows are read at random addresses, past the caches where results are large.

`prefetch_row` and `claim_row` fetch cache lines before they are read or written; `stream_bytes` writes past the caches
and needs a `write_fence` before a flag publishes the result; `write_bytes` chooses by size (`STREAMED`).
Called by `rows`, `row_moves`, `edge_sums`, `dgcl/transport/shared_memory/interpreter`, `dgcl/transport/precompile` and
others. Free to change while rows arrive byte for byte, of any size and alignment, and nothing beside them is written
(`tests/kernels/test_rows.py`).
"""

from numba import int64, njit, void

from dgcl.kernels.compiled import compiled
from dgcl.kernels.memory import claim_line, copy_bytes, prefetch_line, stream_line, write_fence

#: Prefetch distance of scattered reads, in rows: some 100 ns of latency over some 15 ns per row.
AHEAD = 8

#: Prefetch distance of result rows, in rows; they are contiguous, so the hardware helps.
CLAIMED = 4

#: Results of this many bytes are written past the caches where the caller knows no better. Several ranks share a
#: last-level cache of tens of megabytes, and each reads as much as it writes.
STREAMED = 8 << 20

_LINE_BYTES = 64
_PREFETCHED = 2048  # of a row; beyond, the hardware prefetcher has detected the sequence


# Two effects slow a plain copy loop down:
#
# - Rows are often read from random addresses, and nothing hides the latency: :func:`prefetch_row` prefetches some rows
#   ahead.
# - A write to memory that is in no cache, or in another core's, first fetches the lines to be overwritten.
#   :func:`claim_row` prefetches them too, which saves a quarter of the time of a gather of cold rows.
#   :func:`stream_bytes` writes past the caches, with a third less traffic, if the result would not stay in them anyway.


@njit(nogil=True, inline="always")
def prefetch_row(address: int, row_bytes: int) -> None:
    """Prefetch a row that will be read soon."""
    for offset in range(0, min(row_bytes, _PREFETCHED), _LINE_BYTES):
        prefetch_line(address + offset)


@njit(nogil=True, inline="always")
def claim_row(address: int, row_bytes: int) -> None:
    """Prefetch the memory of a row that will be written soon."""
    for offset in range(0, min(row_bytes, _PREFETCHED), _LINE_BYTES):
        claim_line(address + offset)


@njit(nogil=True, inline="never")
def stream_bytes(destination: int, source: int, num_bytes: int) -> None:
    """Copy between addresses that do not overlap, past the caches.

    :func:`~dgcl.kernels.memory.write_fence` must follow before a flag publishes the result."""
    head = min(-destination % _LINE_BYTES, num_bytes)
    lines = (num_bytes - head) // _LINE_BYTES * _LINE_BYTES
    copy_bytes(destination, source, head)
    for offset in range(head, head + lines, _LINE_BYTES):
        stream_line(destination + offset, source + offset)
    copy_bytes(destination + head + lines, source + head + lines, num_bytes - head - lines)


@compiled(void(int64, int64, int64))
def write_bytes(destination: int, source: int, num_bytes: int) -> None:
    """Copy ``num_bytes`` between addresses that do not overlap, without the GIL."""
    if num_bytes < STREAMED:
        copy_bytes(destination, source, num_bytes)
    else:
        stream_bytes(destination, source, num_bytes)
        write_fence()
