"""A way in between any two steps of the protocol, which costs the product nothing.

The engine reads its peers' flags and raises its own through tables of addresses. Here these lead to shadows of
the flags in private memory, and what stands between a shadow and the flag itself is this module: it copies one
flag at a time, and calls ``point(name)`` before and after. So rows lie written with the done flag not raised yet,
or a flag has been raised and its reader not been told, for as long as ``point`` likes; it may also raise, stop the
process, or kill it. The engine itself is the compiled one, which looks once and comes back.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from dgcl.transport.common.control_page import LINE
from dgcl.transport.common.words import read_word, write_word
from dgcl.transport.shared_memory.engine import (
    AT_ONCE,
    ITS_DONE,
    OWN_DONE,
    READY,
)
from dgcl.transport.steps import FOLD

#: Where faults strike while a call runs, in the order of a call.
IN_CALLS = (
    "call: nobody told",
    "ready: place written, call not",
    "ready: told one more",
    "call: all told, nothing done",
    "ready: seen, not used",
    "map: before",
    "map: after",
    "grow: before",
    "grow: after",
    "done: rows written, flag not",
    "done: flag raised",
    "done: seen, rows not read",
    "waiting",
    "end: all done, not returned",
    "fold: arrived, not summed",
)
#: While a communicator is made: before and after each exchange of the control plane.
IN_SET_UP = ("set-up 0: before", "set-up 0: after", "set-up 1: before", "set-up 1: after", "set-up 2: before")
#: In a stage of the collective transport.
IN_STAGES = ("stage: not sent", "stage: sent, not arrived")
#: In the program, between calls and between the start and the end of one.
IN_LAYERS = ("layer: before a call", "layer: before a backward", "halo: started, not waited for")

Point = Callable[[str], None]


class Steps:
    """The steps of one communicator, with ``point(name)`` between them."""

    def __init__(self, comm: Communicator, point: Point):
        runtime: Any = comm.transport.runtime
        self._runtime, self._point = runtime, point
        peers = range(comm.world_size)
        words = LINE // 8
        # One page of words each: shadows of peers' ready and done lines, and of this rank's.
        self._shadows = np.zeros((4, comm.world_size, words), np.int64)
        columns = READY, ITS_DONE, OWN_DONE
        lines = runtime.tasks[0].peers[:, columns].T.tolist()
        self._ready, self._done, self._own_done = lines
        self._own_ready: dict[int, list[tuple[int, int]]] = {}
        for task in runtime.tasks:
            for kind, column in enumerate(columns):
                task.peers[:, column] = [self._shadow(kind, peer) for peer in peers]
            receives = sorted(set(task.schedule.recv_peer.tolist()))
            pairs = [
                (self._shadow(3, peer), int(real))
                for peer, real in zip(receives, task.senders[0], strict=True)
            ]
            self._own_ready[id(task)] = pairs
            task.senders[0] = [shadow for shadow, _ in pairs]
        self._wrap()

    def _shadow(self, kind: int, peer: int) -> int:
        return int(self._shadows[kind, peer].ctypes.data)

    def _wrap(self):
        runtime, point = self._runtime, self._point
        start, run = runtime.start, runtime.run
        look, gone = runtime._check_failures, runtime.peers.gone

        def started(call: Any, begin: Any):
            point("call: nobody told")
            start(call, begin)
            for shadow, real in self._own_ready[id(call.task)]:
                for word in range(LINE // 8 - 1, 0, -1):
                    write_word(real + 8 * word, read_word(shadow + 8 * word))
                point("ready: place written, call not")
                write_word(real, read_word(shadow))
                point("ready: told one more")
            point("call: all told, nothing done")

        runtime.one_step = False
        runtime.wait_policy = AT_ONCE  # the engine looks once and comes back

        def driven(call: Any, wait: bool = True) -> bool:
            self.pull(point)
            done = bool(run(call, wait))
            if done:
                point("end: all done, not returned")
                if call.task.verb == FOLD:
                    point("fold: arrived, not summed")
            self.push(point)
            return done

        def looked(*rest: Any):
            self.push(point)
            self.pull(point)
            point("waiting")
            look(*rest)
            os.sched_yield()

        def is_gone(peer: int) -> Any:
            """After this the executor looks at the flags once more: they must not be older than the answer."""
            why = gone(peer)
            self.pull(lambda name: None)
            return why

        runtime.start, runtime.run = started, driven
        runtime._check_failures, runtime.peers.gone = looked, is_gone
        file = runtime.pool._file
        file.grow = self._around("grow", file.grow)
        runtime.peers.map_segment = self._around("map", runtime.peers.map_segment)

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            self._point(f"{name}: before")
            try:
                return function(*args)
            finally:
                self._point(f"{name}: after")

        return called

    def pull(self, point: Point):
        """Show the engine what peers have raised."""
        for peer, (ready, done) in enumerate(zip(self._ready, self._done, strict=True)):
            shadow = self._shadow(0, peer)
            call = read_word(ready)
            if call != read_word(shadow):
                for word in range(1, LINE // 8):
                    write_word(shadow + 8 * word, read_word(ready + 8 * word))
                assert read_word(ready) == call, "a ready line changed before its call was over"
                point("ready: seen, not used")
                write_word(shadow, call)
            shadow, count = self._shadow(1, peer), read_word(done)
            if count != read_word(shadow):
                point("done: seen, rows not read")
                write_word(shadow, count)

    def push(self, point: Point):
        """Raise for peers what the engine has raised."""
        for peer, real in enumerate(self._own_done):
            count = read_word(self._shadow(2, peer))
            if count != read_word(real):
                point("done: rows written, flag not")
                write_word(real, count)
                point("done: flag raised")


def watch_stages(wire: Any, point: Point):
    """Call ``point`` before and after a stage of the collective transport is sent."""
    post = wire.post

    def posted(*args: Any) -> Any:
        point(IN_STAGES[0])
        work = post(*args)
        point(IN_STAGES[1])
        return work

    wire.post = posted


@contextmanager
def set_up_watched(point: Point) -> Iterator[None]:
    """Call ``point`` before and after every exchange of the control plane."""
    control: Any = context.require_control()
    exchange, exchanges = control.exchange, 0

    def met(value: Any) -> list[Any]:
        nonlocal exchanges
        number, exchanges = exchanges, exchanges + 1
        point(f"set-up {number}: before")
        values: list[Any] = exchange(value)
        point(f"set-up {number}: after")
        return values

    control.exchange = met
    try:
        yield
    finally:
        control.exchange = exchange
