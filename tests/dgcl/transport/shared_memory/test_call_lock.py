"""Whose turn it is, when a thread lends a hand and when one was left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dgcl.transport.shared_memory.call_lock import Turn


def in_another_thread(function: Callable[[], object]) -> str:
    """What it raised there; "" if nothing."""
    said: list[str] = []

    def run() -> None:
        try:
            function()
            said.append("")
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert said, "it waits for ever"
    return said[0]


def test_a_hand_is_waited_for() -> None:
    turn = Turn(0, 20.0)
    assert turn.lend_hand()
    threading.Timer(0.05, turn.give_back).start()
    assert in_another_thread(turn.take) == ""
    assert not turn.lend_hand(), "the other thread has it"
    turn.withdraw_hand()
    with pytest.raises(ValueError, match="another thread is in a call"):
        turn.take()


def test_a_hand_that_was_left_behind_holds_nobody_for_ever() -> None:
    turn = Turn(0, 0.1)
    assert turn.lend_hand()
    assert "another thread is in a call" in in_another_thread(turn.take)
    turn.take()
    turn.withdraw_hand()
    assert "another thread is in a call" in in_another_thread(turn.take), "it is a hand no more"
