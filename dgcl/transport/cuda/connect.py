"""Connect the ranks' devices: publish memory, open that of peers, and test every connection by a real transfer.

Whether one device can write into another's memory is never assumed: what drivers report and what machines do has
differed before (virtual machines, IOMMUs, containers). So at set-up every rank writes a pattern into each peer by the
copy engine, and a word by a kernel, and the peers report what arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, MAP, MAP_ADDRESS, STATE_BYTES, records
from dgcl.ranks.control import Control
from dgcl.transport.cuda.control_block import LINE, PROOF, ControlBlock, HostPage, first_state
from dgcl.transport.cuda.directory import MOST_ENTRIES, Descriptor, Directory, PeerMemory
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.groups import Endpoint
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.network import Network
from dgcl.transport.cuda.program import RankAddresses, num_slots
from dgcl.transport.cuda.tables import Tables
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.segments import Segment

_log = logging.getLogger("dgcl")

_ANNOUNCED_WORDS = 7
_CLOSE_SECONDS = 5.0
_CLOSE_POLL = 0.002
_GRANULE = 2 << 20
#: Base of the control block in a directory; the pool's allocations count from 0.
_CONTROL_BLOCK_BASE = -1


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


def enter_parameters(
    tag: int, local: int, second: int, result: int, staging: int, buffer: Block, relay: Block | None
) -> tuple[int, ...]:
    """The parameters of the kernel ``enter`` that differ from call to call.

    Args:
        tag: Verb and row type of the call.
        local, second, result, staging: Addresses for the first slots of the address table.
        buffer, relay: Where peers may write.
    """
    places = [0] * 6
    for i, block in enumerate((buffer, relay)):
        if block is not None:
            places[3 * i : 3 * i + 3] = block.segment.base, block.segment.size, block.offset
    return local, second, result, staging, tag, *places


def connect(device: Device, control: Control, network: Network | None = None) -> Connections:
    """Connect this rank's device with those of the others. Collective; may wait for the device.

    Ranks of a machine whose devices cannot write into each other's memory get host lanes; a line at INFO says so.

    Args:
        device: Of this rank.
        control: The control plane.
        network: Joins this rank to ranks on other machines, whose memory is not opened; None: there are none.

    Raises:
        CommError: Host lanes are needed, and the driver cannot lock host memory; on every rank.
    """
    rank, world_size = control.rank, control.world_size
    remote = frozenset[int]() if network is None else network.remote
    own = _allocate(device, world_size)
    descriptors = control.exchange(own.directory.descriptor(own.unreachable))
    peers, blocks, problems = _open_peers(device, rank, descriptors, remote, own.control_block)
    _write_patterns(device, own.tables, rank, own.control_block, blocks)
    _try_stream_waits(device, own.control_block, rank)
    control.barrier()
    for other in _wrong_patterns(device, own, rank):
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


def _allocate(device: Device, world_size: int) -> _OwnMemory:
    """This rank's tables, host page, and published control block."""
    driver, side = device.driver, device.side
    tables, page, directory = Tables(device), HostPage(device, world_size), Directory(device)
    size = -(-ControlBlock.num_bytes(world_size) // _GRANULE) * _GRANULE
    control_block = ControlBlock(driver.allocate(size), world_size)
    driver.clear(control_block.address, size, side)
    state = first_state(page)
    assert state.nbytes == STATE_BYTES
    device.upload(control_block.address, state)
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


def _pattern(writer: int, reader: int) -> np.ndarray:
    """``(32,)`` int64 that ``writer`` writes at ``reader``: the first word by a kernel, the second half by a copy."""
    words = np.arange(PROOF // 8, dtype=np.int64) * 1_000_003 + writer * 65_537 + reader + 1
    words[1 : PROOF // 16] = 0
    return words


def _write_patterns(
    device: Device, tables: Tables, rank: int, own: ControlBlock, blocks: list[ControlBlock | None]
) -> None:
    """Write this rank's pattern into every peer that could be opened; waits for the device."""
    prepared = Prepared(device.driver)
    for other, theirs in enumerate(blocks):
        if theirs is None or other == rank:
            continue
        pattern, half = _pattern(rank, other), PROOF // 2
        flag = {"address": theirs.proof(rank), "offset": int(pattern[0])}
        prepared.launch(device.kernels["signal"], 1, 32, own.address, tables.upload(records(FLAG, [flag])), 1)
        prepared.copy(theirs.proof(rank) + half, tables.upload(pattern) + half, half)
    prepared.enqueue([device.side])
    device.driver.synchronize_stream(device.side)


def _wrong_patterns(device: Device, own: _OwnMemory, rank: int) -> list[int]:
    """Ranks whose pattern has not arrived in this rank's control block; waits for the device."""
    own.page.start_snapshot(own.control_block)
    device.driver.synchronize_stream(device.side)
    snapshot = own.page.snapshot()
    assert snapshot is not None
    return [
        other
        for other in range(own.control_block.world_size)
        if other != rank and not np.array_equal(snapshot.proof(other), _pattern(other, rank))
    ]


def _try_stream_waits(device: Device, own: ControlBlock, rank: int) -> None:
    """Let the current stream and the side stream wait for a value that is there already.

    Where the driver refuses, kernels wait instead; a line at INFO says so.
    """
    if not device.waits_in_streams:
        return
    try:
        prepared = Prepared(device.driver)
        prepared.wait_value(own.proof(rank), 0, 0)
        for stream in (device.side, device.tensors.current_stream()):
            prepared.enqueue([stream])
    except CudaError as error:
        device.waits_in_streams = False
        _log.info("rank %d: kernels wait for flags, because streams cannot: %s", rank, error)


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
        endpoint = Endpoint(network.messages, device.driver.create_stream(), state, agreed)
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
