"""What :mod:`tests.dgcl.transport.collective.test_transport` shares with other tests."""

from collections.abc import Callable
from typing import Any

import pytest

from dgcl.transport.common import peers


def apart(ranks_a_host: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function where ranks share memory in groups of so many, as on several machines."""
    connect = peers.Peers._connect

    def refuse(mine: peers.Peers, peer: int, handle: tuple[Any, ...]) -> str | None:
        far = peer // ranks_a_host != mine.rank // ranks_a_host
        return connect(mine, peer, (-1, *handle[1:]) if far else handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers.Peers, "_connect", refuse)
        return function(*args)
