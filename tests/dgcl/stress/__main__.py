"""``python -m tests.dgcl.stress [--ranks 8 16 32] [--seconds 60] [--seed 0]``: random calls under random delays."""

import argparse
import sys

from tests.dgcl.stress.run import stress


def main() -> int:
    """Run for so many seconds with each number of ranks, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.dgcl.stress", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--seconds", type=float, default=60.0, help="with each number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(
        f"{'ranks':>5} {'seconds':>8} {'calls':>8} {'calls x ranks':>13} {'steps':>10} {'elements':>14} {'#wrong':>6}"
    )
    bad = 0
    for ranks in args.ranks:
        outcome = stress(ranks, args.seconds, args.seed)
        print(
            f"{ranks:5} {outcome.seconds:8.1f} {outcome.calls:8} {outcome.calls * ranks:13} {outcome.steps:10} "
            f"{outcome.elements:14} {len(outcome.wrong):6}",
            flush=True,
        )
        for text in outcome.wrong:
            print(f"  {text}")
        bad += len(outcome.wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
