"""Connect the ranks' devices: publish memory, open that of peers, and test every connection by a real transfer.

Whether one device can write into another's memory is never assumed: what drivers report and what machines do has
differed before (virtual machines, IOMMUs, containers). So at set-up every rank writes a pattern into each peer by the
copy engine, and a word by a kernel, and the peers report what arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_tables import MAP
from dgcl.ranks.control import Control
from dgcl.transport.cuda.concurrency import hindrance
from dgcl.transport.cuda.connections import Connections
from dgcl.transport.cuda.control_block import LINE, ControlBlock, HostPage, first_state
from dgcl.transport.cuda.directory import MOST_ENTRIES, Descriptor, Directory, PeerMemory
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.groups import Endpoint
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.network import Network
from dgcl.transport.cuda.probe import try_stream_waits, write_patterns, wrong_patterns
from dgcl.transport.cuda.program import RankAddresses, num_slots
from dgcl.transport.cuda.staged_rows import NETWORK
from dgcl.transport.cuda.tables import Tables
from dgcl.transport.shared_memory.segments import Segment

_log = logging.getLogger("dgcl")

_ANNOUNCED_WORDS = 7
_GRANULE = 2 << 20
#: Base of the control block in a directory; the pool's allocations count from 0.
_CONTROL_BLOCK_BASE = -1


def connect(device: Device, control: Control, network: Network | None = None) -> Connections:
    """Connect this rank's device with those of the others. Collective; may wait for the device.

    Ranks of a machine whose devices cannot write into each other's memory get host lanes; a line at INFO says so.

    Args:
        device: Of this rank.
        control: The control plane.
        network: Joins this rank to ranks on other machines, whose memory is not opened; None: there are none.

    Raises:
        CommError: Host lanes are needed, and the driver cannot lock host memory, or kernels cannot wait here for those
            of other ranks (:mod:`dgcl.transport.cuda.concurrency`); on every rank.
    """
    rank, world_size = control.rank, control.world_size
    remote = frozenset[int]() if network is None else network.remote
    own = _own_memory(device, control)
    descriptors = control.exchange(own.directory.descriptor(own.unreachable))
    peers, blocks, problems = _open_peers(device, rank, descriptors, remote, own.control_block)
    write_patterns(device, own.tables, rank, own.control_block, blocks)
    try_stream_waits(device, own.control_block, rank)
    control.barrier()
    for other in wrong_patterns(device, own.page, own.control_block, rank):
        if other not in remote:
            problems.setdefault(other, "what it wrote into this rank's device memory did not arrive")
    staged, reasons = _out_of_reach(rank, control.exchange(problems))
    lanes = Lanes(device, control, staged[rank]) if any(staged) else None
    for other in staged[rank]:
        if (peer := peers[other]) is not None:
            peer.close()
        peers[other] = blocks[other] = None
    control.barrier()
    addresses, endpoint = _rank_addresses(device, rank, own, blocks, staged[rank], lanes, network)
    return Connections(
        device=device,
        rank=rank,
        world_size=world_size,
        tables=own.tables,
        control_block=own.control_block,
        page=own.page,
        directory=own.directory,
        descriptors=descriptors,
        peers=peers,
        addresses=addresses,
        lanes=lanes,
        endpoint=endpoint,
        reasons=_all_reasons(rank, descriptors, remote, reasons),
    )


@dataclass(frozen=True)
class _OwnMemory:
    """What a rank allocates for itself; ``unreachable`` says why peers cannot open its device memory."""

    tables: Tables
    page: HostPage
    directory: Directory
    control_block: ControlBlock
    unreachable: str


def _own_memory(device: Device, control: Control) -> _OwnMemory:
    """Allocate what this rank needs, and try whether it can run here; all ranks raise if one fails."""
    own, problem = None, ""
    try:
        own = _allocate(device, control.world_size)
        problem = hindrance(device, own.page, own.tables, own.control_block.address, control.rank)
    except (CommError, CudaError) as error:
        problem = str(error)
    for other, why in enumerate(control.exchange(problem)):
        if why:
            raise CommError(f"rank {other}: {why}")
    assert own is not None
    return own


def _allocate(device: Device, world_size: int) -> _OwnMemory:
    """This rank's tables, host page, and published control block."""
    driver, side = device.driver, device.side
    tables, page, directory = Tables(device), HostPage(device, world_size), Directory(device)
    size = -(-ControlBlock.num_bytes(world_size) // _GRANULE) * _GRANULE
    control_block = ControlBlock(driver.allocate(size), world_size)
    driver.clear(control_block.address, size, side)
    device.upload(control_block.address, first_state(page))
    unreachable = ""
    try:
        directory.add(Segment(_CONTROL_BLOCK_BASE, size, np.zeros(0, np.uint8), control_block.address))
    except CudaError as error:
        directory.closed_to_others = True
        unreachable = f"its device memory cannot be shared: {error}"
    if not device.is_open:
        unreachable = "it is kept closed"
    driver.synchronize_stream(side)
    return _OwnMemory(tables, page, directory, control_block, unreachable)


def _open_peers(
    device: Device,
    rank: int,
    descriptors: list[Descriptor],
    remote: frozenset[int],
    own: ControlBlock,
) -> tuple[list[PeerMemory | None], list[ControlBlock | None], dict[int, str]]:
    """Memory and control block of every rank within reach, and why some could not be opened."""
    peers: list[PeerMemory | None] = [None] * len(descriptors)
    blocks: list[ControlBlock | None] = [own if other == rank else None for other in range(len(descriptors))]
    problems: dict[int, str] = {}
    for other, descriptor in enumerate(descriptors):
        if other == rank or other in remote:
            continue
        try:
            if descriptor.unreachable:
                raise CommError(descriptor.unreachable)
            peer = PeerMemory(device, descriptor)
            opened = peer.open_new()
            if peer.broken or not len(opened):
                raise CommError(peer.broken or "it has no device memory")
            peers[other], blocks[other] = peer, ControlBlock(int(opened["address"][0]), len(descriptors))
        except (CudaError, OSError, CommError) as error:
            problems[other] = str(error)
    return peers, blocks, problems


def _rank_addresses(
    device: Device,
    rank: int,
    own: _OwnMemory,
    blocks: list[ControlBlock | None],
    staged: frozenset[int],
    lanes: Lanes | None,
    network: Network | None,
) -> tuple[RankAddresses, Endpoint | None]:
    """All device addresses that programs are laid out with, and the endpoint of messages to other machines."""
    tables, block, world_size = own.tables, own.control_block, own.control_block.world_size
    remote = frozenset[int]() if network is None else network.remote
    maps = [(tables.allocate(MOST_ENTRIES * MAP.itemsize), MOST_ENTRIES) for _ in range(world_size)]
    for other in staged | remote:
        maps[other] = 0, -1
    endpoint, outbox, packed = None, 0, 0
    if network is not None and network.messages is not None and network.partners:
        state = tables.upload(first_state(own.page))
        outbox, packed, agreed = (tables.allocate(LINE) for _ in range(3))
        endpoint = Endpoint(network.messages, device.driver.create_stream(NETWORK), state, agreed)
    theirs = [ControlBlock(0 if each is None else each.address, world_size) for each in blocks]
    addresses = RankAddresses(
        state=block.address,
        address_table=tables.allocate(8 * num_slots(world_size)),
        lines=_lines(
            [each.ready(rank) for each in theirs], staged, None if lanes is None else lanes.announced
        ),
        words=tables.allocate(8 * _ANNOUNCED_WORDS),
        num_words=_ANNOUNCED_WORDS,
        ready=_lines(
            [block.ready(other) for other in range(world_size)],
            staged,
            None if lanes is None else lanes.ready,
        ),
        done=np.array([block.done(other) for other in range(world_size)], np.int64),
        raised=np.array([each.done(rank) for each in theirs], np.int64),
        maps=np.array(maps, np.int64),
        staged=staged,
        remote=remote,
        partners=frozenset() if endpoint is None or network is None else network.partners,
        outbox=outbox,
        packed=packed,
        begun=own.page.begun_line,
        finished=own.page.finished_word,
    )
    return addresses, endpoint


def _lines(
    direct: list[int], staged: frozenset[int], through_host: Callable[[int], int] | None
) -> np.ndarray:
    """``(P,)`` int64: the address of a line per peer; in host memory for those in ``staged``."""
    if through_host is not None:
        direct = [through_host(peer) if peer in staged else line for peer, line in enumerate(direct)]
    return np.array(direct, np.int64)


def _out_of_reach(rank: int, reports: list[dict[int, str]]) -> tuple[list[frozenset[int]], dict[int, str]]:
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


def _all_reasons(
    rank: int, descriptors: list[Descriptor], remote: frozenset[int], reasons: dict[int, str]
) -> list[str]:
    """Why each rank is reached the way it is; rank 0 logs at INFO how devices reach each other."""
    near = {each.process for other, each in enumerate(descriptors) if other not in remote}
    way = "raw addresses" if len(near) == 1 else "CUDA IPC"
    if rank == 0:
        _log.info(
            "%d ranks on %d device(s) write into each other's memory by %s%s",
            len(descriptors),
            len({each.uuid for each in descriptors}),
            way,
            ", within each machine" if remote else "",
        )
    direct = f"device memory: each writes into the other's by {way}"
    return ["this rank" if other == rank else reasons.get(other, direct) for other in range(len(descriptors))]
