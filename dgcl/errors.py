"""Errors of calls that other ranks made fail: gone, late, or in another call; and a warning of inexact results.

Mistakes of the caller are ``ValueError`` and ``TypeError``. After a :class:`CommError` the communicator is *poisoned*:
every later call on it raises, and its buffers are never used again; close it and build a new one.
Called by users, `communicator`, `dgcl/ranks/control`, `dgcl/transport/base`, `dgcl/transport/common/control_page` and
others. Free to change while an error has the same class on a peer that reads it, by its place in ``ERROR_CODES``
(`tests/dgcl/transport/common/test_control_page.py`), and each kind of fault has its class
(`tests/dgcl/test_faults.py`).
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
