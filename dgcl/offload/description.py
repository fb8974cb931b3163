"""The report of an :class:`~dgcl.offload.offload.Offload`: predicted figures, and those counted so far."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from dgcl.offload.account import Account
from dgcl.offload.arranging import Arrangement
from dgcl.offload.host_store import HostStore
from dgcl.offload.keeping import KeptOrAgain
from dgcl.offload.offload_prediction import DeviceBytes, HostBytes, host_bytes
from dgcl.planner.reading.render import size


@dataclass(frozen=True)
class OffloadMemory:
    """Bytes of one rank's rows in host and in device memory: what is predicted, and what was counted so far.

    Attributes:
        store: Where host memory is: "memory", or "files in" a folder.
        num_slots: Rows that the device holds.
        graphs: Predicted, of all chunks' graphs, beside the device's; 0: one chunk's is there at a time.
        device: Predicted by name for the layer that takes most; None: widths are not known.
        host, host_kept: Predicted by name at the fullest moment, with layers computed again and with their aggregates
            kept; None: widths are not known.
        host_peak: Counted by name, at the fullest moment so far.
        host_now: Counted by name, of rows that live; of those "aggregates" are kept ones.
    """

    store: str
    num_slots: int
    graphs: int
    device: DeviceBytes | None
    host: HostBytes | None
    host_kept: HostBytes | None
    host_peak: dict[str, int]
    host_now: dict[str, int]

    def __str__(self) -> str:
        text = f"{self.num_slots} slots"
        if self.graphs:
            text += f"; graphs of all chunks kept, {size(self.graphs)} predicted"
        if self.device is not None:
            text += f"; device memory {size(self.device.total)} predicted: {_named(asdict(self.device))}"
        for host, how in (
            (self.host, "with layers computed again"),
            (self.host_kept, "with aggregates kept"),
        ):
            if host is not None:
                text += f"; host memory {size(host.total)} predicted {how}: {_named(asdict(host))}"
        if self.host_peak:
            taken, now = sum(self.host_peak.values()), sum(self.host_now.values())
            text += f"; host memory {size(taken)} at most: {_named(self.host_peak)}"
            text += f"; {size(now)} now: {_named(self.host_now)}" if now else ""
        return text


def offload_memory(
    arrangement: Arrangement,
    store: HostStore,
    account: Account,
    widths: Sequence[int],
    itemsize: int,
    graphs: int,
    training: bool,
) -> OffloadMemory:
    """What one rank's rows take.

    Args:
        arrangement, store, account: The rank's.
        widths: Of the input and of each layer's result, for what is predicted; or none.
        itemsize: Bytes of an element.
        graphs: Bytes of the chunks' graphs that are kept.
        training: With a backward.
    """
    device = host = kept = None
    if widths:
        num_rows = sum(map(len, arrangement.rows))
        device = arrangement.device.bytes(widths, itemsize, training=training, inside=arrangement.inside)
        if (counted := account.allocations) and counted.peak:
            slots = min(device.slots, counted.peak)
            device = replace(device, loads=0, slots=slots, sources=0, outputs=0, inside=counted.peak - slots)
        host, kept = (
            host_bytes(num_rows, widths, itemsize, kept=each, training=training) for each in (False, True)
        )
    return OffloadMemory(
        "memory" if store.folder is None else f"files in {store.folder}",
        arrangement.tables.num_slots,
        graphs,
        device,
        host,
        kept,
        store.peak,
        store.held,
    )


def describe(
    arrangement: Arrangement,
    memory: OffloadMemory,
    account: Account,
    rank: int,
    decided: Mapping[str, KeptOrAgain],
) -> str:
    """One line: chunks, rows, slots, seconds, and bytes by name.

    Args:
        arrangement, memory, account, rank: The rank's.
        decided: Which aggregates are kept, and why.
    """
    v_ori, v_p2p, v_ru = arrangement.volumes
    loaded, exchanged = arrangement.delivered
    text = (
        f"offload in {len(arrangement.rows)} chunks of each of {arrangement.num_ranks} ranks, rows in {memory.store}: a"
        f" layer's forward loads {loaded} rows (chunks read {v_ori}, batches {v_p2p}, beyond the batch before {v_ru})"
        f" and moves {exchanged} between ranks, predicted {arrangement.exchange_seconds:.3g} s of exchange; on rank"
        f" {rank} {memory}"
    )
    text += "".join(f"; {about} are {why}" for about, why in decided.items())
    return f"{text}; so far: {account}" if account.rows else text


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(value)}" for name, value in sizes.items() if value)
