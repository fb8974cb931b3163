"""What the programs share that measure on hosts and put their tables into a page of the documentation."""

import argparse
from collections.abc import Iterable, Iterator

from docs.figures.framework import write_between
from tests.dgcl.multihost.hosts import missing


def require_hosts():
    """End the program with the reason if hosts cannot be made here."""
    why = missing()
    if why is not None:
        raise SystemExit(f"no hosts: {why}")


def print_table(program: str, mark: str, lines: Iterator[str]):
    """The whole of a program with one table: ``program`` is its docstring."""
    parser = argparse.ArgumentParser(description=program.splitlines()[0])
    parser.add_argument("--write", default="", help="the page")
    given = parser.parse_args()
    require_hosts()
    print_into(given.write, mark, lines)


def print_into(page: str, mark: str, lines: Iterable[str]):
    """Print each line as it comes, then write all of them between the marks of ``page``, if one is named."""
    said = []
    for line in lines:
        print(line, flush=True)
        said.append(line)
    if page:
        write_between(page, mark, "\n".join(said))
