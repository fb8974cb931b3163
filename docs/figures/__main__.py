"""Makes the figures of pages again: ``python -m docs.figures [NAME ...] [--write]``, from the repository's root.

NAME is a page's file of this folder (``windows``) or one of its tables (``windows/stacks``); without names it lists
them. Tables are printed; with ``--write`` they also replace what stands between their marks in the page, and the
page's JSON file. A wrong result ends the run, and nothing of that table is written. ``--quick`` shows
in the shortest time that a figure can be made; its numbers are worth nothing.
"""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from docs.figures.framework import HERE, Figure, Run, write

SHARED = ("__main__", "framework")


def main() -> int:
    """Make what is named."""
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="page, or page/table; none: list them")
    parser.add_argument("--write", action="store_true", help="into the page and its JSON file")
    parser.add_argument("--quick", action="store_true", help="the least that shows that it works")
    parser.add_argument(
        "--graphs", type=Path, default=HERE.parents[2] / "shared/data/graphs", help="graph files"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a checkout that `peers` compares with",
    )
    args = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    run = Run(args.graphs.resolve(), args.quick, {name: Path(path).resolve() for name, path in peers.items()})
    for name in args.names or sorted(
        m.name for m in pkgutil.iter_modules([str(HERE)]) if m.name not in SHARED
    ):
        file, _, only = name.partition("/")
        module = importlib.import_module(f"docs.figures.{file}")
        if not args.names:
            print(file, "for", module.PAGE, *module.FIGURES)
            continue
        for mark in [only] if only else module.FIGURES:
            made = module.FIGURES[mark](run)
            figures = [made] if isinstance(made, Figure) else made
            tables = [figure.table() for figure in figures]
            texts = [
                text
                for figure, table in zip(figures, tables, strict=True)
                for text in (figure.before, figure.markdown(table), figure.after)
                if text
            ]
            print(f"\n{file}/{mark}", *texts, sep="\n\n", flush=True)
            if args.write:
                write(file, module.PAGE, mark, texts, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
