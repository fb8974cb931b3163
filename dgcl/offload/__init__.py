"""Offload: rows live in host memory or in files, and a layer is computed chunk by chunk.

The vertices of each of m ranks are divided into n chunks; chunk j of every rank together are *batch* j. With N_ij the
rows that chunk (i, j) reads, its own among them::

    U_j  = union of N_ij over ranks i               what batch j reads
    T_ij = {v in U_j: rank i owns v}                what rank i gives to batch j
    M_ij = T_ij and N_ij                            what rank i holds while batch j is computed

A *residency* is a run of batches in which a row stays in one slot of a rank. It begins and ends with a batch that
reads the row. When it begins, an owner loads the row from its host memory, and any other rank gets it from the owner,
who holds it in that batch. The backward takes the batches in descending order: a row's residency is loaded at its end,
and its gradient returned at its beginning. That is the adjoint of the forward, for any residencies. The method is
HongTu's (Wang et al., SIGMOD 2023); its backward ascends and loses gradients, so ours descends, and what stays is
chosen by Belady's rule.

Files in the order of the data's way; those that plan are numpy alone::

    chunks.py       which vertices, and which of the rank's edges, make a chunk
    residency.py    which rows stay in which slot, for one rank
    schedule.py     all ranks together: loads, rows between devices; the order of batches
    offload_prediction.py  bytes and rows by formula
    batch_tables.py  a schedule compiled for each rank, with plans and programs of every exchange

    arranging.py    ranks do all this together
    placing.py      rows put into places of a tensor
    host_store.py   tensors of rows in memory or in files
    chunked_rows.py   rows stored chunk by chunk that are in the usual order to all others
    slots.py        moves rows between host memory, slots and ranks, as the tables say
    layer.py, layer_function.py   a layer, and it as one function of autograd
    chunked_losses.py, norms.py   over all rows, a chunk of them at a time
    description.py  what was predicted and counted, in words
    offload.py      what the user holds
"""
