"""The network channel: rows between ranks that share no memory, through ``torch.distributed`` point-to-point.

For each rank on another machine, its *partners*, threads of this rank play that partner's part here. A partner
has a control page in this rank's own memory, a stand-in for the one that cannot be mapped, so the engine, relays,
folds, stages, deadlines and messages are those of shared memory:

- a *listener* per partner waits for its messages: READY (the call it has begun, and the tag to agree on), FAILED
  (and why), CLOSED. It writes them on the stand-in, where the executor looks for them. A connection that breaks
  is noticed by it at once;
- the *receiver* waits for rows, which Gloo has put in their final place, and raises ``done`` on the stand-in;
- the *sender* takes the engine's part in sends to partners: when the rows that a send reads have arrived (it reads
  the same ``done`` lines as the engine) and the partner has said READY, it gathers (expand) or sums (fold) a slice
  at a time into staging memory and posts it, a few slices ahead of the wire, to all partners in turn.

What keeps it right:

- *Order of posts.* For each pair and direction data messages are posted by (stage, portion, slice) on one tag, on
  both sides from the same tables, which were compared when the communicator was made. Gloo matches them in order.
- *Receives first.* A call posts all its receives, into its own buffers, and only then says READY; a partner sends
  nothing before that. So whatever is sent has a place, and a partner that makes another call (another verb, width
  or element type) never gets a message of a size that it did not expect.
- *No deadlock.* A send of stage k waits for receives of earlier stages and for READY, as in the engine. The
  receiver waits in order of (stage, partner); all of stage k can arrive once all of stage k - 1 has, so the order
  in which arrivals are noticed delays, and never blocks. Staging is waited for only when posted, to a partner that
  has posted its receive.
- *Reuse.* A call ends when its sends are on the wire and its receives in their place; then its buffers are free.
- *Failure.* Nobody waits in Python for Gloo but these threads. A rank that gives up stops its sender (rows may be
  freed next), tells its partners, and on closing breaks the group, which ends the waits in it but for those that
  Gloo forgets (messages cut off on their way); these threads end by a deadline far beyond the executor's. Gloo
  breaks a whole group when one wait on it times out: therefore the group is our own, made of the user's group's
  ranks, and the executor's deadline is the only one that a call meets.

A listener per partner is what Gloo allows: a receive from any rank does not say whose connection broke. It sleeps; 16
of them take 4 MB and no time. :class:`dgcl.transport.network.wire.Wire` is all that knows of Gloo. Rows of devices
do not come through here where NCCL works between machines (:mod:`dgcl.transport.cuda.groups`), whose rules are
others: no tags, and a posted receive occupies the device. News of failures do, for which every rank has this channel.
"""
