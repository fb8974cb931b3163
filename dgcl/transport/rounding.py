"""Transport that rounds rows to a narrower element type, the wire type, and sends them by another transport.

A row is rounded where it sets out, and relays pass it on as it is; owned rows are never rounded. Contributions to a sum
are rounded likewise; each rank on their way, and the owner, adds those that arrive in float32 and rounds the sum once,
then the owner adds it to its own row in the row's type. Of int8 each row has a scale, its largest element over 127,
whose four bytes follow the elements; as such rows cannot be added on their way, contributions travel in bfloat16. To
autograd a rounding is the identity: the adjoint of a rounded expand is a rounded fold, and the other way about.
Called by `dgcl/autograd/operators`, `dgcl/build` and `dgcl/communicator`. Free to change while rows have the bits of
rounding by hand, and half the bytes travel (`tests/dgcl/transport/test_rounding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgcl.program.rank_program import Program
from dgcl.topology.checks import shown
from dgcl.transport.base import Around, StartedExpand, StartedFold, Transport

#: Wire types. Numbers of exchanges are below WIRED; number + WIRED * k asks for the k-th type in that call, from 1.
WIRES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
WIRED = 1 << 16


def check_wire(wire: Any, known: tuple[torch.dtype | None, ...] = (None, *WIRES[:-1])) -> None:
    """Raise unless it is a wire type, by default one that all calls of a communicator may have."""
    if not isinstance(wire, torch.dtype | None) or wire not in known:
        raise ValueError(
            f"wire must be one of {', '.join(map(str, known))} (got {shown(wire)}); torch.int8 is for single calls:"
            " comm.expand(rows, wire=torch.int8)"
        )


def number_on_wire(exchange: int, rows: Tensor, wire: torch.dtype, gradients: bool) -> int:
    """The number of an exchange for one call of a wire type; arguments as of :meth:`dgcl.Communicator.expand`."""
    check_wire(wire, WIRES)
    if not rows.is_floating_point() or rows.dtype.itemsize > 4 * wire.itemsize:
        raise TypeError(
            f"rows for wire={wire} must be floating point of at most {32 * wire.itemsize} bits (got {rows.dtype})"
        )
    if wire is torch.int8 and rows.requires_grad and torch.is_grad_enabled() and not gradients:
        raise ValueError(
            "rows require a gradient, and wire=torch.int8 keeps two digits of them: choose torch.bfloat16, or say"
            " wire_gradients=True (gradients travel in bfloat16)"
        )
    return exchange + WIRED * (WIRES.index(wire) + 1)


class _Started(NamedTuple):
    wait: Callable[..., Tensor]


class Rounding(Around):
    """A transport that rounds floating-point rows wider than the wire type on their way over another transport.

    Args:
        transport: Moves the rows.
        programs: By number, of the exchanges whose rows are folded together with owned ones.
        wire: The wire type of calls whose exchange does not name one; None: there are none.
    """

    def __init__(
        self, transport: Transport, programs: Mapping[int, Program], wire: torch.dtype | None = None
    ) -> None:
        super().__init__(transport)
        self.wire, self._programs = wire, dict(programs)
        self._errors: dict[torch.dtype, float] = {}

    def _type_of(self, rows: Tensor, exchange: int) -> torch.dtype:
        """The type in which rows travel."""
        wire: Any = (self.wire, *WIRES)[exchange // WIRED]
        if rows.is_complex():
            raise TypeError(
                f"wire={wire} is for real rows (got {rows.dtype}); exchange torch.view_as_real(rows)"
            )
        return wire if rows.is_floating_point() and rows.dtype.itemsize > wire.itemsize else rows.dtype

    def _sent(self, rows: Tensor, wire: torch.dtype) -> Tensor:
        """The rows as they travel; how far off the first ones are is kept."""
        sent = _encode(rows, wire)
        if wire not in self._errors and len(rows) and wire is not rows.dtype:
            sample = rows[:256]
            # No reduction of rows: a distributed model would be warned of it.
            size = float(torch.dist(sample, 0 * sample))
            if size > 0:
                self._errors[wire] = float(torch.dist(_decode(sent[:256], sample), sample)) / size
        return sent

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """As :meth:`dgcl.transport.base.Transport.expand`."""
        num_local = self._programs[exchange % WIRED].num_local
        result: Tensor = self.empty((num_local, *rows.shape[1:]), rows.dtype)
        return torch.cat([rows, self.begin_expand(rows, exchange, wait=True).wait()], out=result)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """As :meth:`dgcl.transport.base.Transport.fold`."""
        num_owned = self._programs[exchange % WIRED].num_owned
        result: Tensor = self.empty((num_owned, *rows.shape[1:]), rows.dtype).copy_(rows[:num_owned])
        return self.begin_fold(rows[num_owned:], exchange, wait=True).wait(result)

    def begin_expand(self, rows: Tensor, exchange: int = 0, **how: Any) -> StartedExpand:
        """As :meth:`dgcl.transport.base.Transport.begin_expand`."""
        sent = self._sent(rows, self._type_of(rows, exchange))
        started = self.transport.begin_expand(sent, exchange % WIRED, **how)
        return _Started(lambda: _decode(started.wait(), rows))

    def begin_fold(self, halo_rows: Tensor, exchange: int = 0, **how: Any) -> StartedFold:
        """As :meth:`dgcl.transport.base.Transport.begin_fold`."""
        wire = self._type_of(halo_rows, exchange)
        if wire is torch.int8:
            wire = torch.bfloat16
        started = self.transport.begin_fold(self._sent(halo_rows, wire), exchange % WIRED, **how)

        @torch.no_grad()
        def wait(into: Tensor) -> Tensor:
            return into.add_(started.wait(torch.zeros_like(into, dtype=wire)))

        return started if wire is halo_rows.dtype else _Started(wait)

    def sequence(self, *_: Any) -> None:
        """None: rows are rounded between steps."""

    def add_exchanges(self, programs: Mapping[str, Program], *places: Any) -> int:
        """As :meth:`dgcl.transport.base.Transport.add_exchanges`."""
        first = self.transport.add_exchanges(programs, *places)
        self._programs.update(enumerate(programs.values(), first))
        return first

    def errors(self) -> list[str]:
        """For each wire type that was used how far off rounding was in the first call."""
        return [
            f"rows travel as {wire}: a sample of the first call is off by {error:.2g} of its 2-norm"
            for wire, error in self._errors.items()
        ]


def _encode(rows: Tensor, wire: torch.dtype) -> Tensor:
    """The rows in the wire type; of int8 ``(n, width + 4)``, the scale of a row in its last four bytes."""
    if wire is not torch.int8:
        return rows.to(wire)
    flat = rows[:, None].flatten(1).float()
    # Rows of zeros need some scale, too; that of a row that has NaN or infinity makes all of it NaN.
    scale = (torch.nn.functional.pad(flat.abs(), (0, 1), value=1e-35).amax(1) / 127)[:, None]
    return torch.cat([(flat / scale).round().to(wire), scale.view(wire)], 1)


def _decode(sent: Tensor, like: Tensor) -> Tensor:
    """Rows as they were before :func:`_encode`, but for rounding, of the type and trailing shape of others."""
    if sent.dtype is torch.int8:  # repeated, as contiguous() leaves a single row where no float may begin
        sent = (sent[:, :-4] * sent[:, -4:].repeat(1, 1).view(torch.float32)).reshape(
            len(sent), *like.shape[1:]
        )
    return sent.to(like.dtype)
