"""A device's backend behind the wire: a stand-in of its group, which fails if the test says so."""

import threading
from types import SimpleNamespace

import pytest
import torch

from dgcl.transport.collective.wires import BackendWire, GlooWire, Mailbox, ThreadWire


class Work:
    """What a backend has under way."""

    def __init__(self, error: str = ""):
        self.error, self.waited = error, 0

    def wait(self) -> bool:
        self.waited += 1
        if self.error:
            raise RuntimeError(self.error)
        return True


class Group:
    """A backend's group."""

    def __init__(self, work: Work):
        self.work, self.aborted = work, threading.Event()
        self.abort = self.aborted.set

    def name(self) -> str:
        return "a stand-in"

    def alltoall_base(self, *args: object) -> Work:
        return self.work


def wait(work: Work) -> bool:
    wire, rows = BackendWire(Group(work)), torch.empty(2, 4, dtype=torch.uint8)
    return wire.wait(wire.post(rows, rows, [1, 1], [1, 1]), 0.05)


def test_the_host_goes_on_and_what_follows_on_the_device_does_not():
    work = Work()
    assert wait(work)
    assert work.waited == 1


def test_what_went_wrong_is_raised():
    with pytest.raises(RuntimeError, match="a connection"):
        wait(Work("a connection broke"))


def test_an_abort_does_not_make_the_caller_wait():
    group = Group(Work())
    BackendWire(group).abort()
    assert group.aborted.wait(60)


def test_messages_of_a_closed_connection_may_still_be_counted_when_a_look_takes_no_time():
    wire = GlooWire.__new__(GlooWire)
    wire._connections = {1: SimpleNamespace(is_open=False)}
    over = SimpleNamespace(wait=lambda seconds: seconds > 0)
    assert not wire.wait(SimpleNamespace(over=over, works=[(None, 1)], num_over=0, num_receives=1), 0)


def test_memory_of_messages_that_were_cut_off_goes_when_their_wire_is_closed():
    held, rows = [], torch.zeros(1, 4, dtype=torch.uint8)

    def begin(parts, *_):
        held.extend(parts)  # as Gloo does, for ever
        return SimpleNamespace(wait=lambda timeout: None)

    wire = GlooWire(SimpleNamespace(rank=lambda: 0, size=lambda: 2, recv=begin, send=begin), {}, 60.0)
    wire.post(rows, rows, [0, 1], [0, 1])
    wire.close()
    assert [part.numel() for part in held[:2]] == [0, 0]


def test_streams_of_threads_wait_for_each_other(monkeypatch):
    """A slice is handed over when it is packed, and given back when it is copied."""
    box, there = Mailbox(), []
    stream = SimpleNamespace(synchronize=lambda: there.append(len(box.slices)))
    streams = SimpleNamespace(current_stream=lambda device: stream)
    monkeypatch.setattr(torch, "meta", streams, raising=False)
    rows = torch.empty(2, 3, dtype=torch.uint8, device="meta")
    first, second = ThreadWire(0, box), ThreadWire(1, box)
    sent = first.post(rows[:0], rows, [0, 0], [0, 2])
    received = second.post(rows, rows[:0], [2, 0], [0, 0])
    assert second.wait(received, 60.0)
    assert first.wait(sent, 60.0)
    assert there == [0, 1, 1]
