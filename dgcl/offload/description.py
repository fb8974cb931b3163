"""What an :class:`~dgcl.offload.offload.Offload` says of itself: what was predicted, and what was counted so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from dgcl.offload.account import Account
from dgcl.offload.arranging import Arrangement
from dgcl.offload.host_store import HostStore
from dgcl.offload.prediction import host_bytes
from dgcl.planner.reading.render import size

__all__ = ["describe"]


def describe(
    made: Arrangement,
    store: HostStore,
    account: Account,
    rank: int,
    widths: Sequence[int] | None,
    itemsize: int,
) -> str:
    """One line: chunks, rows, slots, seconds, and bytes by name.

    Args:
        made, store, account, rank: The rank's.
        widths: Of the input and of each layer's result, for predicted bytes; or None.
        itemsize: Bytes of an element.
    """
    v_ori, v_p2p, v_ru = made.volumes
    loaded, exchanged = made.delivered
    where = "memory" if store.folder is None else f"files in {store.folder}"
    text = (
        f"offload in {len(made.rows)} chunks of each of {made.num_ranks} ranks, rows in {where}: a layer's"
        f" forward loads {loaded} rows (chunks read {v_ori}, batches {v_p2p}, beyond the batch before {v_ru}) and"
        f" moves {exchanged} between ranks, predicted {made.exchange_seconds:.3g} s of exchange;"
        f" {made.tables.num_slots} slots on rank {rank}"
    )
    if made.device is not None:
        text += f"; device memory {size(made.device.total)} predicted: {_named(asdict(made.device))}"
    if widths is not None:
        for kept, how in ((False, "with layers computed again"), (True, "with aggregates kept")):
            host = host_bytes(sum(map(len, made.rows)), widths, itemsize, kept=kept)
            text += f"; host memory {size(host.total)} predicted {how}: {_named(asdict(host))}"
    if account.rows:
        taken = sum(store.peak.values())
        text += f"; so far: {account}; host memory {size(taken)} at most: {_named(store.peak)}"
    return text


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(value)}" for name, value in sizes.items() if value)
