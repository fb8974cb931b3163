"""The collective transport: a stage of a plan is an ``index_select``, one ``all_to_all_single`` of bytes, and sums.

Nothing here but torch operations touches rows, so the same lines carry them on every device that torch has. It is the
floor: what runs wherever ``torch.distributed`` runs, and what faster transports are held against, bit by bit.

============================================  =========================================================================
module                                        what
============================================  =========================================================================
:mod:`dgcl.transport.collective.stage_table`  a program as stages: rows to pack, places of arrivals, layers of sums
:mod:`dgcl.transport.collective.wires`        how the bytes of a stage travel: a backend of torch's, pinned copies and
                                              Gloo, or slices of tensors between ranks that are threads
:mod:`dgcl.transport.collective.call`         a call that is under way, stage by stage
:mod:`dgcl.transport.collective.agreement`    which call each rank is in, and why one cannot go on
:mod:`dgcl.transport.collective.transport`    expand and fold of tensors
============================================  =========================================================================

Invariants:

- *Agreement before rows.* Each rank publishes which call it begins and then reads what the others have published,
  before it sends anything. So of two ranks that make different calls at least one sends nothing. A call ends when all
  ranks that it concerns have begun it, so what a rank has published is never overwritten unread.
- *Fixed order of sums.* What arrives for a row is added in the order of its slots, one layer of distinct rows after the
  other: no atomics, and the bits of the shared-memory transport.
- *One order of calls.* All ranks make the calls of all communicators, begin and wait, in one order. A group of our own
  carries the stages, so on the CPU those of the user's groups never meet them; on a device, where collectives wait in
  one queue, the order of both must be the same on every rank.
"""
