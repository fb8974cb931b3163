"""Applies ``CUDA_VISIBLE_DEVICES``: which GPUs a job may use, and in which order.

As in CUDA, entries from the first wrong one on are ignored. Parts of GPUs (``MIG-...``) are refused: they have no links
of their own.
Called by `topology/detect/__init__` and `dgcl/ranks/machines`. Free to change while GPUs are chosen and ordered as CUDA
does with CUDA_DEVICE_ORDER=PCI_BUS_ID (`tests/topology/detect/test_visible.py`).
"""

from collections.abc import Sequence

from dgcl.topology.checks import shown
from dgcl.topology.detect.nvml import NvmlGpu


def visible_gpus(gpus: Sequence[NvmlGpu], visible: str | None) -> list[NvmlGpu]:
    """The GPUs that CUDA shows, in its order.

    Args:
        gpus: All GPUs of the machine, by NVML's index, which is the order of PCI addresses.
        visible: The value of ``CUDA_VISIBLE_DEVICES``: numbers, ``GPU-`` UUIDs or beginnings of them; None if
            it is not set. As in CUDA, entries from the first wrong one on are ignored. Numbers are
            those of CUDA_DEVICE_ORDER=PCI_BUS_ID; by default CUDA counts faster GPUs first, which differs
            only on machines with several kinds.

    Raises:
        ValueError: Parts of GPUs (``MIG-...``), or an entry that fits several GPUs.
    """
    if visible is None:
        return list(gpus)
    chosen: list[NvmlGpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG"):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES names a part of a GPU ({shown(entry)}), and parts have no links of "
                f"their own: give a topology instead of 'auto'"
            )
        if entry.isdigit():
            fits = [gpu for gpu in gpus if gpu.index == int(entry)]
        else:
            fits = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(fits) > 1:
            raise ValueError(f"CUDA_VISIBLE_DEVICES: {shown(entry)} is the beginning of {len(fits)} UUIDs")
        if not fits or fits[0] in chosen:
            break
        chosen.append(fits[0])
    return chosen
