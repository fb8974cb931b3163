"""Two processes that talk by lines of JSON: a probe, and the peer that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import IO, Any

# Stands before each value, as in RFC 7464: libraries print, too.
_MARK = "\x1e"


class Channel:
    """One end of a conversation."""

    def __init__(self, reads: IO[str], writes: IO[str]) -> None:
        self._reads, self._writes = reads, writes

    def send(self, value: Any) -> None:
        """Say something."""
        self._writes.write(f"{_MARK}{json.dumps(value)}\n")
        self._writes.flush()

    def receive(self) -> Any:
        """What the other end says next.

        Raises:
            EOFError: Nothing; it is gone.
        """
        while line := self._reads.readline():
            if line.startswith(_MARK):
                return json.loads(line[1:])
        raise EOFError("the other process is gone")


class Peer(Channel):
    """A process running ``python -m module *arguments``, killed at the end of a ``with`` block if it still
    runs."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdout, self._process.stdin)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writes.close()
        if self._process.poll() is None:
            try:
                self._process.wait(0 if error else 10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def parent() -> Channel:
    """The conversation with the process that started this one."""
    return Channel(sys.stdin, sys.stdout)
