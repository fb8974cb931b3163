"""``python -m tests.dgcl.faults [--faults 500] [--ranks 3] [--seed 0] [--only KIND]``: faults inside the protocol,
counted."""

from __future__ import annotations

import argparse
import sys

from tests.dgcl.faults.cases import KINDS, cases
from tests.dgcl.faults.run import Harness, play_all


def main() -> int:
    """Play faults and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.dgcl.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="WORD", help="only kinds and places with this word")
    args = parser.parse_args()
    harness = Harness(args.ranks)
    chosen = list(cases(harness.worlds, args.faults, args.seed))
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
    for point in KINDS:
        print(f"{point:{width}} " + " ".join(f"{tally.faults[kind, point] or '-':>9}" for kind in kinds))
    print(f"{'slowest survivor, s':{width}} " + " ".join(f"{tally.slowest[kind]:9.3f}" for kind in kinds))
    print(
        f"{sum(tally.faults.values())} faults on {args.ranks} ranks in {seconds:.0f} s: {len(tally.wrong)} wrong; "
        f"{tally.fresh} times a fresh communicator worked afterwards"
    )
    for text in tally.wrong:
        print(f"  {text}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
