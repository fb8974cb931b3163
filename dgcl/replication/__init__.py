"""Replicate across machines, plan inside them (DGCL-R, Table 5 of the paper): no row crosses a network.

The slow connections of a cluster are those between machines. A machine that holds, beside its own vertices, all
from which a path of at most K edges leads to one of them can compute K layers for its own vertices without
another machine. It pays with memory, and with work that other machines do as well. Inside a machine ranks exchange
rows by a plan as usual.

**Copies.** A *copy* is a vertex on a machine. *Hop set* k of a machine holds the vertices k edges away from those that
its ranks own: hop set 0 are *core* copies, hop sets 1 to K are *replicas*. Copies of one machine read copies of that
machine alone, by the edges of the graph, so copies with their edges are a graph in parts like any other
(:mod:`dgcl.replication.copies`): its relation is found, planned, proved and compiled as for any graph. The plan gets a
topology without the links between machines: none of them can be used, not even on a detour.

**Why it is exact.** A copy in hop set k has all its in-edges if k < K, from copies in hop sets up to k + 1; those in
hop set K have none. By induction over the layers: after layer l the rows of hop sets 0 to K - l are those of one
device. This holds for l = 0, where all rows are the features. A row of hop set k <= K - l after layer l depends on
rows of hop sets up to k + 1 <= K - (l - 1) after layer l - 1, which are right, and on all of them, as k < K. After
layer K core rows are right. Rows of the other hop sets are then *garbage*: finite, where a layer is finite on a
vertex without in-edges, and read by no core row, now or in an earlier layer. A loss that counts each vertex once,
on its core copy, is the loss of one device; as a function of the parameters it depends on right rows only, so
the gradients of all ranks sum up to those of one device. A garbage row's gradient is zero, not absent: a layer
that makes it infinite or NaN (by dividing by a sum over no edges) makes 0 * NaN of it, and spoils the gradients.

So K must count the exchanges of a forward pass that build on each other: the layers, and one more where degrees
are exchanged, as PyG's ``gcn_norm`` does.

**What a program sees.** A rank keeps core rows first (``comm.num_core``, in ascending global id), then replicas
(in ascending global id): both are its ``num_owned`` rows, which layers compute. ``dispatch_features`` gives all
of them, ``collect`` takes the core rows of each rank. The losses, metrics and batch normalisation of
:mod:`dgcl.nn` count core rows alone, and dropout depends on the vertex, so that copies agree. What a program sums
over rows by itself it must sum over ``rows[:comm.num_core]``. The gradient of an *input* row is that of one copy;
for inputs that are learned, :func:`dgcl.nn.sum_copies` adds up those of a vertex.

Modules: :mod:`~dgcl.replication.counts` says how much is copied before anything is;
:mod:`~dgcl.replication.copies` copies; :mod:`~dgcl.replication.strategy` plans inside machines. Imports what comes
before it on the way of the data, up to :mod:`dgcl.program` and :mod:`dgcl.ranks`.
"""
