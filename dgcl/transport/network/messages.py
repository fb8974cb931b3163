"""Control messages between partners: fixed size (1 KB), so that one posted receive fits any of them.

The first three int64 are the kind and two values. READY: call and tag. CLOSED: the last call that the device has
done, and 0. WAITS: the rank that the sender waits for, and 0. FAILED: the error's class
(:data:`dgcl.errors.ERROR_CODES`) and the length in bytes of the text that follows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import ERROR_CODES, CommError

READY: Final = 1
FAILED: Final = 2
CLOSED: Final = 3
WAITS: Final = 4

_BYTES: Final = 1024
_TEXT: Final = 24


def empty_message() -> Tensor:
    """A zeroed message buffer."""
    return torch.zeros(_BYTES, dtype=torch.uint8)


def ready_message(call: int, tag: int) -> Tensor:
    """The message that call ``call`` with tag ``tag`` has begun on this rank."""
    return _message(READY, call, tag)


def closed_message(call: int = 0) -> Tensor:
    """The message that this rank has left, and that its device has done its part up to ``call``."""
    return _message(CLOSED, call, 0)


def wait_message(peer: int) -> Tensor:
    """The message that this rank waits for ``peer``."""
    return _message(WAITS, peer, 0)


def failed_message(error: CommError) -> Tensor:
    """The message that this rank has given up, with its error."""
    text = str(error).encode()[: _BYTES - _TEXT].decode(errors="ignore").encode()
    code = next(c for c in reversed(range(len(ERROR_CODES))) if isinstance(error, ERROR_CODES[c]))
    message = _message(FAILED, code, len(text))
    message.numpy()[_TEXT : _TEXT + len(text)] = np.frombuffer(text, np.uint8)
    return message


def words_of(message: Tensor) -> tuple[int, int, int]:
    """The header of a message: (kind, call, tag), or (kind, code, length)."""
    kind, first, second = message.numpy()[:_TEXT].view(np.int64).tolist()
    return kind, first, second


def error_of(message: Tensor) -> CommError:
    """The error that a FAILED message carries."""
    _, code, length = words_of(message)
    kind = ERROR_CODES[code] if 0 <= code < len(ERROR_CODES) else CommError
    length = min(max(length, 0), _BYTES - _TEXT)
    return kind(message.numpy()[_TEXT : _TEXT + length].tobytes().decode(errors="replace"))


def _message(*words: int) -> Tensor:
    message = empty_message()
    message.numpy()[:_TEXT].view(np.int64)[:] = words
    return message
