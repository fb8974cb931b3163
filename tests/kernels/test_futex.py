import threading

import numpy as np
import pytest

from dgcl.kernels.futex import ASLEEP, ATTEND, AWAKE, announce_sleep, cancel_sleep, sleep, wake
from dgcl.transport.common.words import read_word, write_word
from tests.support.samples import named

_LONG = 60_000_000_000  # a sleep that nobody ends would show


@pytest.fixture
def words() -> np.ndarray:
    """A wake-up word, two words to work in, and flags, on lines of their own."""
    return np.zeros(64, np.int64)


def at(words: np.ndarray, place: int) -> int:
    return int(words.ctypes.data) + 8 * place


def test_a_sleep_that_nobody_ends_ends_by_itself(words: np.ndarray):
    announce_sleep(at(words, 0))
    assert sleep(at(words, 0), 1_000_000, at(words, 8)) == ASLEEP
    assert words[0] == AWAKE


@named("word", {"a flag": AWAKE, "something else": ATTEND})
def test_who_is_rung_before_it_sleeps_does_not_sleep(words: np.ndarray, word: int):
    announce_sleep(at(words, 0))
    wake(at(words, 0), word)
    assert sleep(at(words, 0), _LONG, at(words, 8)) == word
    assert words[0] == AWAKE


def test_nobody_is_rung_who_does_not_ask(words: np.ndarray):
    wake(at(words, 0), ATTEND)
    assert words[0] == AWAKE
    announce_sleep(at(words, 0))
    cancel_sleep(at(words, 0))
    wake(at(words, 0), ATTEND)
    assert words[0] == AWAKE


def test_no_ring_is_lost_between_two_who_wait_for_each_other(words: np.ndarray):
    """Each raises its flag, rings, and sleeps until the other has: a lost ring would cost a minute."""
    rounds, sleeps = 3000, [[], []]  # type: tuple[int, list[list[int]]]

    def play(me: int) -> None:
        other = 1 - me
        own_flag, flag = at(words, 16 + 8 * me), at(words, 16 + 8 * other)
        word, other_word = at(words, 32 + 8 * me), at(words, 32 + 8 * other)
        for number in range(1, rounds + 1):
            write_word(own_flag, number)
            wake(other_word, AWAKE)
            while read_word(flag) < number:
                announce_sleep(word)
                if read_word(flag) >= number:
                    cancel_sleep(word)
                else:
                    sleeps[me].append(sleep(word, _LONG, at(words, 48 + 8 * me)))

    threads = [threading.Thread(target=play, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ASLEEP not in sleeps[0] + sleeps[1]
    assert len(sleeps[0]) + len(sleeps[1]) > 0, "nobody ever slept"
