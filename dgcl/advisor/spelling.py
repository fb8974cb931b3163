"""Reads a strategy's text, such as "grid:2,1,4", and gives the object that carries it out.

>>> read_strategy("grid:2,1,4").line
'dgcl.build_comm_info(graph, strategy="grid:2,1,4")'
>>> str(read_strategy("offload:16"))
'offload:16'

Called by `dgcl/options`, `dgcl/build`, `dgcl/cli/problem`, `counts` and others. Free to change while text that is read
today keeps its meaning, and a wrong text its error (`tests/dgcl/advisor/test_spelling.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dgcl.grid.grid import as_grid, read_grid
from dgcl.grid.grid_strategy import GridPlacement
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.program.strategy import Strategy
from dgcl.topology.checks import nearest, shown

#: Those that exchange what "halo" does, and are called on its communicator.
CALLED = ("windows", "in-place", "offload")


@dataclass(frozen=True)
class Description:
    """A strategy, as a user names it.

    Attributes:
        name: "halo", "tail", "cover", "grid", "windows", "in-place" or "offload".
        argument: "machine" of a cover; the sizes of a grid, or its name; windows or chunks.
    """

    name: str
    argument: Any = None

    @property
    def windows(self) -> int | None:
        """Those of "windows:W"; None with another strategy."""
        return self.argument if self.name == "windows" else None

    @property
    def line(self) -> str:
        """The code that asks for it: a call of ``build_comm_info``, or what is called on its communicator."""
        return _KINDS[self.name].line.format(self, self.argument)

    def layout(self, world_size: int) -> Strategy:
        """What arranges it.

        Args:
            world_size: How many ranks there are.

        Raises:
            ValueError: A grid of another number of ranks.
        """
        if self.name == "grid":
            grid = as_grid(self.argument, world_size)
            return EdgePlacement() if grid.is_1d else GridPlacement(grid)
        if self.name in ("tail", "cover"):
            return EdgePlacement(self.name, per_machine=self.argument == "machine")
        return EdgePlacement()

    def __str__(self) -> str:
        """What :func:`read_strategy` reads."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


@dataclass(frozen=True)
class _Kind:
    """How a name is spelt, which argument it has, and what its line of code is."""

    spelling: str
    read: Callable[[str], Any] | None = None
    line: str = 'dgcl.build_comm_info(graph, strategy="{}")'


def _machine(text: str) -> str:
    if text != "machine":
        raise ValueError("its argument must be 'machine', for covers between machines")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("its argument must be a whole number of at least 1")
    return int(text)


_KINDS = {
    "halo": _Kind("halo", line="dgcl.build_comm_info(graph)"),
    "tail": _Kind("tail"),
    "cover": _Kind("cover[:machine]", _machine),
    "grid": _Kind("grid:R,K,S", read_grid),
    "windows": _Kind("windows:W", _count),
    "in-place": _Kind("in-place", line="dgcl.nn.InPlaceGCN(widths)"),
    "offload": _Kind("offload:N", _count, "dgcl.Offload(comm, chunks={1})"),
}

#: How each is spelt, for help and errors.
SPELLINGS = tuple(kind.spelling for kind in _KINDS.values())


def read_strategy(value: str | Description) -> Description:
    """The strategy that is named.

    Raises:
        ValueError: There is none of this name, or its argument is wrong or missing.
        TypeError: It is no text.
    """
    if isinstance(value, Description):
        return value
    if not isinstance(value, str):
        raise TypeError(f"strategy must be text such as 'cover' or 'grid:2,2,1' (got {shown(value)})")
    name, colon, argument = value.partition(":")
    kind = _KINDS.get(name)
    if kind is None:
        raise ValueError(
            f"strategy must be one of {', '.join(SPELLINGS)} (got {shown(value)}){nearest(name, _KINDS)}"
        )
    if bool(colon) != (kind.read is not None) and ("[" not in kind.spelling or colon):
        raise ValueError(f"strategy {name!r} is written {kind.spelling} (got {shown(value)})")
    if not colon or kind.read is None:
        return Description(name)
    try:
        return Description(name, kind.read(argument))
    except ValueError as error:
        raise ValueError(
            f"strategy {name!r} is written {kind.spelling} (got {shown(value)}): {error}"
        ) from None
