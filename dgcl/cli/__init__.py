"""The ``dgcl`` command: one verb, one file.

>>> from dgcl.cli import main
>>> status = main(["topo", "show", "dgx1"])  # doctest: +SKIP

Exit status: 0 done; 1 the answer is no (a plan was rejected, a rank lost); 2 bad input, with one line on standard error
that says what is wrong and where; 130 interrupted; 141 whoever read standard output has gone.

A verb's module is light: it declares arguments, and imports what it needs inside the functions that need it.
So ``dgcl topo show`` loads neither torch nor numba.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from dgcl import __version__
from dgcl.cli import (
    advise,
    bench,
    check,
    info,
    partition,
    plan,
    show,
    simulate,
    topo,
    warmup,
)
from dgcl.cli.arguments import Parser
from dgcl.cli.command_errors import CliError, one_line
from dgcl.cli.output import say
from dgcl.errors import CommError

VERBS = (topo, partition, plan, show, advise, check, simulate, bench, info, warmup)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: the arguments of this process) and return its exit status.

    Only ``--help`` and ``--version`` leave by ``SystemExit``, as argparse has it.
    """
    verb = "dgcl"
    try:
        args, unknown = _parser().parse_known_args(argv)
        verb = args.parser.prog
        if unknown:
            args.parser.unknown(unknown)
        status: int = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
        return status
    except BrokenPipeError:
        # What is still buffered goes nowhere, so that the interpreter does not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _fail(verb, "interrupted", 130)
    except CliError as error:
        return _fail(error.prog or verb, str(error), error.status)
    except (ValueError, OSError, MemoryError) as error:
        return _fail(verb, one_line(error), 2)
    except CommError as error:
        return _fail(verb, one_line(error), 1)
    except ImportError as error:
        return _fail(verb, f"a package is missing or broken: {one_line(error)}", 1)


def _parser() -> Parser:
    parser = Parser(prog="dgcl", description="Plan and check the communication of full-graph GNN training.")
    parser.add_argument("--version", action="version", version=f"dgcl {__version__}")
    verbs = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND")
    for verb in VERBS:
        verb.add_parser(verbs)
    parser.set_defaults(parser=parser, run=_help)  # those of a command go before
    return parser


def _help(args: argparse.Namespace) -> int:
    args.parser.print_help()
    return 0


def _fail(prog: str, message: str, status: int) -> int:
    if sys.stderr is not None:
        say(f"{prog}: {one_line(message)}", file=sys.stderr)
    return status
