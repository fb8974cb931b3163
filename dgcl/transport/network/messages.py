"""What ranks tell their partners outside the rows: 1 KB each, so that a receive can be posted for whatever comes.

Words are int64: kind; of READY the call and its tag; of CLOSED the last call that a device has done; of FAILED the
error's class (:data:`dgcl.errors.ERROR_CODES`) and the length of its text, which follows.
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

_BYTES: Final = 1024
_TEXT: Final = 24


def empty_message() -> Tensor:
    """Room for a message."""
    return torch.zeros(_BYTES, dtype=torch.uint8)


def ready_message(call: int, tag: int) -> Tensor:
    """Call ``call`` has begun; ``tag`` says what it is."""
    return _message(READY, call, tag)


def closed_message(call: int = 0) -> Tensor:
    """This rank has left, and its device has done its part up to ``call``."""
    return _message(CLOSED, call, 0)


def failed_message(error: CommError) -> Tensor:
    """This rank has given up."""
    text = str(error).encode()[: _BYTES - _TEXT].decode(errors="ignore").encode()
    code = next(c for c in reversed(range(len(ERROR_CODES))) if isinstance(error, ERROR_CODES[c]))
    message = _message(FAILED, code, len(text))
    message.numpy()[_TEXT : _TEXT + len(text)] = np.frombuffer(text, np.uint8)
    return message


def words_of(message: Tensor) -> tuple[int, int, int]:
    """(kind, call, tag), or (kind, code, length)."""
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
