"""Connects the ranks' devices: memory is published, and that of peers opened."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgcl.errors import CommError
from dgcl.ranks.control import Control
from dgcl.transport.cuda.control_block import RING, ControlBlock, HostPage, first_state
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.peer_memory import Descriptor, OwnMemory, PeerMemory
from dgcl.transport.cuda.probe import hindrance, out_of_reach
from dgcl.transport.cuda.program import RankAddresses, num_slots
from dgcl.transport.cuda.tables import Tables

_log = logging.getLogger("dgcl")

_GRANULE = 2 << 20


@dataclass(eq=False)
class Connections:
    """One rank's memory that peers see, and theirs as it sees it.

    Attributes:
        device: The rank's.
        tables, page, control_block, memory: Its own.
        peers: Memory of each peer, closed for those out of reach; None for this rank.
        addresses: Device addresses for laying out programs.
        lanes: Host lanes; None where this rank reaches all others.
        reasons: Why each peer is reached the way it is.
    """

    device: Device
    tables: Tables
    page: HostPage
    control_block: ControlBlock
    memory: OwnMemory
    peers: list[PeerMemory | None]
    addresses: RankAddresses
    lanes: Lanes | None
    reasons: list[str]

    def close(self) -> None:
        """Give this rank's own memory back; nobody may use it any more."""
        self.tables.free()
        self.device.driver.free(self.control_block.address)
        self.page.close()
        if self.lanes is not None:
            self.lanes.close()
        self.memory.close()
        for peer in filter(None, self.peers):
            peer.forget()


def connect(device: Device, control: Control) -> Connections:
    """Connect this rank's device with those of the others. Collective; may wait for the device.

    Pairs of ranks whose devices cannot write into each other's memory get host lanes; a line at INFO says so. Where it
    fails this rank keeps what it has allocated, some MB: a peer may have it open.

    Raises:
        CommError: The driver cannot lock host memory, or kernels should not wait for those of other ranks here
            (:func:`dgcl.transport.cuda.probe.hindrance`); on every rank.
    """
    rank, world_size = control.rank, control.world_size
    own: _Own | None = None
    try:
        own = _allocate(device, world_size)
        report: Any = own.memory.descriptor(own.control_block.address, own.unreachable)
    except (CommError, CudaError) as error:
        report = str(error)
    descriptors = control.exchange(report)
    for other, each in enumerate(descriptors):
        if isinstance(each, str):
            raise CommError(f"rank {other}: {each}")
    assert own is not None
    peers, blocks, problems = _open_peers(device, rank, descriptors, own.control_block)
    staged, reasons = _staged(rank, control.exchange(problems))
    for other in staged[rank]:
        if (peer := peers[other]) is not None:
            peer.close()
        own.memory.release(other)
        blocks[other] = None
    lanes = Lanes(device, control, staged[rank]) if any(staged) else None
    return Connections(
        device=device,
        tables=own.tables,
        page=own.page,
        control_block=own.control_block,
        memory=own.memory,
        peers=peers,
        addresses=_rank_addresses(rank, own, blocks, staged[rank], lanes),
        lanes=lanes if staged[rank] else None,
        reasons=_all_reasons(rank, descriptors, reasons),
    )


@dataclass(frozen=True)
class _Own:
    """What a rank allocates for itself; ``unreachable`` says why peers cannot open its device memory."""

    tables: Tables
    page: HostPage
    memory: OwnMemory
    control_block: ControlBlock
    unreachable: str


