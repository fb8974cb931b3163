"""Holds and prints the memory of a ``dgcl.Offload`` on one rank: bytes predicted, and bytes counted so far.

Users get it from ``off.memory()``, and its text in ``off.describe()``. Predictions are None where widths are not known.
Called by `offload` and `refusals`. Free to change while the counted bytes of host memory are the predicted ones, by
name, and ``describe`` shows them (`tests/dgcl/offload/test_offload.py`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dgcl.offload.offload_prediction import DeviceBytes, HostBytes
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


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size(value)}" for name, value in sizes.items() if value)
