"""Which faults, where, to whom; and what the ranks must then say."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.support.fault_steps import IN_CALLS, IN_LAYERS, IN_SET_UP, IN_STAGES

#: Seconds after which a rank gives up on a peer that is stopped; and where it need not wait, what it may take.
DEADLINE = 2.0
#: The same while a communicator is made, where there is more to do.
SET_UP_DEADLINE = 4.0
#: What a survivor may take beyond the deadline.
GRACE = 1.0

#: What may happen at each kind of place.
KINDS = {
    **dict.fromkeys(IN_CALLS, ("kill", "stop", "interrupt")),
    **dict.fromkeys(("grow: before", "map: before"), ("kill", "stop", "interrupt", "memory")),
    **dict.fromkeys(IN_LAYERS, ("kill", "stop", "interrupt", "raise", "return")),
    **dict.fromkeys(IN_LAYERS[:2], ("kill", "stop", "interrupt", "raise", "return", "cross")),
    **dict.fromkeys(IN_SET_UP, ("kill", "stop", "interrupt")),
    "engine": ("kill",),
    "control page": ("memory",),
}
#: The same for ranks that exchange by collectives.
KINDS_OF_COLLECTIVES = {
    **dict.fromkeys((*IN_STAGES, *IN_SET_UP), ("kill", "stop", "interrupt")),
    **dict.fromkeys(IN_LAYERS, ("kill", "stop", "interrupt", "raise", "return")),
}
#: Places that a run comes to only a few times.
_RARE = ("map: before", "map: after", "grow: before", "grow: after", "control page", *IN_SET_UP)


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        world: Of :data:`tests.support.fault_rank.WORLDS`.
        point, kind: Where and what.
        occurrence: How often the victim passes the place unharmed.
        victim: The rank.
        seed: Of the widths of the run.
        channel: How rows travel, as in :func:`dgcl.build_comm_info`.
        slack: How many times the usual deadline ranks wait for each other.
    """

    world: str
    point: str
    kind: str
    occurrence: int
    victim: int
    seed: int
    channel: str = "auto"
    slack: float = 1.0

    def __str__(self) -> str:
        where = f"{self.point!r}, time {self.occurrence + 1}"
        by = "" if self.channel == "auto" else f", by {self.channel}"
        return f"{self.kind} of rank {self.victim} of {self.world} at {where}{by}"

    @property
    def in_set_up(self) -> bool:
        """Whether it strikes while the communicator is made."""
        return self.point in IN_SET_UP or self.point == "control page"

    @property
    def deadline(self) -> float:
        """Seconds that survivors wait before they give up."""
        if self.kind != "stop":
            return 0.0
        return self.slack * (SET_UP_DEADLINE if self.in_set_up else DEADLINE)

    @property
    def is_told(self) -> bool:
        """Whether the library itself must tell the peers, though the program catches what struck it."""
        return self.kind == "interrupt" and self.point not in IN_LAYERS


def cases(worlds: dict[str, int], num: int, seed: int = 0, channel: str = "auto") -> Iterator[Case]:
    """``num`` cases, every kind at every place in turn; worlds (by name, with their sizes), victims and
    moments are drawn."""
    generator = np.random.default_rng(seed)
    table = KINDS if channel == "auto" else KINDS_OF_COLLECTIVES
    pairs = [(point, kind) for point, kinds in table.items() for kind in kinds]
    for number in range(num):
        point, kind = pairs[number % len(pairs)]
        world = str(generator.choice(sorted(worlds)))
        occurrence = 0 if point in _RARE else int(generator.integers(6))
        yield Case(world, point, kind, occurrence, int(generator.integers(worlds[world])), number, channel)


@dataclass(frozen=True)
class Said:
    """How a rank's run ended: its error's class, its text, and when on the monotonic clock."""

    rank: int
    error: str
    text: str
    when: float


#: The class of the victim's own error, where it lives to have one.
_OWN = {
    "raise": "ZeroDivisionError",
    "return": "returned",
    "interrupt": "KeyboardInterrupt",
    "memory": "MemoryError",
    "cross": "DisagreementError",
}


def judge(case: Case, said: Said, struck: float, grace: float = GRACE) -> str | None:
    """What is wrong with what a rank said, if anything; ``grace`` is what it may take beyond its deadline."""
    if said.rank == case.victim:
        return _judge_victim(case, said)
    late = said.when - struck - grace - case.deadline
    if late > 0:
        return f"{late:.2f} s too late"
    for error, pattern in _expected(case):
        if said.error == error and re.search(pattern, said.text, re.DOTALL):
            names = f"rank {said.rank}"
            return None if names in said.text else f"{names} is not named"
    return "another error than expected"


def _judge_victim(case: Case, said: Said) -> str | None:
    if case.kind == "stop":
        good = said.error in ("CommTimeoutError", "PeerLostError", "CommError")
    elif (case.kind, case.point) == ("memory", "map: before"):
        good = said.error == "PeerLostError" and "cannot map memory of rank" in said.text
    else:
        good = said.error == _OWN[case.kind]
    return None if good else "the victim has another error than expected"


def _expected(case: Case) -> Iterator[tuple[str, str]]:
    """(class, pattern of the text) that a survivor may raise."""
    victim = f"rank {case.victim}"
    if case.in_set_up:
        how = {"kill": "has died or left", "stop": "has not come"}.get(case.kind, "was stopped by")
        yield "PeerLostError", rf"control group failed: rank {case.victim} {how}"
        if case.kind == "stop":
            yield "CommTimeoutError", rf"control group failed: rank {case.victim} {how}"
        if case.kind != "kill":
            return
    if case.kind == "kill":
        yield "PeerLostError", rf"{victim} has died, and stage \d"
    elif case.kind == "stop":
        yield "CommTimeoutError", rf"waited {case.deadline:g} s in vain: stage \d.*{victim}\b"
    elif case.kind == "interrupt":
        yield (
            "CommError",
            rf"{victim} left (\w+ \d+ at (stage \d|its end)|before call \d+): KeyboardInterrupt",
        )
        if not case.is_told:
            yield "CommError", rf"{victim}: stopped by KeyboardInterrupt"
            yield "CommError", rf"{victim}: rows of a started exchange were dropped"
    elif case.kind == "cross":
        yield "DisagreementError", rf"different orders: rank \d.*{victim}\b"
    elif case.kind == "raise":
        yield "CommError", rf"{victim}: stopped by ZeroDivisionError: in a layer"
        yield "CommError", rf"{victim}: rows of a started exchange were dropped"
    elif case.kind == "return":
        yield "PeerLostError", rf"{victim} has closed its communicator, and stage \d"
        yield "CommError", rf"{victim}: rows of a started exchange were dropped"
    elif case.point == "map: before":
        yield "PeerLostError", rf"{victim} cannot map memory of rank \d"
    else:
        yield "CommError", rf"{victim} is out of memory: cannot allocate"
