"""Errors over what other ranks did.

Mistakes of the caller are ``ValueError`` and ``TypeError``. Everything here is about peers: one of them is gone, late,
or makes another call than this rank. After a :class:`CommError` the communicator is *poisoned*: every later call on it
raises, and its buffers are never used again; close it and build a new one.

Called by users, `dgcl/ranks/`, `dgcl/transport/cuda/` and 8 more folders. Free to change while the public
names and errors stay (`tests/dgcl/aggregation/test_failures.py` and
`tests/dgcl/aggregation/test_windows.py`).
"""


class CommError(RuntimeError):
    """A rank could not finish a call because of what its peers did; base of the errors below."""


class PeerLostError(CommError):
    """A peer's process died, or the peer closed its communicator, while this rank still needed it."""


class CommTimeoutError(CommError):
    """A wait exceeded its deadline."""


class DisagreementError(CommError):
    """Ranks make different calls (another verb, row width or element type), or run different plans."""


#: The classes by the code under which one rank reports them to the others
#: (:mod:`dgcl.transport.common.control_page`).
ERROR_CODES: tuple[type[CommError], ...] = (CommError, PeerLostError, CommTimeoutError, DisagreementError)


def code_of(kind: type[CommError]) -> int:
    """The code of a class, or of the nearest of these that it refines."""
    return next(ERROR_CODES.index(each) for each in kind.__mro__ if each in ERROR_CODES)


class InexactWarning(UserWarning):
    """What is computed is not what one device would compute; the message names the cause and a way out."""
