"""Lists the exchanges that a calibration times: over single links, over shared connections, and over all links.

- *One link*: one sender, one receiver, from one row to 16 MB: latency and bandwidth of each class of links.
- *Shared*: one to four senders at once over one connection (the experiment of the DGCL paper's Table 3), and several
  receivers of one sender, which tell its port from theirs.
- *Patterns*: all ranks at once, to all others and round a ring, at several sizes, and in several stages.

Called by `experiment_programs` and `run`. Free to change while every class of links is measured alone, and senders
share the connection that is named (`tests/dgcl/calibration/test_experiments.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dgcl.topology import Topology

KB, MB = 1 << 10, 1 << 20
_SIZES = (0, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB)  # bytes of one transfer; 0: one row
_PATTERN_SIZES = (0, 64 * KB, MB, 8 * MB)  # bytes that a rank sends
_SHARED_SIZE = 8 * MB  # of each sender
_MOST_SHARING = 4
_PER_CLASS = 2  # links that stand for their class


# Links are of one class if their routes pass connections of the same kinds, bandwidths and latencies.


@dataclass(frozen=True)
class Transfer:
    """Rows from one rank to another in a stage."""

    stage: int
    src: int
    dst: int
    rows: int


@dataclass(frozen=True)
class Experiment:
    """An exchange to time.

    Attributes:
        name: What is sent, for people.
        topic: ``"one link"``, ``"shared"`` or ``"pattern"``.
        transfers: What is sent; at most one for each (stage, src, dst).
        senders: Of a shared connection: how many send over it.
        shares: Of a shared connection: its name.
    """

    name: str
    topic: str
    transfers: tuple[Transfer, ...]
    senders: int = 0
    shares: str = ""

    @property
    def rows(self) -> int:
        """Total number of rows sent."""
        return sum(transfer.rows for transfer in self.transfers)


def _pairs(topology: Topology) -> list[tuple[int, int]]:
    """The ranks at the ends of each link."""
    arrays = topology.arrays()
    return [*zip(arrays.link_src.tolist(), arrays.link_dst.tolist(), strict=True)]


def link_classes(topology: Topology) -> list[list[tuple[int, int]]]:
    """Pairs of ranks by the class of their link, in the order of ranks."""
    arrays = topology.arrays()
    kinds = [(c.kind, c.bandwidth, c.latency, c.duplex) for c in topology.connections]
    passed = [kinds[connection] for connection in arrays.direction_connection[arrays.link_directions]]
    classes: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for link, pair in enumerate(_pairs(topology)):
        classes.setdefault(tuple(passed[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]), []).append(pair)
    return list(classes.values())


def experiments(topology: Topology, row_bytes: int) -> list[Experiment]:
    """All that is to be measured on a topology, with rows of ``row_bytes``.

    Raises:
        ValueError: There is nothing to measure: no links.
    """
    if not topology.links:
        raise ValueError(f"topology {topology.name!r} has no links to calibrate")
    return [
        *_one_link(topology, row_bytes),
        *_shared(topology, row_bytes),
        *_fans(topology, row_bytes),
        *_patterns(topology, row_bytes),
    ]


def _rows(num_bytes: int, row_bytes: int) -> int:
    return max(1, num_bytes // row_bytes)


def _transfers(pairs: Iterable[tuple[int, int]], rows: int, stages: int = 1) -> tuple[Transfer, ...]:
    """So many rows from the first to the second rank of each pair, in every stage."""
    return tuple(Transfer(stage, src, dst, rows) for stage in range(stages) for src, dst in pairs)


def _one_link(topology: Topology, row_bytes: int) -> Iterator[Experiment]:
    for pairs in link_classes(topology):
        for src, dst in pairs[:: max(1, len(pairs) - 1)][:_PER_CLASS]:
            for size in _SIZES:
                rows = _rows(size, row_bytes)
                yield Experiment(f"{src}>{dst}, {rows} rows", "one link", _transfers([(src, dst)], rows))


def _shared(topology: Topology, row_bytes: int) -> Iterator[Experiment]:
    """1, 2, 3, ... senders over each class of connections that links share, the busiest of the class."""
    arrays = topology.arrays()
    users: dict[int, list[tuple[int, int]]] = {}
    ends = _pairs(topology)
    for link, direction in zip(arrays.link_of_hop, arrays.link_directions.tolist(), strict=True):
        users.setdefault(direction, []).append(ends[link])
    classes: dict[tuple[object, ...], int] = {}
    for direction, pairs in users.items():
        connection = topology.connections[arrays.direction_connection[direction]]
        if len({src for src, _ in pairs}) < 2:
            continue
        key = (connection.kind, connection.bandwidth, connection.duplex)
        if key not in classes or len(users[classes[key]]) < len(pairs):
            classes[key] = direction
    rows = _rows(_SHARED_SIZE, row_bytes)
    for direction in classes.values():
        chosen = _apart(users[direction])
        for count in range(1, len(chosen) + 1):
            yield Experiment(
                f"{count} over {arrays.direction_names[direction]}",
                "shared",
                _transfers(chosen[:count], rows),
                count,
                topology.connections[arrays.direction_connection[direction]].name,
            )


def _apart(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Links of different senders, as far as there are, of receivers that are used as little as possible."""
    chosen: list[tuple[int, int]] = []
    used: Counter[int] = Counter()
    for src in dict.fromkeys(src for src, _ in pairs):
        dst = min((b for a, b in pairs if a == src), key=lambda rank: (used[rank], rank == src))
        chosen.append((src, dst))
        used[dst] += 1
    return chosen[:_MOST_SHARING]


def _fans(topology: Topology, row_bytes: int) -> Iterator[Experiment]:
    """One sender to several receivers, and several senders to one receiver."""
    rows = _rows(_SHARED_SIZE, row_bytes)
    for word, end in (("from", 0), ("to", 1)):
        fan = [pair for pair in _pairs(topology) if pair[end] == 0]
        for count in range(2, min(len(fan), _MOST_SHARING) + 1):
            yield Experiment(
                f"{count} {word} rank 0",
                "shared",
                _transfers(fan[:count], rows),
                count,
                f"{word} rank 0",
            )


def _patterns(topology: Topology, row_bytes: int) -> Iterator[Experiment]:
    pairs = _pairs(topology)
    count = topology.num_devices
    most = max(1, count - 1)
    for size in _PATTERN_SIZES:
        rows = _rows(size // most, row_bytes)
        yield Experiment(f"all to all, {rows} rows", "pattern", _transfers(pairs, rows))
        ring = [(rank, (rank + 1) % count) for rank in range(count)]
        if count > 2 and set(ring) <= set(pairs):
            rows = _rows(size, row_bytes)
            yield Experiment(f"ring, {rows} rows", "pattern", _transfers(ring, rows))
            stages = min(3, count - 1)
            name = f"ring in {stages} stages, {rows} rows"
            yield Experiment(name, "pattern", _transfers(ring, rows, stages))
