"""``dgcl bench --device cuda``: the same measurement for rows that lie on GPUs.

====================================== =================================================================
module                                 what
====================================== =================================================================
:mod:`dgcl.bench.on_device.patterns`   rows that tell where they belong, made and checked on the device
:mod:`dgcl.bench.on_device.clock`      times of what is enqueued, by CUDA events
:mod:`dgcl.bench.on_device.lanes`      samples of a planned exchange, of a collective, of plain copies
:mod:`dgcl.bench.on_device.peers`      what people do without a plan: Gloo, NCCL
:mod:`dgcl.bench.on_device.gather`     ``index_select`` and copies out of the others' memory
:mod:`dgcl.bench.on_device.nccl`       whether NCCL runs here, found out under a timeout
:mod:`dgcl.bench.on_device.measure`    all of it in turns
====================================== =================================================================

Turns, records, report and JSON are those of the CPU (:mod:`dgcl.bench.rounds`, `records`, `report`). What differs: a
call is timed by events on each rank's stream, after a call that is not timed and brings the ranks into step, and lasts
as long as on the slowest rank; *copy* is a copy on each device, alone, of as many bytes as its ranks write.
"""
