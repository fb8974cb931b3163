"""A peer for the tests of conversations: says back what it hears, with noise in between."""

from __future__ import annotations

import sys

from dgcl.gpu_check.pair import parent

if __name__ == "__main__":
    channel = parent()
    while sys.argv[1] != "leave":
        sys.stdout.write("noise of a library\n")
        try:
            channel.send([sys.argv[1], channel.receive()])
        except EOFError:
            break
