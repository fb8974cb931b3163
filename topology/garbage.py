"""Making many objects that stay, without the search for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_search() -> Iterator[None]:
    """Pause the search for garbage where a million links are made: it would go through them again and again."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()
