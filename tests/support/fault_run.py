"""The harness: starts ranks, lets faults strike them, and holds what they say against what they should."""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.fault_cases import GRACE, Case, Said, judge
from tests.support.fault_rank import Problem, make_problems, serve
from tests.support.processes import Ranks

#: A machine with much other work may need longer for a call than the deadline of ranks that will be stopped.
_TOO_SLOW = "the deadline passed before the fault"
_TRIES = 3


@dataclass
class Tally:
    """What came of many faults.

    Attributes:
        faults: How many of each (kind, place).
        wrong: What was not as it should be, a line each.
        slowest: For each kind, the longest time from the fault to the last survivor's error, in seconds.
        fresh: New communicators that were made and worked after a fault.
    """

    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    fresh: int = 0


class Harness:
    """Ranks on which faults are played, started anew after one has died.

    Args:
        world_size: How many.
        grace: Seconds that a survivor may take beyond its deadline.
    """

    def __init__(self, world_size: int, grace: float = GRACE):
        self.world_size, self._grace = world_size, grace
        self.tally = Tally()
        self._problems: dict[str, Problem] = make_problems(world_size)
        self.worlds = {name.split(" of ")[0]: world_size for name in self._problems}
        self._ranks: Ranks | None = None

    def play(self, case: Case) -> list[str]:
        """Let it happen; what was wrong."""
        for _ in range(_TRIES):
            if self._ranks is None:
                self._ranks = Ranks(self.world_size, serve, self._problems)
            wrong = self._play(case, self._ranks)
            if not wrong or not wrong[0].startswith(_TOO_SLOW):
                break
            self.close()
            case = replace(case, slack=4 * case.slack)
        self.tally.faults[case.kind, case.point] += 1
        self.tally.wrong += [f"{case}: {text}" for text in wrong]
        if wrong or case.kind == "kill":
            self.close()
        return wrong

    def close(self):
        """End the ranks; nothing of theirs may be left."""
        if self._ranks is None:
            return
        ranks, self._ranks = self._ranks, None
        pids = [process.pid for process in ranks.processes]
        ranks.__exit__(None, None, None)
        self.tally.wrong += [f"process {pid} is left" for pid in pids if Path(f"/proc/{pid}").exists()]

    def _play(self, case: Case, ranks: Ranks) -> list[str]:
        everyone = list(range(self.world_size))
        others = [rank for rank in everyone if rank != case.victim]
        named = named_memory()
        ranks.tell(("play", case))
        try:
            first = ranks.told([case.victim])[case.victim]
            if first[0] == "ended" and first[1].error == "CommTimeoutError":
                return [f"{_TOO_SLOW}: {first[1].text}"]
            if first[0] != "struck":
                return [f"the fault never struck: {first}"]
            struck: float = first[1]
            said: list[Said] = [answer[1] for answer in ranks.told(others).values()]
            if case.kind not in ("kill", "stop"):
                said.append(ranks.told([case.victim])[case.victim][1])
            else:
                ranks.tell(("without", case.victim, case.world, case.seed), others)
                wrong = self._fresh(ranks, others)
                if case.kind == "stop":
                    ranks.signal(case.victim, signal.SIGCONT)
                    said.append(ranks.told([case.victim])[case.victim][1])
                if wrong:
                    return wrong
            verdicts = [(answer, judge(case, answer, struck, self._grace)) for answer in said]
            wrong = [f"rank {a.rank}: {verdict}: {a.error}: {a.text}" for a, verdict in verdicts if verdict]
            last = max(answer.when for answer in said if answer.rank != case.victim)
            self.tally.slowest[case.kind] = max(self.tally.slowest.get(case.kind, 0.0), last - struck)
            if case.kind != "kill":
                ranks.tell(("again", case.world))
                wrong += self._fresh(ranks, everyone)
        except AssertionError as error:  # a rank is dead or says nothing
            return [str(error)]
        if named_memory() != named:
            wrong.append(f"/dev/shm held {named}, holds {named_memory()}")
        return wrong

    def _fresh(self, ranks: Ranks, which: list[int]) -> list[str]:
        answers = ranks.told(which)
        wrong = [f"rank {rank}: {answer[1:]}" for rank, answer in answers.items() if answer[1] is not None]
        self.tally.fresh += not wrong
        return wrong


def named_memory() -> list[str]:
    """Files of shared memory that have a name and are ours; other tests may have theirs meanwhile."""
    return sorted(name for name in os.listdir("/dev/shm") if "dgcl" in name)


def play_all(harness: Harness, cases: list[Case], show: bool) -> float:
    """Play the cases; how long that took."""
    begin = time.monotonic()
    for number, case in enumerate(cases):
        for text in harness.play(case):
            print(f"WRONG {case}: {text}", flush=True)
        if show and (number + 1) % 50 == 0:
            print(f"{number + 1} of {len(cases)} faults, {time.monotonic() - begin:.0f} s", flush=True)
    harness.close()
    return time.monotonic() - begin