def _allocate(device: Device, world_size: int) -> _Own:
    """This rank's tables, host page, and exported control block."""
    if problem := hindrance(device):
        raise CommError(problem)
    driver, side = device.driver, device.side
    tables, page = Tables(device), HostPage(device, world_size, num_slots(world_size))
    memory = OwnMemory(device, world_size)
    size = -(-ControlBlock.num_bytes(world_size) // _GRANULE) * _GRANULE
    control_block = ControlBlock(driver.allocate(size), world_size)
    driver.clear(control_block.address, size, side)
    device.upload(control_block.address, first_state(page))
    unreachable = ""
    try:
        memory.export(control_block.address)
    except CudaError as error:
        memory.is_exported = False
        unreachable = f"its device memory cannot be shared: {error}"
    tables.wait()
    return _Own(tables, page, memory, control_block, unreachable)


def _open_peers(
    device: Device, rank: int, descriptors: list[Descriptor], own: ControlBlock
) -> tuple[list[PeerMemory | None], list[ControlBlock | None], dict[int, str]]:
    """Memory and control block of every rank within reach, and why some could not be opened."""
    peers: list[PeerMemory | None] = [None] * len(descriptors)
    blocks: list[ControlBlock | None] = [own if other == rank else None for other in range(len(descriptors))]
    problems: dict[int, str] = {}
    for other, descriptor in enumerate(descriptors):
        if other == rank:
            continue
        peer = peers[other] = PeerMemory(device, descriptor)
        try:
            if why := descriptor.unreachable or out_of_reach(device, descriptor.uuid):
                raise CommError(why)
            blocks[other] = ControlBlock(peer.address(descriptor.control_block), len(descriptors))
        except (CudaError, CommError) as error:
            problems[other] = str(error)
    return peers, blocks, problems


def _rank_addresses(
    rank: int, own: _Own, blocks: list[ControlBlock | None], staged: frozenset[int], lanes: Lanes | None
) -> RankAddresses:
    """All device addresses that programs are laid out with."""
    block, world_size = own.control_block, own.control_block.world_size
    theirs = [ControlBlock(0 if each is None else each.address, world_size) for each in blocks]
    lines = [each.ready(rank) for each in theirs]
    ready = [block.ready(other) for other in range(world_size)]
    if lanes is not None:
        for other in staged:
            lines[other], ready[other] = lanes.announced(other), lanes.ready(other)
    return RankAddresses(
        state=block.address,
        address_table=own.tables.allocate(8 * num_slots(world_size)),
        ring=own.page.ring,
        ring_length=RING,
        lines=np.array(lines, np.int64),
        ready=np.array(ready, np.int64),
        done=np.array([block.done(other) for other in range(world_size)], np.int64),
        raised=np.array([each.done(rank) for each in theirs], np.int64),
        staged=staged,
        begun=own.page.begun_word,
        finished=own.page.finished_word,
    )


def _staged(rank: int, reports: list[dict[int, str]]) -> tuple[list[frozenset[int]], dict[int, str]]:
    """Which ranks each rank cannot reach in both directions, and why, for the pairs of this rank.

    The lower rank of a pair logs it at INFO.

    Args:
        rank: This rank.
        reports: For each rank, its problems with others.
    """
    pairs: dict[tuple[int, int], str] = {}
    for one, problems in enumerate(reports):
        for other, why in problems.items():
            pairs.setdefault((min(one, other), max(one, other)), why)
    for (low, high), why in sorted(pairs.items()):
        if low == rank:
            _log.info(
                "ranks %d and %d exchange rows through locked memory of the host: their devices cannot reach "
                "each other (%s)",
                low,
                high,
                why,
            )
    reasons = {
        low + high - rank: f"host memory: their devices cannot reach each other ({why})"
        for (low, high), why in pairs.items()
        if rank in (low, high)
    }
    return [frozenset(a + b - one for a, b in pairs if one in (a, b)) for one in range(len(reports))], reasons


def _all_reasons(rank: int, descriptors: list[Descriptor], reasons: dict[int, str]) -> list[str]:
    """Why each rank is reached the way it is; rank 0 logs at INFO how devices reach each other."""
    if rank == 0:
        _log.info(
            "%d ranks on %d device(s) write into each other's memory by CUDA IPC",
            len(descriptors),
            len({each.uuid for each in descriptors}),
        )
    direct = "device memory: each writes into the other's by CUDA IPC"
    return ["this rank" if other == rank else reasons.get(other, direct) for other in range(len(descriptors))]
