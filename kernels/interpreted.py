"""Compiled functions run by the Python interpreter, for so little work that compiling them would take longer.

A loop takes a hundred to three hundred times as long as compiled; compiling takes seconds. Results are the same bit
for bit if a function adds and rounds in loops of its own (NumPy's ``sum`` adds pairwise, and its ``exp`` may round
otherwise than compiled code does), and if integers of less than 64 bits do not outgrow their width, which compiled code
widens: indices of small arrays do not.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba.core.dispatcher import Dispatcher

_ENOUGH_SECONDS: Final = 1.0  # of CPU time, for all calls of one function in a process


class Interpreter:
    """Runs one function by the interpreter while that is short.

    Args:
        function: what is compiled otherwise.
        most: how many elements the arrays of a call may hold in all.
    """

    def __init__(self, function: FunctionType, most: int) -> None:
        self._function, self._most, self._seconds = function, most, 0.0

    def takes(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether a call is short, and those before it were."""
        return self._seconds < _ENOUGH_SECONDS and _num_elements(arguments) <= self._most

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        begin = time.thread_time()
        try:
            with np.errstate(all="ignore"):  # compiled code does not warn
                return interpreted(self._function)(*arguments)
        finally:
            self._seconds += time.thread_time() - begin


@functools.cache
def interpreted(function: FunctionType) -> Callable[..., Any]:
    """Return a function for the interpreter, which calls others that are compiled in the same way."""
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = names.get(name)
        if isinstance(value, Dispatcher):
            names[name] = interpreted(value.py_func)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _num_elements(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_num_elements, value)) if isinstance(value, tuple) else 0
