import threading

import pytest

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.transport.common.control_page import (
    FAILED,
    ControlPage,
)
from dgcl.transport.common.segments import PeerFile, SegmentFile
from dgcl.transport.common.words import write_word
from tests.support.samples import named


@pytest.fixture
def control_pages() -> tuple[ControlPage, ControlPage]:
    """A rank's control page as it sees it, and as a peer does."""
    file = SegmentFile()
    own = ControlPage.create(file, 4)
    segment = PeerFile(file.handle).map(own.segment.base, own.segment.size)
    return own, ControlPage(segment, 4)


@pytest.mark.parametrize("kind", [CommError, PeerLostError, CommTimeoutError, DisagreementError])
@named(
    "text",
    {
        "short": "short",
        "empty": "",
        "not ASCII": "naïve ☂ rows",
        "long": "x" * 5000,
        "long, two bytes each": "ü" * 5000,
        "long, three bytes each": "a" + "☂" * 5000,
    },
)
def test_a_failure_crosses_with_its_kind_and_words(
    control_pages: tuple[ControlPage, ControlPage], kind: type[CommError], text: str
):
    own, theirs = control_pages
    own.post_failure(kind(text))
    assert theirs.state == FAILED
    error = theirs.failure()
    assert type(error) is kind
    assert text.startswith(str(error))
    assert str(error) == text or len(str(error).encode()) > 890


def test_the_first_failure_stands(control_pages: tuple[ControlPage, ControlPage]):
    own, theirs = control_pages
    own.post_failure(PeerLostError("first"))
    own.post_failure(CommTimeoutError("second"))
    own.post_closed()
    assert theirs.state == FAILED
    assert str(theirs.failure()) == "first"


def test_a_damaged_failure_is_still_an_error(control_pages: tuple[ControlPage, ControlPage]):
    """What a peer wrote is not trusted: codes and lengths are brought into range."""
    own, theirs = control_pages
    own.post_failure(PeerLostError("words"))
    for offset, value in ((16, 99), (24, 1 << 40)):
        write_word(own.segment.address + offset, value)
    assert type(theirs.failure()) is CommError
    write_word(own.segment.address + 24, -5)
    assert str(theirs.failure()) == ""


def test_the_current_call_is_read_whole(control_pages: tuple[ControlPage, ControlPage]):
    """Its tag changes with its number; a reader never gets the one without the other."""
    own, theirs = control_pages
    last = 200_000

    def write():
        for call in range(1, last + 1):
            write_word(own.call_address + 8 + 8 * (call & 1), call * 7)
            write_word(own.call_address, call)

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while seen < last:
        call, tag = theirs.current_call()
        assert tag == call * 7
        assert call >= seen
        seen = call
    writer.join()
