"""The communicator of distributed modules, which is the current one while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from dgcl.distributed.edge_ends import tensors_in
from dgcl.distributed.interception import AsOneDevice, skip_frames
from dgcl.frameworks.edge_sets import EdgeSet, edge_set_of, warn_of_others_rows
from dgcl.graph.sources import is_a
from dgcl.nn.guards import forget_unused
from dgcl.ranks.context import context
from dgcl.ranks.handle import Handle

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


def refuse_script(module: Any = None) -> NoReturn:
    """Refuse ``torch.jit``."""
    raise ValueError(
        "a distributed model exchanges rows with other ranks, which torch.jit cannot trace or script: take the model of"
        " one device, which has the same state_dict, or torch.compile"
    )


class Home(Handle):
    """What the modules of one :func:`dgcl.distribute` share; copies of a model share it, too.

    Attributes:
        expanded: Rows that ``edge_updater`` exchanged, and what came of them, until ``propagate``.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm, self._running = comm, 0
        self._mode: AsOneDevice | None = None  # that is entered
        self.expanded: dict[Any, tuple[Tensor, Tensor]] = {}

    @property
    def comm(self) -> Communicator | None:
        """The communicator, or what was rewired from it; None, as in a model that was unpickled: the current one."""
        if self._comm is not None:
            self._comm = self._comm._newest or self._comm
        return self._comm

    def __reduce__(self) -> tuple[Any, ...]:  # type: ignore[override]
        return Home, ()

    def run(self, forward: Callable[..., Any], intercept: bool | None, *args: Any, **kwargs: Any) -> Any:
        """A module's forward, with the communicator of its edges as the current one.

        Args:
            forward: The forward.
            intercept: Whether its calls of torch must be seen: of dropout as a function, of its own. None: not where a
                rank has all in-edges.
            args, kwargs: Its arguments.
        """
        intercept, eager = intercept and self._mode is None, not torch.compiler.is_compiling()
        if not eager and not intercept:
            return forward(*args, **kwargs)
        before = context.communicator
        if eager:
            if torch.jit.is_tracing():
                refuse_script()
            inner = before if self._running else self.comm  # within a model that runs, that of its edges
            values = [*args, *kwargs.values()]
            tensors = [*tensors_in(values)]
            known = [edge_set_of(each) for each in tensors if each.dim() == 2]
            graphs: list[Any] = [each for each in known if each is not None]
            graphs += [each for each in values if is_a(each, "dgcl.frameworks.rank_graph", "RankGraph")]
            context.communicator = graphs[0].comm if graphs else inner or before
            for graph in graphs:
                if not self._running and not getattr(graph, "ndata", None):
                    warn_of_others_rows(graph.comm, tensors)
            self._running += 1
        try:
            if not intercept:
                right = intercept is None and not getattr(context.communicator, "sums_elsewhere", True)
                with self.unseen(right):
                    return forward(*args, **kwargs)
            skip_frames()
            with AsOneDevice() as self._mode:
                return forward(*args, **kwargs)
        finally:
            if intercept:
                self._mode = None
            if eager:
                self._running -= 1
                if not self._running and context.communicator is not None:
                    self.expanded.clear()
                    forget_unused(context.communicator)
                context.communicator = before

    def expand(self, rows: Tensor, edges: EdgeSet, dim: int) -> Tensor:
        """Rows that edges read; the same rows are exchanged once in a layer. Collective."""
        if not self._running or torch.compiler.is_compiling() or rows.is_inference():
            return edges.expand(rows, dim)
        key = edges.comm, edges.exchange, dim, id(rows), rows._version, torch.is_grad_enabled()
        if key not in self.expanded:  # which keeps the rows, so that no others get their id
            self.expanded[key] = rows, edges.expand(rows, dim)
        return self.expanded[key][1]

    @contextmanager
    def unseen(self, whether: bool) -> Iterator[None]:
        """While what is known to be right runs, its calls need not be seen; this saves their time."""
        mode = self._mode
        if not whether or mode is None or torch.compiler.is_compiling() or not mode.is_innermost():
            yield
            return
        mode.__exit__(None, None, None)
        self._mode = None
        try:
            yield
        finally:
            self._mode = mode.__enter__()
