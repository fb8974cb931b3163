"""Host lanes: rows between devices that cannot reach each other go through locked host memory, in slices.

This is the paper's second kind of transfer. Each rank owns a segment of shared host memory that both ranks of a pair
lock. For each peer that it reaches through the host it has three lines, each written by that peer, and two slots::

    ready    the peer announces its calls
    full     the peer has put slice n into its slot
    taken    the peer has taken slice n of what this rank sends it
    slots    slice n of what the peer sends lies in slot n % 2

A sender gathers a stage's rows for such a peer into its own device's memory. From there its copy engine copies them
slice by slice into the slots, on a stream of their own, while the receiver's copy engine copies the slice before to its
place in the result: writing one slot and reading the other overlap. Slices are counted per peer and call; the first two
of a call find their slots free, because a peer that announces a call has finished the one before.

Both sides process their slices in rounds, in the order of (stage, number within the transfer), so they cannot wait for
each other in a circle (:mod:`dgcl.transport.cuda.lane_copies` has the argument).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dgcl.errors import CommError
from dgcl.program.model import Schedule
from dgcl.ranks.control import Control
from dgcl.transport.common.segments import PeerFile, Segment, SegmentFile
from dgcl.transport.common.words import read_word
from dgcl.transport.cuda.gpu import CudaError, Device

#: Bytes of a slot.
SLICE_BYTES = 4 << 20
NUM_SLOTS = 2
#: Slices that a call may send to one peer: a flag's value is this times the call, plus the slice.
MOST_SLICES = 1 << 24

_LINE = 128
_LINES_BYTES = 4 * _LINE


@dataclass(frozen=True)
class Slice:
    """A piece of the rows that go from one rank to another in one call.

    Attributes:
        peer: The other end.
        number: Its place among all slices of the call between the two, from 0.
        portion: Of the transfer: 0 what the receiver needs, 1 what it passes on.
        first: Byte of the portion at which it begins.
        num_bytes: How long it is.
        last: Whether the transfer ends with it.
    """

    peer: int
    number: int
    portion: int
    first: int
    num_bytes: int
    last: bool


def cut(
    schedule: Schedule, row_bytes: int, staged: frozenset[int], *, receives: bool
) -> dict[int, list[Slice]]:
    """The slices of every transfer from, or to, peers that are reached through the host, by transfer."""
    peers, counts = (
        (schedule.recv_peer, schedule.recv_count) if receives else (schedule.send_peer, schedule.send_count)
    )
    numbers: dict[int, int] = {}
    slices: dict[int, list[Slice]] = {}
    for i, peer in enumerate(peers.tolist()):
        if peer not in staged:
            continue
        pieces = [
            (portion, first, min(SLICE_BYTES, int(counts[i, portion]) * row_bytes - first))
            for portion in range(2)
            for first in range(0, int(counts[i, portion]) * row_bytes, SLICE_BYTES)
        ]
        pieces = pieces or [(0, 0, 0)]  # rows without bytes: that they have come is still to be told
        begin = numbers.get(peer, 0)
        numbers[peer] = begin + len(pieces)
        assert numbers[peer] < MOST_SLICES
        slices[i] = [Slice(peer, begin + n, *piece, n == len(pieces) - 1) for n, piece in enumerate(pieces)]
    return slices


class Lanes:
    """One rank's lines and slots, and those of its peers. Collective over all ranks.

    Args:
        device, control: Of this rank.
        staged: The peers that it reaches through the host.

    Raises:
        CommError: The driver cannot lock shared memory; on every rank.
    """

    def __init__(self, device: Device, control: Control, staged: frozenset[int]) -> None:
        self._device, self.rank, self.staged = device, control.rank, staged
        self._file = SegmentFile()
        self._opened: list[PeerFile] = []
        self._registered: list[Segment] = []
        size = control.world_size * _LINES_BYTES + len(staged) * NUM_SLOTS * SLICE_BYTES
        problem = ""
        self._at: dict[int, int] = {}  # address on this device of each rank's piece
        try:
            own = self._file.grow(size)
            self._at[self.rank] = self._register(own)
        except (CudaError, MemoryError) as error:
            problem = f"rank {self.rank}: {error}"
        descriptors = control.exchange((self._file.handle, size, sorted(staged), problem))
        self._slots_begin = control.world_size * _LINES_BYTES
        self._order = [order for _, _, order, _ in descriptors]
        if not any(problem for *_, problem in descriptors):
            try:
                for peer in sorted(staged):
                    file = PeerFile(descriptors[peer][0])
                    self._opened.append(file)
                    self._at[peer] = self._register(file.map(0, -(-descriptors[peer][1] // 4096) * 4096))
            except (CudaError, OSError, ValueError) as error:
                problem = f"rank {self.rank}: {error}"
        problems = [problem for *_, problem in descriptors] + control.exchange(problem)
        if any(problems):
            raise CommError(f"no way between devices: {next(filter(None, problems))}")
        self._lines = own.address

    def _register(self, segment: Segment) -> int:
        address = self._device.driver.register_host(segment.address, segment.size)
        self._registered.append(segment)
        return address

    def _line(self, owner: int, writer: int, which: int) -> int:
        return self._at[owner] + writer * _LINES_BYTES + which * _LINE

    def ready(self, peer: int) -> int:
        """Where ``peer`` announces its calls to this rank."""
        return self._line(self.rank, peer, 0)

    def announced(self, peer: int) -> int:
        """Where this rank announces its calls to ``peer``."""
        return self._line(peer, self.rank, 0)

    def full(self, peer: int, *, receives: bool) -> int:
        """What counts the slices put into slots: those from ``peer``, or those to it."""
        return self._line(self.rank, peer, 1) if receives else self._line(peer, self.rank, 1)

    def taken(self, peer: int, *, receives: bool) -> int:
        """What counts the slices taken out of slots: those from ``peer``, or those to it."""
        return self._line(peer, self.rank, 2) if receives else self._line(self.rank, peer, 2)

    def slot(self, peer: int, number: int, *, receives: bool) -> int:
        """Where slice ``number`` lies on its way from ``peer``, or to it."""
        owner, other = (self.rank, peer) if receives else (peer, self.rank)
        place = self._order[owner].index(other) * NUM_SLOTS + number % NUM_SLOTS
        return self._at[owner] + self._slots_begin + place * SLICE_BYTES

    def announcements(self) -> Iterator[tuple[int, int]]:
        """(peer, call) of what each such peer has announced."""
        for peer in self.staged:
            yield peer, int(read_word(self._lines + peer * _LINES_BYTES))

    def close(self) -> None:
        """Unlock all; nothing on the device may use it any more."""
        while self._registered:
            self._device.driver.unregister_host(self._registered.pop().address)
        while self._opened:
            self._opened.pop().close()
        self._file.close()
