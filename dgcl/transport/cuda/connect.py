"""Connect ranks' devices: exchange where memory is, open it, and prove every way with a real transfer.

Whether one device can write into another's memory is never assumed: what a driver says about it and what a
machine does have differed before (virtual machines, IOMMUs, containers). So at set-up every rank writes a
pattern into each peer by the copy engine, and a word by a kernel, and the peers say what they found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgcl.errors import CommError
from dgcl.kernels.cuda_driver import Driver
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, MAP, MAP_ADDRESS, STATE_BYTES, records
from dgcl.ranks.control import Control
from dgcl.transport.cuda.control_block import LINE, PROOF, DeviceWords, HostPage, first_state
from dgcl.transport.cuda.directory import MOST_ENTRIES, Card, Directory, PeerMemory
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.groups import Ends
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.network import Network
from dgcl.transport.cuda.plan import Tables
from dgcl.transport.cuda.program import Wires, num_slots
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.segments import Segment

_log = logging.getLogger("dgcl")

_ENTERED_WORDS = 7
_ENDING = 5.0  # seconds
_ENDING_POLL = 0.002
#: The words' place in a directory; the pool's allocations count from 0.
_WORDS_BASE = -1


@dataclass(eq=False)
class Connections:
    """One rank's memory that peers see, and theirs as it sees it.

    Attributes:
        device, rank, world_size: Whose it is.
        tables: Tables of this rank.
        words, page, directory: What peers and host see.
        cards: What every rank said of itself.
        peers: Memory of each peer; None for this rank, and for those out of reach.
        wires: For laying out programs.
        lanes: The way through the host; None where every pair of ranks on a machine reaches each other.
        ends: The way to other machines; None where this rank exchanges no rows with them.
        reasons: Why each peer within a machine is reached as it is.
    """

    device: Device
    rank: int
    world_size: int
    tables: Tables
    words: DeviceWords
    page: HostPage
    directory: Directory
    cards: list[Card]
    peers: list[PeerMemory | None]
    wires: Wires
    lanes: Lanes | None
    ends: Ends | None
    reasons: list[str]

    def map_new(self) -> str:
        """Open what peers have allocated since, and tell the kernels; why not, if that failed."""
        driver, side = self.device.driver, self.device.side
        for rank, peer in enumerate(self.peers):
            if peer is None:
                continue
            first = peer.num_known - 1  # the words are no buffer
            new = peer.look()
            if len(new):
                at = int(self.wires.maps[rank, 0]) + first * MAP.itemsize
                # Addresses last: a kernel takes a record for whole that has one.
                blank = new.copy()
                blank["address"] = 0
                driver.copy_to_device(at, blank.ctypes.data, blank.nbytes, side)
                for place in range(len(new)):
                    address = np.array([new["address"][place]], np.int64)
                    target = at + place * MAP.itemsize + MAP_ADDRESS
                    driver.copy_to_device(target, address.ctypes.data, 8, side)
            if peer.broken:
                return f"rank {self.rank} cannot open new device memory of rank {rank}: {peer.broken}"
        return ""

    def close(self) -> None:
        """Give this rank's own memory back; nobody may use it any more.

        A last look or stop may be on its way still: that is waited for, and where the device does none of it the memory
        stays.
        """
        end = time.monotonic() + _ENDING
        while not self.page.is_quiet:
            if time.monotonic() > end:
                _log.debug("rank %d: the device does not end, its memory is not given back", self.rank)
                return
            time.sleep(_ENDING_POLL)
        self.tables.free()
        self.device.driver.free(self.words.address)
        self.page.close()
        if self.lanes is not None:
            self.lanes.close()
        self.directory.close()

    def shares_device_with(self, process: int, *, same: bool) -> list[int]:
        """Other ranks on this rank's device that are threads of ``process`` (``same``), or are not."""
        mine = self.cards[self.rank].uuid
        return [
            rank
            for rank, card in enumerate(self.cards)
            if rank != self.rank and card.uuid == mine and (card.process == process) == same
        ]


