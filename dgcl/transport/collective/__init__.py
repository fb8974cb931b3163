"""The collective transport: a stage of a plan is an ``index_select``, one ``all_to_all_single`` of bytes, and sums.

Nothing here but torch operations touches rows, so the same lines carry them on every device that torch has. It runs
wherever ``torch.distributed`` runs, and faster transports are compared with it, bit by bit.
``transport`` expands and folds tensors by a ``call`` that goes through the stages of ``stage_table``, whose bytes
``wires`` carry; ``agreement`` knows which call each rank is in. Tests are in tests/dgcl/transport/collective.
"""
