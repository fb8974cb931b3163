"""What joins one rank's device to the others, once it is set up by :mod:`dgcl.transport.cuda.connect`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from dgcl.kernels.cuda_tables import MAP, MAP_ADDRESS
from dgcl.transport.cuda.control_block import ControlBlock, HostPage
from dgcl.transport.cuda.directory import Descriptor, Directory, PeerMemory
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.groups import Endpoint
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.program import RankAddresses
from dgcl.transport.cuda.tables import Tables

_log = logging.getLogger("dgcl")

_CLOSE_SECONDS = 5.0
_CLOSE_POLL = 0.002


@dataclass(eq=False)
class Connections:
    """One rank's memory that peers see, and theirs as it sees it.

    Attributes:
        device, rank, world_size: Whose it is.
        tables: Tables of this rank.
        control_block, page, directory: What peers and the host see.
        descriptors: What every rank said of itself.
        peers: Memory of each peer; None for this rank, and for those out of reach.
        addresses: Device addresses for laying out programs.
        lanes: Host lanes; None where every pair of ranks on a machine reaches each other.
        endpoint: For messages to other machines; None where this rank exchanges no rows with them.
        reasons: Why each peer is reached the way it is.
    """

    device: Device
    rank: int
    world_size: int
    tables: Tables
    control_block: ControlBlock
    page: HostPage
    directory: Directory
    descriptors: list[Descriptor]
    peers: list[PeerMemory | None]
    addresses: RankAddresses
    lanes: Lanes | None
    endpoint: Endpoint | None
    reasons: list[str]

    def map_new(self) -> str:
        """Open what peers have allocated since, and tell the kernels; returns why not, if that failed."""
        for rank, peer in enumerate(self.peers):
            if peer is None:
                continue
            first = peer.num_known - 1  # the control block is no buffer
            new = peer.open_new()
            if len(new):
                at = int(self.addresses.maps[rank, 0]) + first * MAP.itemsize
                # Addresses last: a kernel takes a record as complete when it has one.
                blank = new.copy()
                blank["address"] = 0
                self.device.upload(at, blank)
                for i in range(len(new)):
                    self.device.upload(at + i * MAP.itemsize + MAP_ADDRESS, new["address"][i : i + 1].copy())
            if peer.broken:
                return f"rank {self.rank} cannot open new device memory of rank {rank}: {peer.broken}"
        return ""

    def close(self) -> None:
        """Give this rank's own memory back; nobody may use it any more.

        A last snapshot or stop may still be under way: it is waited for. Where the device does not finish it, the
        memory is kept.
        """
        end = time.monotonic() + _CLOSE_SECONDS
        while not self.page.is_idle:
            if time.monotonic() > end:
                _log.debug("rank %d: the device does not end, its memory is not given back", self.rank)
                return
            time.sleep(_CLOSE_POLL)
        self.tables.free()
        self.device.driver.free(self.control_block.address)
        self.page.close()
        if self.lanes is not None:
            self.lanes.close()
        self.directory.close()

    def shares_device_with(self, process: int, *, same: bool) -> list[int]:
        """Other ranks on this rank's device that are threads of ``process`` (``same``), or are not."""
        mine = self.descriptors[self.rank].uuid
        return [
            rank
            for rank, each in enumerate(self.descriptors)
            if rank != self.rank and each.uuid == mine and (each.process == process) == same
        ]
