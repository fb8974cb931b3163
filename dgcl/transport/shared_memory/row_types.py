"""What all ranks of a call must agree on besides the verb."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowType:
    """What all ranks of a call must agree on besides the verb.

    Attributes:
        row_bytes: Size of a row.
        code: A number for the element type, the same on every rank.
        name: The element type's name, for messages.
        sum_code: Its place in :data:`dgcl.kernels.rows.SUMMABLE`, -1 where rows of it are not added.
    """

    row_bytes: int
    code: int
    name: str
    sum_code: int = -1
