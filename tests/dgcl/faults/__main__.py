"""``python -m tests.dgcl.faults [--faults 500] [--ranks 3] [--seed 0] [--only KIND]``: faults inside the protocol,
counted. ``--moments 500 --loads 1 15 --write trials.md``: faults at random moments instead."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tests.dgcl.faults import moments
from tests.support.fault_cases import KINDS, KINDS_OF_COLLECTIVES, cases
from tests.support.fault_run import Harness, play_all


def main() -> int:
    """Play faults and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.dgcl.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--channel", choices=("auto", "collective"), default="auto", help="how rows travel")
    parser.add_argument("--only", metavar="WORD", help="only kinds and places with this word")
    parser.add_argument("--moments", type=int, metavar="N", help="N faults at random moments of a program")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 15], help="busy processes beside them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page of their results")
    args = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, and so do its ranks
    if args.moments is not None:
        return play_moments(args.moments, args.loads, args.seed, args.write)
    harness = Harness(args.ranks)
    chosen = list(cases(harness.worlds, args.faults, args.seed, args.channel))
    if args.only:
        chosen = [case for case in chosen if args.only in f"{case.kind} {case.point}"]
    seconds = play_all(harness, chosen, show=True)
    tally = harness.tally
    kinds = [
        kind
        for kind in ("kill", "stop", "interrupt", "raise", "return", "memory", "cross")
        if kind in tally.slowest
    ]
    width = max(map(len, KINDS))
    print(f"\n{'place':{width}} " + " ".join(f"{kind:>9}" for kind in kinds))
    for point in KINDS if args.channel == "auto" else KINDS_OF_COLLECTIVES:
        print(f"{point:{width}} " + " ".join(f"{tally.faults[kind, point] or '-':>9}" for kind in kinds))
    print(f"{'slowest survivor, s':{width}} " + " ".join(f"{tally.slowest[kind]:9.3f}" for kind in kinds))
    print(
        f"{sum(tally.faults.values())} faults on {args.ranks} ranks in {seconds:.0f} s: {len(tally.wrong)} wrong; "
        f"{tally.fresh} times a fresh communicator worked afterwards"
    )
    for text in tally.wrong:
        print(f"  {text}")
    return 1 if tally.wrong else 0


_PAGE = """# Faults at random moments

```
{command}
```

{ranks} ranks meet, build a communicator and windows, and train; at a random moment, from `dgcl.init` on and within
twice the time that they take before they train, a fault strikes one of them (`tests/dgcl/faults/moments.py`). Every
survivor must raise an error in time, and blame the victim in it. Ranks wait for each other {waits}.
Seconds are from the fault to the last survivor's error. A trial is played again, three times at most, where a survivor
was still computing when another had waited for it all that time. [Reliability](reliability.md#faults) tells of faults
at chosen places.

| kind | what strikes |
| --- | --- |
{kinds}

{date}, {machine}.
"""


def play_moments(num: int, loads: list[int], seed: int, page: Path | None) -> int:
    """Play faults at random moments under each load, and write what came of them."""
    deadlines = {load: 4.0 + load / 2 for load in loads}
    text = _PAGE.format(
        command=f"python -m tests.dgcl.faults --moments {num} --loads {' '.join(map(str, loads))} --seed {seed}"
        f" --write {page}",
        ranks=moments.WORLD_SIZE,
        waits=", ".join(f"{seconds:g} s at a load of {load}" for load, seconds in deadlines.items()),
        kinds="\n".join(f"| {kind} | {what} |" for kind, what in moments.KINDS.items()),
        date=time.strftime("%Y-%m-%d"),
        machine=f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f} before",
    )
    wrong = 0
    for load in loads:
        with moments.loaded(load):
            set_up = moments.set_up_seconds(at_once=2)
            outcomes = moments.play_trials(moments.draw(num, seed, deadlines[load], set_up), at_once=2)
        title = f"\n## {num} faults at a load of {load}, within {2 * set_up:.1f} s\n"
        text += "\n".join([title, *moments.table(outcomes), ""])
        for each in outcomes:
            wrong += bool(each.wrong)
            for line in each.wrong:
                print(f"WRONG at a load of {load}: {each.trial}: {line}", flush=True)
            for line in each.unnamed:
                print(f"nobody named at a load of {load}: {each.trial}: {line}", flush=True)
    print(text)
    if page is not None:
        page.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
