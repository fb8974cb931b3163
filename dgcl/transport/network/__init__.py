"""The network channel: rows between ranks that share no memory, through ``torch.distributed`` point-to-point.

A *partner* is a rank on another machine with which this rank exchanges rows. Each partner has a *stand-in*: a control
page in this rank's own memory that replaces the partner's page, which cannot be mapped. Threads of this rank keep the
stand-ins up to date. Engine, relays, folds, stages, deadlines and errors are therefore those of shared memory.

- One *listener* per partner receives its messages: READY (the call it began, and the tag to compare), FAILED (with
  the reason), CLOSED. It writes them to the stand-in, which the executor reads. It also detects a broken connection.
- The *receiver* waits for rows, which Gloo writes to their final place, and then raises ``done`` on the stand-in.
- The *sender* does the engine's work for sends to partners. A send starts when the rows it reads have arrived (the
  sender reads the same ``done`` lines as the engine) and the partner has sent READY. The sender gathers (expand) or
  sums (fold) one slice at a time into staging memory and posts it. A few slices are in flight; partners alternate.

Invariants:

- *Order of posts.* For each pair and direction, data messages are posted by (stage, portion, slice) on one tag. Both
  sides use the same tables, which were compared when the communicator was made. Gloo matches messages in order.
- *Receives first.* A call posts all its receives, into its own buffers, before it sends READY. A partner sends
  nothing before that. So every message has a place, and a partner that makes another call (another verb, width or
  element type) never receives a message of an unexpected size.
- *No deadlock.* A send of stage k waits for receives of earlier stages and for READY, as in the engine. The receiver
  waits in order of (stage, partner). All of stage k can arrive once all of stage k - 1 has, so this order can delay
  a notification but never block it. Staging is waited for only after it was posted to a partner with a receive ready.
- *Reuse.* A call ends when its sends are on the wire and its receives are complete. Then its buffers are free.
- *Failure.* Only these threads wait for Gloo in Python. A rank that gives up stops its sender (its rows may be freed
  next) and tells its partners. On closing it breaks the group, which ends all waits except those that Gloo forgets
  (messages cut off in transit); those end by a deadline far beyond the executor's. Gloo breaks a whole group when
  one wait on it times out. Therefore the channel makes its own group of the user's ranks, and the executor's deadline
  is the only one that applies to a call.

Gloo needs one listener per partner, because a receive from any rank does not say whose connection broke. A listener
sleeps; 16 of them take 4 MB and no CPU time. Only :class:`dgcl.transport.network.wire.Wire` knows Gloo. Rows of
devices travel by :mod:`dgcl.transport.collective`.
"""
