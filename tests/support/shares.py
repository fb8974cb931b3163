"""The shares of all ranks, made in one process."""

from typing import Any

from dgcl.prepare.share import Share, share_of
from dgcl.prepare.shares import prepare_inputs


def prepare(*arguments: Any, **options: Any) -> list[Share]:
    """One after the other; arguments and errors of :func:`prepare_inputs`."""
    return [share_of(inputs) for inputs in prepare_inputs(*arguments, **options)]
