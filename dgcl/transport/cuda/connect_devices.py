"""Exports a rank's device memory to its peers by CUDA IPC, and opens theirs.

Collective, when a communicator is made. If one rank cannot (:mod:`dgcl.transport.cuda.probe`), all close what they have
opened before any frees its own, as memory that another process has open must not be freed.
Called by `device_exchange`, `operations` and `watchdog`. Free to change while devices that cannot reach each other are
named and keep nothing (`tests/dgcl/transport/cuda/test_communicator.py`), and what set-up cannot use is named on every
rank (`tests/dgcl/transport/cuda/test_faults.py`).
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.errors import CommError
from dgcl.ranks.control import Control
from dgcl.transport.cuda.control_block import RING, ControlBlock, HostPage, first_state
from dgcl.transport.cuda.device_tables import Tables
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.peer_memory import OwnMemory, PeerMemory
from dgcl.transport.cuda.probe import hindrance, out_of_reach
from dgcl.transport.cuda.program import RankAddresses, num_slots

_log = logging.getLogger("dgcl")

_GRANULE = 2 << 20


@dataclass(eq=False)
class Connections:
    """One rank's memory that peers see, and theirs as it sees it.

    Attributes:
        device: The rank's.
        tables, page, control_block, memory: Its own.
        peers: Memory of each peer; None for this rank.
        addresses: Device addresses for laying out programs.
    """

    device: Device
    tables: Tables
    page: HostPage
    control_block: ControlBlock
    memory: OwnMemory
    peers: list[PeerMemory | None]
    addresses: RankAddresses

    def close(self) -> None:
        """Give this rank's own memory back; nobody may use it any more."""
        self.tables.free()
        self.device.driver.free(self.control_block.address)
        self.page.close()
        self.memory.close()
        for peer in filter(None, self.peers):
            peer.forget()


def connect(device: Device, control: Control) -> Connections:
    """Connect this rank's device with those of the others. Collective; may wait for the device.

    Raises:
        CommError: The driver cannot lock host memory, or kernels should not wait for those of other ranks here
            (:func:`dgcl.transport.cuda.probe.hindrance`), or two devices cannot write into each other's memory; on
            every rank.
    """
    rank, world_size = control.rank, control.world_size
    own: Connections | None = None
    try:
        own = _allocate(device, rank, world_size)
        report: Any = own.memory.descriptor(own.control_block.address)
    except (CommError, CudaError) as error:
        report = str(error)
    descriptors = control.exchange(report)
    for other, each in enumerate(descriptors):
        if isinstance(each, str):
            raise CommError(f"rank {other}: {each}")
    assert own is not None
    problem = ""
    for other, descriptor in enumerate(descriptors):
        if other != rank:
            peer = own.peers[other] = PeerMemory(device, descriptor)
            try:
                if why := out_of_reach(device, descriptor.uuid):
                    raise CommError(why)
                block = ControlBlock(peer.address(descriptor.control_block), world_size)
                own.addresses.lines[other], own.addresses.raised[other] = block.ready(rank), block.done(rank)
            except (CudaError, CommError) as error:
                problem = f"ranks {rank} and {other}: their devices cannot reach each other ({error})"
    if problem := next(filter(None, control.exchange(problem)), ""):
        for opened in filter(None, own.peers):
            opened.close()
        control.barrier()  # nobody has this rank's memory open any more
        own.close()
        raise CommError(problem)
    if rank == 0:
        _log.info(
            "%d ranks on %d device(s) write into each other's memory by CUDA IPC",
            world_size,
            len({each.uuid for each in descriptors}),
        )
    return own


def _allocate(device: Device, rank: int, world_size: int) -> Connections:
    """This rank's tables, host page, and exported control block; no peers yet."""
    if problem := hindrance(device):
        raise CommError(problem)
    driver, side = device.driver, device.side
    tables, page = Tables(device), HostPage(device, world_size, num_slots(world_size))
    memory = OwnMemory(device, world_size)
    size = -(-ControlBlock.num_bytes(world_size) // _GRANULE) * _GRANULE
    block = ControlBlock(driver.allocate(size), world_size)
    driver.clear(block.address, size, side)
    device.upload(block.address, first_state(page))
    try:
        memory.export(block.address)
    except CudaError as error:
        raise CommError(f"its device memory cannot be shared: {error}") from None
    ready, done = (np.array([of(other) for other in range(world_size)]) for of in (block.ready, block.done))
    addresses = RankAddresses(
        state=block.address,
        address_table=tables.allocate(8 * num_slots(world_size)),
        ring=page.ring,
        ring_length=RING,
        lines=ready.copy(),
        ready=ready,
        done=done,
        raised=done.copy(),
        begun=page.begun_word,
        finished=page.finished_word,
    )
    tables.wait()  # nothing of this is under way where it is given back
    return Connections(device, tables, page, block, memory, [None] * world_size, addresses)
