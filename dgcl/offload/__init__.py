"""Offload: rows live in host memory or in files, and a layer is computed chunk by chunk (HongTu, SIGMOD 2023).

``offload.py`` is what the user holds, ``arranging.py`` how ranks prepare together: ``chunks.py`` says which vertices
make a chunk, ``residency.py`` which rows stay in which slot of a rank, ``schedule.py`` that of all ranks,
``batch_tables.py`` what each rank then does, and ``offload_prediction.py`` what it takes; these are numpy alone.
``layer.py`` computes, and moves rows of ``host_store.py``; ``chunked_rows.py`` are such rows to
torch, ``chunked_losses.py`` and ``norms.py`` what looks at all of them. The words are defined in ``schedule.py``;
tests are in tests/dgcl/offload.
"""