def entered(
    tag: int, local: int, second: int, result: int, staging: int, buffer: Block, relay: Block | None
) -> tuple[int, ...]:
    """What the kernel ``enter`` is told of a call.

    Args:
        tag: What kind of call.
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

    Args:
        device, control: Of this rank.
        network: What joins it to ranks on other machines, whose memory is left alone; None: there are none.

    Ranks of a machine whose devices cannot write into each other's memory get a way through the host's; told at INFO.

    Raises:
        CommError: There is not even that; on every rank.
    """
    rank, world_size = control.rank, control.world_size
    driver, side = device.driver, device.side
    remote = frozenset[int]() if network is None else network.remote
    tables = Tables(device)
    page = HostPage(device, world_size)
    directory = Directory(device)
    size = -(-DeviceWords.num_bytes(world_size) // (2 << 20)) * (2 << 20)
    words = DeviceWords(driver.allocate(size), world_size)
    driver.clear(words.address, size, side)
    state = first_state(page)
    driver.copy_to_device(words.address, state.ctypes.data, STATE_BYTES, side)
    unreachable = ""
    try:
        directory.add(Segment(_WORDS_BASE, size, np.zeros(0, np.uint8), words.address))
    except CudaError as error:
        directory.closed_to_others = True
        unreachable = f"its device memory cannot be shared: {error}"
    if not device.is_open:
        unreachable = "it is kept closed"
    maps = [(tables.allocate(MOST_ENTRIES * MAP.itemsize), MOST_ENTRIES) for _ in range(world_size)]
    addresses = tables.allocate(8 * num_slots(world_size))
    announced = tables.allocate(8 * _ENTERED_WORDS)
    driver.synchronize_stream(side)

    cards = control.exchange(directory.card(unreachable))
    peers: list[PeerMemory | None] = [None] * world_size
    lines: list[DeviceWords | None] = [words if other == rank else None for other in range(world_size)]
    problems: dict[int, str] = {}
    for other, card in enumerate(cards):
        if other == rank or other in remote:
            continue
        try:
            peers[other], lines[other] = _open(device, card, world_size)
        except (CudaError, OSError, CommError) as error:
            problems[other] = str(error)
    _prove(device, tables, rank, words, lines)
    _try_waits_of_streams(device, words, rank)
    control.barrier()
    page.start_look(words)
    driver.synchronize_stream(side)
    look = page.look()
    assert look is not None
    for other in range(world_size):
        if (
            other != rank
            and other not in remote
            and not np.array_equal(look.proof(other), _pattern(other, rank))
        ):
            problems.setdefault(other, "what it wrote into this rank's device memory did not arrive")
    staged, reasons = _out_of_reach(rank, control.exchange(problems))
    lanes = Lanes(device, control, staged[rank]) if any(staged) else None
    for other in staged[rank]:
        if (peer := peers[other]) is not None:
            peer.close()
        peers[other] = lines[other] = None
    control.barrier()

    for other in staged[rank] | remote:
        maps[other] = 0, -1
    ends, outbox, handed = _ends(network, device.driver, tables, page)
    known = [each.address if each is not None else 0 for each in lines]
    theirs = [DeviceWords(address, world_size) for address in known]
    wires = Wires(
        state=words.address,
        addresses=addresses,
        lines=_lines([each.ready(rank) for each in theirs], staged[rank], lanes.announced if lanes else None),
        words=announced,
        num_words=_ENTERED_WORDS,
        ready=_lines(
            [words.ready(other) for other in range(world_size)], staged[rank], lanes.ready if lanes else None
        ),
        done=np.array([words.done(other) for other in range(world_size)], np.int64),
        raised=np.array([each.done(rank) for each in theirs], np.int64),
        maps=np.array(maps, np.int64),
        staged=staged[rank],
        remote=remote,
        partners=frozenset() if ends is None or network is None else network.partners,
        outbox=outbox,
        handed=handed,
        begun=page.begun_line,
        finished=page.finished_word,
    )
    near = {card.process for other, card in enumerate(cards) if other not in remote}
    way = "raw addresses" if len(near) == 1 else "CUDA IPC"
    if rank == 0:
        _log.info(
            "%d ranks on %d device(s) write into each other's memory by %s%s",
            world_size,
            len({card.uuid for card in cards}),
            way,
            ", within each machine" if remote else "",
        )
    reasons[rank] = "this rank"
    for other in range(world_size):
        reasons.setdefault(other, f"device memory: each writes into the other's by {way}")
    ordered = [reasons[other] for other in range(world_size)]
    return Connections(
        device, rank, world_size, tables, words, page, directory, cards, peers, wires, lanes, ends, ordered
    )


def _ends(
    network: Network | None, driver: Driver, tables: Tables, page: HostPage
) -> tuple[Ends | None, int, int]:
    """A rank's end of the way to other machines, its outbox, and the word that counts what it has handed over."""
    if network is None or network.wire is None or not network.partners:
        return None, 0, 0
    state = tables.upload(first_state(page))
    outbox, handed, greeted = (tables.allocate(LINE) for _ in range(3))
    return Ends(network.wire, driver.create_stream(), state, greeted), outbox, handed


def _open(device: Device, card: Card, world_size: int) -> tuple[PeerMemory, DeviceWords]:
    if card.unreachable:
        raise CommError(card.unreachable)
    peer = PeerMemory(device, card)
    records_ = peer.look()
    if peer.broken or not len(records_):
        raise CommError(peer.broken or "it has no device memory")
    return peer, DeviceWords(int(records_["address"][0]), world_size)


def _pattern(writer: int, reader: int) -> np.ndarray:
    """What ``writer`` writes at ``reader``: half of it by the copy engine, the first word by a kernel."""
    words = np.arange(PROOF // 8, dtype=np.int64) * 1_000_003 + writer * 65_537 + reader + 1
    words[1 : PROOF // 16] = 0
    return words


def _prove(
    device: Device, tables: Tables, rank: int, words: DeviceWords, lines: list[DeviceWords | None]
) -> None:
    """Write this rank's pattern into every peer that could be opened; waits for the device."""
    prepared = Prepared(device.driver)
    for other, theirs in enumerate(lines):
        if theirs is None or other == rank:
            continue
        pattern, half = _pattern(rank, other), PROOF // 2
        flag = {"address": theirs.proof(rank), "offset": int(pattern[0])}
        prepared.launch(
            device.kernels["signal"], 1, 32, words.address, tables.upload(records(FLAG, [flag])), 1
        )
        prepared.copy(theirs.proof(rank) + half, tables.upload(pattern) + half, half)
    prepared.enqueue([device.side])
    device.driver.synchronize_stream(device.side)


def _try_waits_of_streams(device: Device, words: DeviceWords, rank: int) -> None:
    """Let the current stream and the side stream wait for what is there already. Kernels wait instead where the
    driver refuses; told at INFO."""
    if not device.waits_in_streams:
        return
    try:
        prepared = Prepared(device.driver)
        prepared.wait_value(words.proof(rank), 0, 0)
        for stream in (device.side, device.tensors.current_stream()):
            prepared.enqueue([stream])
    except CudaError as error:
        device.waits_in_streams = False
        _log.info("rank %d: kernels wait for flags, because streams cannot: %s", rank, error)


def _lines(
    direct: list[int], staged: frozenset[int], through_host: Callable[[int], int] | None
) -> np.ndarray:
    """Addresses of a line per peer."""
    if through_host is not None:
        direct = [through_host(peer) if peer in staged else line for peer, line in enumerate(direct)]
    return np.array(direct, np.int64)


def _out_of_reach(rank: int, reports: list[dict[int, str]]) -> tuple[list[frozenset[int]], dict[int, str]]:
    """For every rank those that it and they cannot reach both ways; told at INFO by the lower of two. And why those of
    this rank are reached as they are."""
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
