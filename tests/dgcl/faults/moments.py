"""Faults at random moments of a whole program, from ``dgcl.init`` to training, on a machine with other work.

Nothing is known of where a fault strikes. So what is required is little, and the same of every trial: every survivor
raises an error in time, and who is to blame in it is the victim. (It is no CommError where the user's program fails on
rank 0 while it partitions: then all ranks get that error, with "(on rank 0)".)
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.cli.output import step
from dgcl.ranks import context as contexts
from dgcl.ranks.context import context
from tests.support.processes import Ranks

WORLD_SIZE = 3
#: What happens to the victim.
KINDS = {
    "kill": "`SIGKILL`",
    "kill, a child lives": "`SIGKILL`, while a fork of the rank, such as a data loader, lives on",
    "stop": "`SIGSTOP`",
    "interrupt": "`SIGINT`, which ends the program",
    "exception": "an exception of the user's, which ends the program without `close()`",
}
_HANG = 60.0  # seconds beyond the deadline
_TRIES = 3


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes:
        kind: Of :data:`KINDS`.
        victim: The rank.
        moment: Seconds after the victim has begun.
        deadline: Seconds that ranks wait for each other.
    """

    kind: str
    victim: int
    moment: float
    deadline: float


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        trial: The trial.
        seconds: From the fault to the last survivor's error.
        wrong: What was wrong, a line each: a survivor that hangs, has no error, or blames another rank.
        unnamed: Survivors' errors that blame nobody.
        in_set_up: Whether it struck before the victim trained.
    """

    trial: Trial
    seconds: float
    wrong: list[str]
    unnamed: list[str]
    in_set_up: bool


def draw(num: int, seed: int, deadline: float, set_up: float = 2.0) -> list[Trial]:
    """``num`` trials, the kinds in turn; victims and moments are drawn, these within twice ``set_up`` seconds."""
    generator, kinds = np.random.default_rng(seed), list(KINDS)
    return [
        Trial(
            kinds[number % len(kinds)],
            int(generator.integers(WORLD_SIZE)),
            float(generator.uniform(0, 2 * set_up)),
            deadline,
        )
        for number in range(num)
    ]


def program(channel: Connection, deadline: float):
    """Meets, makes a communicator and windows, and trains until something happens."""
    context.control = None
    dgcl.init(timeout=deadline)
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 300, (2, 3000), generator=generator)
    comm = dgcl.build_comm_info(edges, "uniform", timeout=deadline)
    aggregate = comm.aggregator("mean", windows=2)
    channel.send(("trains", 0))
    x = torch.rand(comm.num_owned, 16, requires_grad=True)
    while True:
        rows = dgcl.graph_allgather(x)
        (rows.sum() + aggregate(x).sum()).backward()
        pending = comm.expand_async(comm.owned_ids)
        x.grad = None
        time.sleep(0.001)  # something of the user's
        pending.wait()
        comm.all_reduce_sum(torch.ones(1))


def set_up_seconds(at_once: int) -> float:
    """What the program takes before it trains, so many at a time, on the machine as it is now."""
    with ExitStack() as running:
        jobs = [running.enter_context(Ranks(WORLD_SIZE, serve, _HANG, False)) for _ in range(at_once)]
        for ranks in jobs:
            ranks.told()
        begun = time.monotonic()
        for ranks in jobs:
            ranks.told()
        return time.monotonic() - begun


def serve(channel: Connection, deadline: float, has_child: bool):
    """Run the program; say how it ended, and end as a process does that returns to the interpreter."""

    def raise_error(number: int, frame: FrameType | None):
        raise ZeroDivisionError("in the user's program")

    signal.signal(signal.SIGUSR1, raise_error)
    _raise_again()
    child = os.fork() if has_child else None
    if child == 0:
        time.sleep(2 * _HANG)
        os._exit(0)
    channel.send(("begun", child))
    try:
        program(channel, deadline)
    except BaseException as error:
        channel.send(("ended", f"{type(error).__name__}: {error}", time.monotonic()))
    contexts._tell_peers()
    channel.recv()


def _raise_again():
    """Let no fault pass without effect: Python ignores what is raised inside a destructor or another callback."""

    def again(ignored: Any):
        def raise_it(number: int, frame: FrameType | None):
            raise ignored.exc_value

        if isinstance(ignored.exc_value, (ZeroDivisionError, KeyboardInterrupt)):
            signal.signal(signal.SIGALRM, raise_it)
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    sys.unraisablehook = again


_SIGNALS = {"stop": signal.SIGSTOP, "interrupt": signal.SIGINT, "exception": signal.SIGUSR1}


def play(trial: Trial) -> Outcome:
    """Let it happen. A machine with much other work may be too slow for the deadline without it: then again."""
    for _ in range(_TRIES):
        outcome = _play(trial)
        if outcome is not None:
            return outcome
    return Outcome(trial, 0.0, ["the deadline passes before anything has happened"], [], True)


def _play(trial: Trial) -> Outcome | None:
    others = [rank for rank in range(WORLD_SIZE) if rank != trial.victim]
    limit = 2 * trial.deadline + _HANG
    with Ranks(WORLD_SIZE, serve, trial.deadline, trial.kind == "kill, a child lives") as ranks:
        children = [child for _, child in ranks.told().values() if child is not None]
        time.sleep(trial.moment)
        struck = ranks.signal(trial.victim, _SIGNALS.get(trial.kind, signal.SIGKILL))
        try:
            ends = {rank: _end(ranks, rank, limit) for rank in others}
        except AssertionError as error:
            return Outcome(trial, limit, [str(error)], [], True)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
        trained = _has_trained(ranks, trial.victim)
    texts = {rank: text for rank, (text, _) in ends.items()}
    if any(when < struck for _, when in ends.values()) or _was_slow(texts):
        return None
    wrong, unnamed = [], []
    for rank, text in texts.items():
        blamed = culprit(text)
        if "Error: " not in text or (blamed is not None and blamed != trial.victim):
            wrong.append(f"rank {rank}: {text}")
        elif blamed is None:
            unnamed.append(f"rank {rank}: {text}")
    return Outcome(trial, max(when for _, when in ends.values()) - struck, wrong, unnamed, not trained)


def _was_slow(texts: dict[int, str]) -> bool:
    """Whether a survivor was still computing when another had waited for it all the time."""
    late = {culprit(text) for text in texts.values() if text.startswith("CommTimeoutError: ")}
    return any(
        rank in late and (culprit(text) == rank or f": rank {rank} stops its part of the set-up: " in text)
        for rank, text in texts.items()
    )


def _end(ranks: Ranks, rank: int, limit: float) -> tuple[str, float]:
    while (said := ranks.told([rank], limit)[rank])[0] != "ended":
        pass
    return said[1], said[2]


def _has_trained(ranks: Ranks, victim: int) -> bool:
    try:
        return bool(ranks.told([victim], 0.0)[victim][0] == "trains")
    except AssertionError:
        return False


#: What stands in messages about ranks that are not to blame.
_BESIDES = (
    r"rank \d+ stops because rank \d+ reports: ",
    r", says rank \d+",
    r"rank \d+ has (ended|left): ",
    r"; rank \d+ waits for it",
    r"rank \d+, [^:]*\(call \d+\): ",
    r" \(rank \d+, .* was at [^)]*\)",
    r"^\w+: rank \d+( stops its part of the set-up)?: ",
)


def culprit(text: str) -> int | None:
    """The rank that an error blames; None if it blames nobody."""
    reported = re.search(r" reports: rank (\d+): ", text)  # who speaks of itself, unless it names another
    for pattern in _BESIDES:
        text = re.sub(pattern, "", text)
    if "in vain: " in text:
        text = text.split("in vain: ")[1].split(";")[0]
        waits = re.search(r"waits for rank (\d+)\)", text)
        if waits:
            return int(waits[1])
    found = re.search(r"rank (\d+)", text) or reported
    return int(found[1]) if found else None


@contextmanager
def loaded(load: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def play_trials(trials: Sequence[Trial], at_once: int) -> list[Outcome]:
    """The trials, several at a time: they wait for deadlines and for processes to start."""
    with ThreadPoolExecutor(at_once) as pool, step(f"{len(trials)} faults"):
        return list(pool.map(play, trials))


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """What came of trials, kind by kind, in Markdown."""
    lines = [
        "| kind | trials | in set-up | wrong rank named, or none in time | nobody named | median s | slowest s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        of_kind = [each for each in outcomes if each.trial.kind == kind]
        if of_kind:
            seconds = [each.seconds for each in of_kind]
            wrong, unnamed = sum(bool(e.wrong) for e in of_kind), sum(bool(e.unnamed) for e in of_kind)
            lines.append(
                f"| {kind} | {len(of_kind)} | {sum(e.in_set_up for e in of_kind)} | {wrong} | {unnamed} |"
                f" {np.median(seconds):.2f} | {max(seconds):.2f} |"
            )
    return lines
